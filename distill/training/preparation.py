"""Student and objective of a distillation, made from a cache and a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray

from distill.config.models import RunConfig
from distill.data.dataset import DistillDataset
from distill.data.labelled import FEWEST_SCORED, LabelledRows, label_numbers
from distill.data.tokens import TokenArrays, tokenise_corpus
from distill.device import seeded
from distill.evaluation.pairs import PairSet
from distill.losses.registry import get_loss
from distill.reaugkd.head import LabelHead
from distill.reaugkd.soft_labels import base_teacher
from distill.students.build import build_student
from distill.students.spec import StudentOptions
from distill.training.intermediate import ClassOutputs, HiddenStates, Inside, TokenEmbeddings
from distill.training.objectives import Distillation
from distill.training.selection import (
    ClassSelector,
    Selector,
    held_out_selector,
    pair_selector,
)
from distill.training.task import StudentParts, make_parts, prepared
from distill.training.tracking import OnProgress
from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.errors import TeacherError
from embedcache.pairs import what_is_read
from embedcache.teacher.load import Teacher, load_by_contract
from embedcache.teacher.tokenize import FastTokenizer

_SAMPLED = 1000


def prepare_student(
    cache: Cache,
    config: RunConfig,
    dataset: DistillDataset,
    dev: PairSet | LabelledRows | None = None,
    on_note: Callable[[str], None] = lambda note: None,
    on_progress: OnProgress | None = None,
    live_teacher: Callable[[], Teacher] | None = None,
    *,
    on_trial: bool = False,
) -> StudentParts:
    """Build the student and its selector; takes seconds, and writes nothing but token ids.

    Args:
        cache: the cache; it receives token ids where tokens have to be counted for the student.
        config: the resolved configuration.
        dataset: rows and targets.
        dev: rows to choose checkpoints on; default: those held out.
        on_note: called with sentences on how the student is made.
        on_progress: called with the rows tokenised.
        live_teacher: loads the teacher itself; default: as the configuration says.
        on_trial: as ``StudentOptions``; such a student is not for training.

    Raises:
        ConfigError, StudentError, DataError: if the student cannot be built, fed or scored.
    """
    targets, student = dataset.targets, config.student
    facts = get_loss(config.loss.name)
    reader: Literal["on targets", "alone"] | None = None
    if facts.inside == "classes":
        reader = "on targets" if facts.reads_vectors else "alone"
    view = (config.training.views or [ORIGINAL])[0]

    # Weights that a model's file lacks are drawn at random when it is loaded.
    with seeded(config.seed, torch.device("cpu")):
        model = build_student(
            student.spec,
            dataset.teacher.contract,
            live_teacher or teacher_loader(cache, config, dataset),
            StudentOptions(
                seed=config.seed,
                count_tokens=partial(count_tokens, cache, dataset, view, on_progress=on_progress),
                on_note=on_note,
                on_trial=on_trial,
            ),
            dimension=targets.dimension if targets.combination else None,
            classifier=reader,
            head=student.head,
            pooling=student.pooling,
            max_length=student.max_length,
            dropout=student.dropout,
        )
    head = None
    if dataset.soft is not None:
        width = int(model.get_embedding_dimension() or 0)
        reads = what_is_read(_sample(dataset))
        head = LabelHead(dataset.soft.names, width, dropout=student.dropout, seed=config.seed, reads=reads)
    select = partial(_make_selector, dataset, dev, head)
    return make_parts(model, student.spec, select, config.evaluation, student.drop_head, head)


def make_objective(
    cache: Cache,
    config: RunConfig,
    dataset: DistillDataset,
    student: StudentParts,
    live_teacher: Callable[[], Teacher],
    accelerator: Accelerator,
) -> Distillation:
    """Return the loss with the outputs from inside the models that it reads.

    Args:
        cache: the cache.
        config: the resolved configuration.
        dataset: rows and targets.
        student: the student.
        live_teacher: loads the teacher itself; called only for a loss that reads its layers.
        accelerator: device and precision that the student is trained in.

    Raises:
        InputError: if the loss reads the teacher's token embeddings, and the cache does not hold them.
        TeacherError, ContractMismatchError: if it reads the teacher's layers, and it cannot be loaded.
        ConfigError, StudentError: if the student does not fit the teacher's.
    """
    loss, settings, inside = get_loss(config.loss.name), config.loss.settings, list[Inside]()
    widths: tuple[Sequence[int], Sequence[int]] = ((), ())
    needs = loss.make_from.needs(settings)
    if "token table" in needs:
        table = cache.token_table(dataset.teacher)
        inside.append(TokenEmbeddings(student.model, table, settings["over"], settings["embeddings"]))
    if "live teacher" in needs:
        which: Literal["last", "spread"] = "last" if loss.inside == "tokens" else "spread"
        scaled = settings.get("scale") == "relative"
        layers = HiddenStates(
            student.model,
            live_teacher(),
            which,
            accelerator.device,
            scaled=scaled,
            autocast=accelerator.autocast,
        )
        inside.append(layers)
        widths = layers.widths
    made = loss.make(
        settings,
        dimension=dataset.targets.dimension,
        student_widths=widths[0],
        teacher_widths=widths[1],
        seed=config.seed,
    )
    if dataset.soft is not None and student.classifier is not None:
        outputs = ClassOutputs(student.classifier, dataset.soft)
        # Optimised, moved and saved as the loss's own parameters are.
        made.add_module("outputs", outputs)
        inside.append(outputs)
    return Distillation(made, dataset, inside)


def teacher_loader(cache: Cache, config: RunConfig, dataset: DistillDataset) -> Callable[[], Teacher]:
    """Return a function that loads the teacher itself: once, where it is run in training too."""
    load = partial(load_live_teacher, cache, dataset.teacher, config.teacher_model)
    # One that only the student is made from goes as soon as that is done.
    return lru_cache(load) if config.online else load


def load_live_teacher(cache: Cache, teacher: CachedTeacher, source: str | None = None) -> Teacher:
    """Load the teacher itself, and make sure it is the one whose vectors the cache holds.

    Args:
        cache: the cache.
        teacher: the cached teacher; of a derived one, the model it was derived from is loaded.
        source: alias, hub id or folder to load from; default: as it was built.

    Raises:
        TeacherError: if it cannot be found or loaded.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    teacher = base_teacher(cache, teacher)
    if teacher.contract.is_served:
        raise TeacherError(
            f"teacher {teacher.name!r} is served, and its weights are not here: name another student, "
            "such as minilm-l3, and a loss on vectors"
        )
    if teacher.contract.code is not None:
        raise TeacherError(
            f"teacher {teacher.name!r} runs its own code, and students are not made from such models: name "
            "another student, such as minilm-l3, and a loss on vectors"
        )
    noted = cache.model_source(teacher)
    remedy = "give its folder with --teacher-model"
    try:
        return load_by_contract(source or noted, teacher.contract, name=teacher.name, remedy=remedy)
    except TeacherError as error:
        if source is not None:
            raise
        raise TeacherError(
            f"the student or the loss needs the weights of teacher {teacher.name!r}, and {noted!r} cannot be "
            f"loaded on this machine ({error}): {remedy}"
        ) from error


