"""A student from a spec: a hub id, a folder, or made from its teacher; with a head where widths differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from distill.errors import StudentError
from distill.layout import describe_missing
from distill.students import compact, narrow, static
from distill.students.aliases import STUDENTS
from distill.students.initialise import from_teacher_layers
from distill.students.spec import LAYERS, parse_spec
from distill.students.static import flat_features, is_static
from distill.students.vocabulary import CountTokens, SampleTexts
from embedcache.contract import Contract
from embedcache.errors import PoolingNeededError, TeacherError
from embedcache.teacher.load import Teacher, load_teacher

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.students.spec import StudentSpec

Head = Literal["auto", "linear", "tanh", "none"]
_LONGEST = 512
"""Tokens after which a text is cut where neither model nor user says."""
_STATIC_LENGTH = (
    "student.max_length {length}: {spec!r} reads texts to their end; leave student.max_length out"
)
_ADDED = "is_added_head"
"""Attribute of the head that was put on a model here, and not by who made the model."""


def build_student(
    spec: str,
    contract: Contract,
    live_teacher: Callable[[], Teacher],
    *,
    dimension: int | None = None,
    classifier: Literal["on targets", "alone"] | None = None,
    head: Head = "auto",
    pooling: str | None = None,
    max_length: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    count_tokens: CountTokens | None = None,
    sample_texts: SampleTexts | None = None,
    on_note: compact.OnNote = lambda note: None,
    on_trial: bool = False,
) -> SentenceTransformer:
    """Build a student whose vectors have the width of its targets, and length one where those have it.

    Args:
        spec: one of the forms of :data:`distill.students.spec.FORMS`, a folder, an alias or a hub id.
        contract: the teacher's contract; of several teachers, the first one's.
        live_teacher: loads the teacher itself; called only for students that are made from it.
        dimension: width of targets that are combined or projected, and so have length one; default: the
            targets are the teacher's own vectors.
        classifier: that its vectors are read by a classifier, and so are not scaled: vectors that have to be
            like the targets too, or (``alone``) need not have their width.
        head: ``auto`` adds a linear head where widths differ, ``linear`` always, ``tanh`` one that is
            followed by a tanh (ConGen, section 4.2), ``none`` never.
        pooling: of a student that is no cut-out of its teacher; default: as its folder says, else ``mean``.
        max_length: tokens after which a text is cut; default: as the teacher, or what the student can take.
        dropout: probability used everywhere in training; the saved config keeps the model's own.
        seed: of new weights: the head's, or a whole narrow student's.
        count_tokens: counts tokens of the texts to train on; default: there are no texts, and what is made
            of such counts is refused.
        sample_texts: gives texts to train on, to tell by what a smaller vocabulary does to them.
        on_note: told what is worth knowing about how the student is made.
        on_trial: whether it is built only to see that it can be: a static student's numbers are not computed
            then.

    Returns:
        The model on the CPU, gradients on: [transformer, pooling, (head), (normalise)]; a static one begins
        with its table in place of the first two.

    Raises:
        StudentError: if the spec is not understood, a setting does not apply to it, or widths differ and
            ``head`` is ``none``.
    """
    parsed = parse_spec(spec)
    full: int | None = None
    if parsed.from_teacher:
        if pooling is not None:
            raise StudentError(
                f"student.pooling {pooling}: {spec!r} pools as its teacher does; leave student.pooling out"
            )
        teacher = live_teacher()
        full = count_parameters(teacher.model)
        model = _from_teacher(parsed, teacher, seed, count_tokens, sample_texts, on_note, on_trial)
        positions = contract.max_length
    else:
        loaded = _load(spec, pooling)
        model, positions = loaded.model, loaded.contract.max_length
        model.requires_grad_(True)
    # Training sees whole vectors; a head brings them to the targets' width. Weights may be stored in half
    # precision, which is too coarse for small updates to add up in.
    model.truncate_dim = None
    model.float()
    _drop_normalize(model)
    if classifier == "alone":
        _add_head(model, int(model.get_embedding_dimension() or 0), head, seed)
    else:
        _add_head(model, dimension or contract.dimension, head, seed)
    # A truncated vector is the beginning of a unit vector, not one of length one itself.
    scaled = dimension or (contract.normalize and contract.truncate_dim is None)
    if scaled and classifier is None:
        from sentence_transformers.base.modules import Normalize

        model.append(Normalize())
    # A table of tokens has no positions to run out of.
    if not is_static(model):
        model.max_seq_length = _length(spec, max_length, contract.max_length, positions)
    elif max_length is not None:
        raise StudentError(_STATIC_LENGTH.format(length=max_length, spec=spec))
    _set_dropout(model, dropout)
    if full is not None and parsed.kind != "layers":
        own = count_parameters(model)
        on_note(f"{own / 1e6:.2f} M parameters, {own / full:.1%} of the teacher's {full / 1e6:.2f} M")
    return model


def _from_teacher(
    spec: StudentSpec,
    teacher: Teacher,
    seed: int,
    count_tokens: CountTokens | None,
    sample_texts: SampleTexts | None,
    on_note: compact.OnNote,
    on_trial: bool,
) -> SentenceTransformer:
    model = teacher.model.cpu()
    if spec.kind == "compact":
        return compact.from_teacher(
            model, spec, count_tokens=count_tokens, on_note=on_note, sample_texts=sample_texts, seed=seed
        )
    if spec.kind == "narrow":
        return narrow.from_teacher(model, spec, seed=seed)
    if spec.kind == "static":
        dim, vocab = spec.integer("dim"), spec.optional_integer("vocab")
        return static.from_teacher(
            teacher,
            dim=dim,
            vocab=vocab,
            count_tokens=count_tokens,
            on_note=on_note,
            sample_texts=sample_texts,
            on_trial=on_trial,
        )
    return from_teacher_layers(model, spec.text.removeprefix(LAYERS))


def open_student(
    spec: str,
    *,
    head: Literal["none", "linear", "tanh"] = "none",
    pooling: str | None = None,
    layers: str | None = None,
    max_length: int | None = None,
    scaled: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
) -> tuple[SentenceTransformer, Contract]:
    """Open a model to train it further, as it is: it has no teacher whose vectors it ought to fit.

    Args:
        spec: a folder, an alias or a hub id.
        head: a linear head of the model's own width, put before vectors are scaled; ``none`` adds none.
        pooling: default: as the folder says, else ``mean``.
        layers: which of its layers to keep; default: all. See
            :func:`distill.students.initialise.parse_layers`.
        max_length: tokens after which it cuts a text; default, and at most: as the model does.
        scaled: whether vectors are scaled to length one where the model does so; those that a classifier
            reads are not.
        dropout, seed: as :func:`build_student`.

    Returns:
        The model on the CPU, gradients on, and the contract of the vectors it gave as it was.

    Raises:
        StudentError: if it cannot be loaded.
    """
    loaded = _load(spec, pooling)
    model, contract = loaded.model, loaded.contract
    if layers is not None:
        model = from_teacher_layers(model, layers)
    model.requires_grad_(True)
    model.truncate_dim = None
    model.float()
    if head != "none" or not scaled:
        _drop_normalize(model)
    if head != "none":
        _add_head(model, int(model.get_embedding_dimension() or 0), head, seed)
        if contract.normalize and scaled:
            from sentence_transformers.base.modules import Normalize

            model.append(Normalize())
    if not is_static(model):
        model.max_seq_length = _length(spec, max_length, contract.max_length, contract.max_length)
    elif max_length is not None:
        raise StudentError(_STATIC_LENGTH.format(length=max_length, spec=spec))
    _set_dropout(model, dropout)
    return model, contract


def _load(spec: str, pooling: str | None) -> Teacher:
    # As it was typed: the hub id that an alias stands for is not mistyped.
    if missing := describe_missing(spec):
        raise StudentError(f"student: {missing}")
    spec = STUDENTS.get(spec, spec)
    try:
        try:
            return load_teacher(spec, pooling=pooling, device="cpu")
        except PoolingNeededError:
            # A student is trained after this: the mean is a choice, not a guess at what it was made with.
            return load_teacher(spec, pooling="mean", device="cpu")
    except TeacherError as error:
        # With a slash it is a hub id or a folder, of which the error says what is wrong.
        names = "" if "/" in spec else f"; students by short names: {', '.join(STUDENTS)}"
        raise StudentError(f"student {spec!r}: {error}{names}") from error


def _drop_normalize(model: SentenceTransformer) -> None:
    for name, module in reversed(list(model.named_children())):
        if type(module).__name__ == "Normalize":
            del model[int(name)]


def _add_head(model: SentenceTransformer, dimension: int, head: Head, seed: int) -> None:
    from sentence_transformers.base.modules import Dense

    width = int(model.get_embedding_dimension() or 0)
    if width != dimension and head == "none":
        raise StudentError(
            f"the student's vectors have {width} dimensions, its targets {dimension}: use --head linear "
            f"(or auto), or a student of width {dimension}"
        )
    if head in ("linear", "tanh") or width != dimension:
        activation = nn.Tanh() if head == "tanh" else nn.Identity()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            added = Dense(width, dimension, bias=True, activation_function=activation)
        setattr(added, _ADDED, True)
        model.append(added)


def without_head(model: SentenceTransformer) -> SentenceTransformer:
    """Return ``model`` without the head that was added to it here: the same modules, shared.

    Dense layers that the model was made with are its own, and stay.

    Raises:
        StudentError: if no head was added.
    """
    from sentence_transformers import SentenceTransformer

    modules = [module for module in model if not hasattr(module, _ADDED)]
    if len(modules) == len(model):
        raise StudentError(
            "student.drop_head: no head was added to this student; leave it out, or add one with "
            "--head linear"
        )
    bare = SentenceTransformer(modules=modules, device=str(model.device))
    bare.prompts, bare.default_prompt_name = {}, None
    # One vector a token needs no limit, and knows none.
    if not is_static(model):
        bare.max_seq_length = model.max_seq_length
    return bare


def _length(spec: str, asked: int | None, teacher: int, positions: int) -> int:
    if asked is not None and positions and asked > positions:
        raise StudentError(f"student.max_length {asked}: {spec!r} takes at most {positions} tokens")
    lengths = [length for length in (asked or teacher, positions) if length]
    return min(lengths) if lengths else _LONGEST


def _set_dropout(model: SentenceTransformer, dropout: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        # Some attention layers keep a number of their own instead of a module.
        for name in ("attention_dropout", "attention_probs_dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, dropout)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def forward(
    model: SentenceTransformer, input_ids: Tensor, attention_mask: Tensor, token_types: Tensor | None = None
) -> Tensor:
    """Return the sentence vectors (B, d) of padded token ids (B, T), as the model's own pipeline has them.

    Args:
        model: the model.
        input_ids, attention_mask: int64, shape (B, T).
        token_types: int64, shape (B, T); 1 on the second texts of pairs; None where all of it is 0, or the
            model does not look at it.
    """
    features = {"input_ids": input_ids, "attention_mask": attention_mask}
    if token_types is not None:
        features["token_type_ids"] = token_types
    features = model(flat_features(input_ids, attention_mask) if is_static(model) else features)
    vectors: Tensor = features["sentence_embedding"]
    return vectors
