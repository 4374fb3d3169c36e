"""A knowledge base from a cache: made, and added to later, without training anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distill.errors import ConfigError, DataError
from distill.knowledge_base.base import KnowledgeBase, read_base, refuse_replacing
from distill.knowledge_base.effort import Effort, settle_effort
from distill.knowledge_base.header import Header, read_header
from distill.knowledge_base.index import IndexSettings, NeighbourIndex
from distill.knowledge_base.rows import BaseRows, find_origin, known_vectors, read_rows
from distill.knowledge_base.student import (
    ClassifierFolder,
    load_student,
    open_folder,
    refuse_other_encoder,
    refuse_other_origin,
)
from distill.layout import KNOWLEDGE_BASE
from embedcache.cache import Cache
from embedcache.errors import CorruptCacheError
from embedcache.keys import first_occurrences, key_array

if TYPE_CHECKING:
    from embedcache.cache import CachedTeacher
    from embedcache.corpus.corpus import Corpus

OnStep = Callable[[str, int, int], None]
"""Told what is done, how many rows of it are, and how many there are."""


@dataclass(frozen=True)
class Built:
    """A knowledge base that was written.

    Attributes:
        folder: its folder.
        base: what is in it.
        added: rows that went in now.
        repeated: rows left out because their text stands earlier in the corpus.
        held_out: rows left out because the run held them out, for beta and k to be chosen on.
        known: rows left out because they were in already.
        effort: how long a search has to be, where that was found out now, on rows held out.
        replaced: the header of a base that was there before, and is gone; None where there was none.
    """

    folder: Path
    base: KnowledgeBase
    added: int
    repeated: int
    held_out: int
    known: int = 0
    effort: Effort | None = None
    replaced: Header | None = None


def build_base(
    model: str | Path,
    cache: str | Path,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    settings: IndexSettings | None = None,
    texts: bool = False,
    tau: float | None = None,
    overwrite: bool = False,
    on_step: OnStep | None = None,
) -> Built:
    """Make the knowledge base of a student and write it into its folder.

    Args:
        model: the student: a run, or a model folder with a classifier.
        cache: the cache with the teacher's vectors and logits.
        corpus: default: the one the run names, or the only one.
        teacher: the teacher whose vectors to take; default: the one the run names.
        settings: of the index.
        texts: whether to keep the texts, so that neighbours can be shown.
        tau: temperature of neighbours' weights; default: as the run's, else 0.07.
        overwrite: whether a base that is there may be replaced.
        on_step: told how far it is.

    Raises:
        ConfigError: if there is a base already, ``tau`` is not above 0, or nobody says with which teacher the
            student was trained.
        DataError: if the teacher, its projection or its labels are not the student's, or vectors are missing.
        InputError: if there is no such corpus or teacher.
        StorageError: if it cannot be written.
    """
    if tau is not None and not (math.isfinite(tau) and tau > 0):
        raise ConfigError(f"--tau {tau:g}: expected a number above 0; the paper's is 0.07")
    student = open_folder(model)
    if not overwrite:
        refuse_replacing(student.folder)
    opened = Cache(cache)
    trained = student.trained_on
    if teacher is None and trained is None:
        raise ConfigError(
            f"{student.title} was taught by 'distill teach', so its base is one of its own vectors: name it, "
            "as the cache calls it, with --teacher"
            if student.is_taught
            else f"nobody says with which teacher {student.title} was trained, it is of no 'distill run': "
            "name it with --teacher"
        )
    # By its contract: a teacher may have had another name in another cache.
    chosen = _teacher(opened, teacher or (trained[1].id if trained else ""), trained[0] if trained else "")
    found = opened.corpus(corpus) if corpus is not None else student.find_corpus(opened)
    origin, logits = find_origin(opened, chosen)
    what = f"teacher {chosen.name!r} in {opened.folder}"
    refuse_other_origin(student, origin, chosen.contract.dimension, what)
    if student.asks_its_own(origin):
        refuse_other_encoder(student, origin, load_student(student.folder, "cpu").contract, what)
    held_out = key_array(student.held_out())
    rows = read_rows(opened, found, chosen, logits, held_out, texts=texts)
    _refuse_none(rows, found)

    def told(done: int, total: int) -> None:
        if on_step is not None:
            on_step("linked", done, total)

    index = NeighbourIndex.build(rows.vectors, settings or IndexSettings(), told)
    effort = None
    if index.settings.ef_search is None:
        effort = settle_effort(index, known_vectors(opened, chosen.contract, held_out))
    base = KnowledgeBase(
        origin=origin,
        index=index,
        soft_labels=rows.soft_labels,
        keys=rows.keys,
        tau=student.tau if tau is None else tau,
        corpora=(_entry(found, len(rows.keys)),),
        texts=rows.texts,
    )
    replaced = _readable_header(student.folder)
    folder = base.write(student.folder, overwrite=overwrite)
    return Built(folder, base, len(base), rows.repeated, rows.left_out, effort=effort, replaced=replaced)


def add_rows(
    model: str | Path, cache: str | Path, *, corpus: str | None = None, on_step: OnStep | None = None
) -> Built:
    """Add the rows of another corpus to a student's knowledge base; those that are in it already stay as is.

    Rows that the run held out are left out here as well. Beta and k stay as they were chosen. How long a
    search has to be is measured again, unless it was asked for, where the cache has vectors of enough rows
    that were held out.

    Args:
        model: the student.
        cache: the cache with vectors and logits of the same teacher for the corpus.
        corpus: default: the only one of the cache.
        on_step: told how far it is.

    Raises:
        DataError: if there is no base, the cache's teacher is not the base's, vectors are missing, or other
            rows were put into the base meanwhile.
        InputError: if there is no such corpus, or the cache does not hold the teacher.
        StorageError: if it cannot be written; what was there before stays.
    """
    student = open_folder(model)
    base = require_base(student)
    # Of the base as it is now: rows are added to its index below.
    before = base.header
    opened = Cache(cache)
    teacher = _teacher(opened, base.origin.contract, base.origin.teacher)
    origin, logits = find_origin(opened, teacher)
    if (origin.logits, origin.labels) != (base.origin.logits, base.origin.labels):
        raise DataError(
            f"another classifier: the base's soft labels are of contract {base.origin.logits[:12]}, those in "
            f"{opened.folder} of {origin.logits[:12]}: build the base anew with 'distill kb build'"
        )
    found = opened.corpus(corpus)
    held_out = key_array(student.held_out())
    without = np.concatenate([base.keys, held_out])
    rows = read_rows(opened, found, teacher, logits, without, texts=base.texts is not None)
    _refuse_none(rows, found)
    keys = found.keys()
    there = int(base.holds(keys[first_occurrences([keys])]).sum())

    def told(done: int, total: int) -> None:
        if on_step is not None:
            on_step("linked", done, total)

    base.index.add(rows.vectors, told)
    effort = None
    if base.index.settings.is_settled:
        effort = settle_effort(base.index, known_vectors(opened, teacher.contract, held_out))
    grown = replace(
        base,
        soft_labels=np.concatenate([base.soft_labels, rows.soft_labels]),
        keys=np.concatenate([base.keys, rows.keys]),
        corpora=(*base.corpora, _entry(found, len(rows.keys))),
        texts=None if base.texts is None or rows.texts is None else base.texts + rows.texts,
    )
    grown = grown.write_grown(student.folder, before)
    left_out = rows.left_out - there
    return Built(
        student.folder / KNOWLEDGE_BASE, grown, len(rows.keys), rows.repeated, left_out, there, effort
    )


def _readable_header(model: Path) -> Header | None:
    try:
        return read_header(model)
    except CorruptCacheError:
        # A damaged base is what one builds anew for.
        return None


def require_base(student: ClassifierFolder) -> KnowledgeBase:
    """Return the knowledge base of a student.

    Raises:
        DataError: if there is none, or it is not one that the student can ask.
        CorruptCacheError: if it is damaged.
    """
    require_header(student)
    base = read_base(student.folder)
    # What the header says is so of one that could be read; None is one that was deleted meanwhile.
    if base is None:
        raise DataError(f"{student.title} has no knowledge base any more: make one with 'distill kb build'")
    return base


def require_header(student: ClassifierFolder) -> Header:
    """Return the header of a student's knowledge base; the vectors are not read.

    Raises:
        DataError, CorruptCacheError: as :func:`require_base`, but for damage of other files.
    """
    header = read_header(student.folder)
    if header is None:
        raise DataError(f"{student.title} has no knowledge base: make one with 'distill kb build'")
    what = f"the knowledge base in {student.folder}"
    refuse_other_origin(student, header.origin, header.dimension, what)
    return header


def _teacher(cache: Cache, wanted: str, name: str) -> CachedTeacher:
    names = {teacher.contract.id for teacher in cache.teachers()}
    if len(wanted) == 64 and wanted not in names:
        held = ", ".join(teacher.name for teacher in cache.teachers()) or "none"
        raise DataError(
            f"{cache.folder} does not hold the teacher {name!r} (contract {wanted[:12]}) that the student "
            f"was trained with; it holds {held}"
        )
    return cache.teacher(wanted)


def _entry(corpus: Corpus, rows: int) -> dict[str, object]:
    return {"name": corpus.name, "digest": corpus.info.digest, "rows": rows}


def _refuse_none(rows: BaseRows, corpus: Corpus) -> None:
    if not len(rows.keys):
        raise DataError(
            f"{corpus.title} has no row for the knowledge base: {rows.left_out} of its texts are in it "
            "already or were held out"
        )