def tokenise_view(
    cache: Cache, corpus: Corpus, view: str, tokenizer: FastTokenizer, on_progress: OnProgress | None
) -> TokenArrays:
    """Return the token ids of a view of a corpus, which the cache keeps."""
    texts = corpus if view == ORIGINAL else corpus.view(view)
    return tokenise_corpus(cache, texts, tokenizer, prepared(on_progress, len(corpus)))


def count_tokens(
    cache: Cache,
    dataset: DistillDataset,
    view: str,
    tokenizer: FastTokenizer,
    on_progress: OnProgress | None = None,
) -> NDArray[np.int64]:
    """Return the occurrences of each token in the rows to train on, int64, shape (ids of the tokenizer,).

    Args:
        cache: the cache; it keeps the token ids, as for training.
        dataset: the rows.
        view: the view of them that is counted.
        tokenizer: the tokenizer.
        on_progress: called with the rows tokenised.

    Raises:
        StorageError: if token ids cannot be written.
    """
    arrays = tokenise_view(cache, dataset.corpus, view, tokenizer, on_progress)
    return arrays.counts(dataset.rows, tokenizer.vocabulary_size)


def _make_selector(
    dataset: DistillDataset,
    dev: PairSet | LabelledRows | None,
    head: LabelHead | None,
    tokenizer: FastTokenizer,
) -> Selector | None:
    if isinstance(dev, PairSet):
        return pair_selector(dev, tokenizer)
    if head is None:
        return held_out_selector(dataset, tokenizer)
    return _class_selector(dataset, dev, head, tokenizer)


def _class_selector(
    dataset: DistillDataset, dev: LabelledRows | None, head: LabelHead, tokenizer: FastTokenizer
) -> ClassSelector | None:
    """Return the selector of a classifier; None where there are too few rows.

    It is scored on the development rows, else on the corpus's labels of held-out rows, else on the teacher's.
    """
    soft = dataset.soft
    assert soft is not None  # noqa: S101 - there is a head only where there are soft labels
    if dev is not None:
        answers = label_numbers(dev.labels, soft.names, f"evaluation.data: {dev.name}")
        return ClassSelector(tokenizer(dev.texts), answers, head, "dev")
    if len(dataset.held_out) < FEWEST_SCORED:
        return None
    places = soft.places(dataset.held_out)
    texts = tokenizer(dataset.texts(dataset.held_out))
    if soft.labels is None:
        return ClassSelector(texts, soft.logits[places].argmax(axis=1), head, "held_out", "agreement")
    return ClassSelector(texts, soft.labels[places], head, "held_out")


def _sample(dataset: DistillDataset) -> list[str]:
    """Return at most a thousand of the texts to train on, spread evenly over the rows."""
    return dataset.texts(dataset.rows[:: -(-len(dataset.rows) // _SAMPLED)])
