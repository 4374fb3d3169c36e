"""Build a student from its spec, with a head where widths differ."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from distill.errors import StudentError
from distill.layout import describe_missing
from distill.students.layers import keep_layers
from distill.students.spec import ALIASES, KINDS, StudentOptions, is_from_teacher, parse_spec
from distill.students.static import flat_features, is_static
from distill.students.transformer import merge_adapter
from embedcache.contract import Contract
from embedcache.errors import PoolingNeededError, TeacherError
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.resolve import is_served

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Head = Literal["auto", "linear", "tanh", "none"]

_LONGEST = 512
"""Tokens after which a text is cut where neither model nor user sets a limit."""

_ADDED = "is_added_head"
"""Attribute of a head added here, as opposed to one the model came with."""


def build_student(
    spec: str,
    contract: Contract,
    live_teacher: Callable[[], Teacher],
    options: StudentOptions | None = None,
    *,
    dimension: int | None = None,
    classifier: Literal["on targets", "alone"] | None = None,
    head: Head = "auto",
    pooling: str | None = None,
    max_length: int | None = None,
    dropout: float = 0.0,
) -> SentenceTransformer:
    """Build a student whose vectors have the width of its targets, and length one where those have it.

    Args:
        spec: a student kind with its argument, a folder, an alias or a hub id.
        contract: the teacher's contract; of several teachers, the first one's.
        live_teacher: loads the teacher; called only for students that are built from it.
        options: seed, texts and notes; see ``StudentOptions``.
        dimension: width of targets that are combined or projected, and so have length one; default: the
            targets are the teacher's own vectors.
        classifier: the vectors are read by a classifier, and so are not scaled; ``alone``: nothing else is
            trained on, so they need not have the width of the targets.
        head: ``auto`` adds a linear head where widths differ, ``linear`` always, ``tanh`` one followed by a
            tanh (ConGen, section 4.2), ``none`` never.
        pooling: of a student that is not built from its teacher; default: as its folder says, else ``mean``.
        max_length: tokens after which a text is cut; default: as the teacher, or as the student can take.
        dropout: probability used everywhere in training; the saved config keeps the model's own.

    Returns:
        The model on the CPU, gradients on: [transformer, pooling, (head), (normalise)]; a static one begins
        with its table in place of the first two.

    Raises:
        StudentError: if the spec is invalid, a setting does not apply to it, or widths differ and ``head`` is
            ``none``.
    """
    from sentence_transformers.base.modules import Normalize

    options = options or StudentOptions()
    full, positions = 0, contract.max_length
    if is_from_teacher(spec):
        if pooling is not None:
            raise StudentError(f"{spec!r} has its teacher's pooling: leave out --pooling", "student.pooling")
        try:
            parsed = parse_spec(spec)
            teacher = live_teacher()
            full = count_parameters(teacher.model)
            teacher.model.cpu()
            merge_adapter(teacher.model)
            model = parsed.build(teacher, options)
        except StudentError as error:
            raise StudentError(f"student {spec!r}: {error}") from error
    else:
        loaded = _load(spec, pooling)
        model, positions = loaded.model, loaded.contract.max_length
    _prepare(model, dropout)
    width = dimension or contract.dimension
    # The teacher scales its vectors, then truncates them.
    is_cut = spec.startswith("layers:") and contract.truncate_dim == width and head == "auto"
    if not is_cut or classifier is not None:
        _drop_normalize(model)
    _add_head(model, _width(model) if classifier == "alone" else width, head, options.seed)
    if is_cut and hasattr(model[-1], _ADDED):
        _lead(model[-1].linear)
    if (dimension or contract.is_unit_length) and classifier is None:
        model.append(Normalize())
    _set_length(model, spec, max_length, contract.max_length, positions)
    if full and not spec.startswith("layers:"):
        own = count_parameters(model)
        options.on_note(f"{own / 1e6:.2f} M parameters, {own / full:.1%} of the teacher's {full / 1e6:.2f} M")
    return model


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
    """Open a model to train it further, without a teacher whose vectors it has to fit.

    Args:
        spec: a folder, an alias or a hub id.
        head: a linear head of the model's own width, before vectors are scaled.
        pooling: default: as the folder says, else ``mean``.
        layers: layers to keep, as of ``distill.students.layers.parse_layers``; default: all.
        max_length: tokens after which a text is cut; default, and at most: as the model does.
        scaled: scale vectors to length one where the model does; a classifier reads them unscaled.
        dropout, seed: as ``build_student``.

    Returns:
        The model on the CPU, gradients on, and the contract of the vectors of the model as it was.

    Raises:
        StudentError: if it cannot be loaded.
    """
    from sentence_transformers.base.modules import Normalize

    loaded = _load(spec, pooling)
    contract = loaded.contract
    model = loaded.model if layers is None else keep_layers(loaded.model, layers)
    _prepare(model, dropout)
    if head != "none" or not scaled:
        _drop_normalize(model)
    if head != "none":
        _add_head(model, _width(model), head, seed)
        if contract.normalize and scaled:
            model.append(Normalize())
    _set_length(model, spec, max_length, contract.max_length, contract.max_length)
    return model, contract


def _load(spec: str, pooling: str | None) -> Teacher:
    # Checked before aliases are resolved: a hub id that an alias stands for is not mistyped.
    if missing := describe_missing(spec):
        raise StudentError(f"student: {missing}")
    if spec in KINDS:
        raise StudentError(f"student {spec!r} is built from the teacher: write {KINDS[spec].form}")
    spec = ALIASES.get(spec, spec)
    if is_served(spec):
        raise StudentError(f"student {spec!r} is behind a server: give a folder, an alias or a hub id")
    try:
        try:
            return load_teacher(spec, pooling=pooling, device="cpu")
        except PoolingNeededError:
            # A student is trained afterwards, so the mean is a choice and not a guess.
            return load_teacher(spec, pooling="mean", device="cpu")
    except TeacherError as error:
        near = difflib.get_close_matches(spec, ALIASES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        more = "" if "/" in spec else "; 'distill list students' shows what is built from the teacher"
        raise StudentError(f"student {spec!r}: {hint}{error}{more}") from error


def _prepare(model: SentenceTransformer, dropout: float) -> None:
    """Make a model ready for training: whole vectors, in float32, with gradients and dropout."""
    model.requires_grad_(True)
    model.truncate_dim = None
    # Weights stored in half precision are too coarse to add small updates to.
    model.float()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        # Some attention layers hold a number instead of a module.
        for name in ("attention_dropout", "attention_probs_dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, dropout)


def _width(model: SentenceTransformer) -> int:
    return int(model.get_embedding_dimension() or 0)


def _drop_normalize(model: SentenceTransformer) -> None:
    for name, module in reversed(list(model.named_children())):
        if type(module).__name__ == "Normalize":
            del model[int(name)]


def _add_head(model: SentenceTransformer, dimension: int, head: Head, seed: int) -> None:
    from sentence_transformers.base.modules import Dense

    width = _width(model)
    if width != dimension and head == "none":
        raise StudentError(
            f"the student's vectors have {width} dimensions, its targets {dimension}: use --head=linear "
            f"(or auto), or a student of width {dimension}"
        )
    if head in ("linear", "tanh") or width != dimension:
        activation = nn.Tanh() if head == "tanh" else nn.Identity()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            added = Dense(width, dimension, bias=True, activation_function=activation)
        setattr(added, _ADDED, True)
        model.append(added)


def _lead(linear: nn.Linear) -> None:
    """Make a head return the leading dimensions of its input."""
    with torch.no_grad():
        linear.weight.copy_(torch.eye(*linear.weight.shape))
        linear.bias.zero_()


def _set_length(
    model: SentenceTransformer, spec: str, asked: int | None, teacher: int, positions: int
) -> None:
    if is_static(model):
        if asked is not None:
            raise StudentError(f"student.max_length {asked}: {spec!r} reads whole texts; leave it out")
        return
    if asked is not None and positions and asked > positions:
        raise StudentError(f"student.max_length {asked}: {spec!r} takes at most {positions} tokens")
    model.max_seq_length = min([n for n in (asked or teacher, positions) if n], default=_LONGEST)


def without_head(model: SentenceTransformer) -> SentenceTransformer:
    """Return ``model`` without the head that was added here: the same modules, shared.

    Dense layers that the model came with stay.

    Raises:
        StudentError: if no head was added.
    """
    from sentence_transformers import SentenceTransformer

    modules = [module for module in model if not hasattr(module, _ADDED)]
    if len(modules) == len(model):
        raise StudentError(
            "no head was added to this student; leave it out, or use --head=linear", "student.drop_head"
        )
    bare = SentenceTransformer(modules=modules, device=str(model.device))
    bare.prompts, bare.default_prompt_name = {}, None
    if not is_static(model):
        bare.max_seq_length = model.max_seq_length
    return bare


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def forward(
    model: SentenceTransformer, input_ids: Tensor, attention_mask: Tensor, token_types: Tensor | None = None
) -> Tensor:
    """Return the sentence vectors (B, d) of padded token ids (B, T).

    Args:
        model: the model.
        input_ids, attention_mask: int64, shape (B, T).
        token_types: int64, shape (B, T); 1 on the second texts of pairs; None where all are 0, or the model
            does not read them.
    """
    features = {"input_ids": input_ids, "attention_mask": attention_mask}
    if token_types is not None:
        features["token_type_ids"] = token_types
    features = model(flat_features(input_ids, attention_mask) if is_static(model) else features)
    vectors: Tensor = features["sentence_embedding"]
    return vectors
