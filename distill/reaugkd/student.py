"""Student with a classifier: its folder, and the knowledge base that it can search.

A student searches its teacher's projected vectors with its own. Vectors of another teacher or projection lie
in another space, where its neighbours would be accidental.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import softmax

from distill.errors import ConfigError, DataError
from distill.layout import BEST, CONFIG, HELD_OUT, KNOWLEDGE_BASE, describe_missing, describe_unfinished
from distill.reaugkd.index import IndexSettings
from distill.reaugkd.knowledge_base import BaseCorpus, Header, KnowledgeBase, Origin, contains
from distill.reaugkd.soft_labels import encoder_of, find_logits, module_entry, stored_vectors
from distill.record import RunRecord, TeacherRecord, read_record, run_folder
from distill.vectors import unit
from embedcache.cache import Cache, CachedTeacher
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.folders import locked_folder
from embedcache.keys import first_occurrences, key_array
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.teacher.classifier import ClassifierHead

DEFAULT_TAU = 0.07
"""Temperature of neighbours for a student that was not trained with ``reaugkd``."""

_WITHOUT_NEIGHBOURS = ("kd", "rkd-kd", "pkd", "tinybert")
"""Losses that compare no positions of vectors: where a row lies among the teacher's is accidental."""


@dataclass(frozen=True)
class StudentFolder:
    """Model folder with a classifier, and the record of its run.

    Attributes:
        folder: the model folder.
        head: its classifier.
        run: the run it belongs to; None for a folder outside a run.
        record: record of the run; None outside a run.
    """

    folder: Path
    head: ClassifierHead
    run: Path | None = None
    record: RunRecord | None = None

    @property
    def title(self) -> str:
        """Name in messages."""
        return str(self.run or self.folder)

    @property
    def is_taught(self) -> bool:
        """Trained on labels alone, without a teacher."""
        return self.record is not None and self.record.kind != "run"

    @property
    def teacher(self) -> TeacherRecord | None:
        """Teacher whose vectors it was trained to approach; None without one."""
        return self.record.teacher if self.record is not None and not self.is_taught else None

    @property
    def tau(self) -> float:
        """Temperature of ``reaugkd`` in its training, else ``DEFAULT_TAU``."""
        import yaml

        if self.run is None or self.record is None or self.record.loss != "reaugkd":
            return DEFAULT_TAU
        config = yaml.safe_load((self.run / CONFIG).read_text(encoding="utf-8"))
        return float(config["loss"].get("tau") or DEFAULT_TAU)

    def held_out(self) -> list[str]:
        """Return the texts held out of its training; none without a record of them."""
        if self.run is None or not (self.run / HELD_OUT).is_file():
            return []
        # splitlines would also cut at line ends of other scripts inside a text.
        lines = (self.run / HELD_OUT).read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    def find_corpus(self, cache: Cache, name: str | None) -> Corpus:
        """Return a corpus by its name; without one that of its training, else the only one.

        Raises:
            InputError: if the cache has no such corpus, or several to choose from.
        """
        if name is None and self.record is not None:
            trained = self.record.corpus
            for corpus in cache.corpora():
                if corpus.info.digest == trained.digest:
                    return corpus
            name = trained.name if trained.name in cache.corpus_names() else None
        return cache.corpus(name)

    def searches_own_vectors(self, origin: Origin) -> bool:
        """Check if a base holds the student's own vectors, and it was trained to approach no others."""
        return self.teacher is None and (self.is_taught or origin.classifier == self.head.digest)

    def check(self, origin: Origin, dimension: int, where: str) -> None:
        """Refuse a knowledge base that the student cannot search.

        Args:
            origin: source of the base.
            dimension: width of its vectors.
            where: name of the base in messages.

        Raises:
            DataError: if the student's loss compares no positions of vectors, or the labels, the width, the
                teacher or the projection are not the student's; all that differs is named.
        """
        if self.record is not None and self.record.loss in _WITHOUT_NEIGHBOURS:
            raise DataError(
                f"loss {self.record.loss} of {self.title} does not bring its vectors near the teacher's, so "
                "it has no neighbours: train a student with --loss=reaugkd"
            )
        found: dict[str, object] = {"labels": origin.labels, "dimension": dimension}
        wanted: dict[str, object] = {"labels": self.head.labels, "dimension": self.head.dimension}
        remedy = f"build a base of {self.head.dimension} dimensions with the labels of the student"
        if self.teacher is not None:
            trained = Contract.from_json(self.teacher.contract)
            projection = module_entry(trained, "Projection").get("weights")
            found |= {**(origin.encoder or {}), "projection": origin.projection, "contract": origin.contract}
            wanted |= {**encoder_of(trained), "projection": projection, "contract": trained.id}
            remedy = f"use the student's teacher, {self.teacher.name!r}"
        elif self.searches_own_vectors(origin):
            found |= {"classifier": origin.classifier, "projection": origin.projection}
            wanted |= {"classifier": self.head.digest, "projection": None}
            remedy = (
                "it had no teacher and searches its own vectors: cache them with 'embedcache build --teacher "
                f"{self.folder}', once more with --output logits, and name them with --teacher"
            )
        self._refuse_differences(found, wanted, where, remedy)

    def check_encoder(self, origin: Origin, contract: Contract, where: str) -> None:
        """Refuse a base of the student's own vectors that were encoded with other settings than its folder's.

        Args:
            origin: source of the base.
            contract: contract of the student's vectors as its folder is loaded.
            where: name of the base in messages.

        Raises:
            DataError: if pooling, prompt, length or another field differs; both values are named.
        """
        if self.searches_own_vectors(origin):
            remedy = "build the vectors again without those options"
            self._refuse_differences(origin.encoder or {}, encoder_of(contract), where, remedy)

    def _refuse_differences(
        self, found: Mapping[str, object], wanted: Mapping[str, object], where: str, remedy: str
    ) -> None:
        differing = {
            name: (found[name], value) for name, value in wanted.items() if found.get(name, value) != value
        }
        if differing:
            raise DataError(
                f"{where} does not fit {self.title} ({describe_differences(differing)}): {remedy}"
            )

    def base(self) -> KnowledgeBase:
        """Return its knowledge base.

        Raises:
            DataError: if there is none, or the student cannot search it.
            CorruptCacheError: if it is damaged.
        """
        base = KnowledgeBase.read(self.folder)
        if base is None:
            raise DataError(f"{self.title} has no knowledge base: build one with 'distill kb build'")
        self.check(base.header.origin, base.header.dimension, f"the knowledge base in {self.folder}")
        return base


def open_student_folder(spec: str | Path) -> StudentFolder:
    """Open a run (its ``best/``) or a model folder with a classifier.

    Raises:
        ConfigError: if there is no such folder.
        DataError: if it holds no classifier, or its run's record is damaged.
        CorruptCacheError: if the classifier is damaged.
    """
    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    if not folder.is_dir():
        if run:
            raise DataError(describe_unfinished(run))
        raise ConfigError(describe_missing(str(spec)) or f"no folder {folder}: check the path")
    head = ClassifierHead.read(folder)
    if head is None:
        raise DataError(
            f"{folder} has no classifier: train one with 'distill finetune --labels' or --loss=kd"
        )
    record = read_record(run) if run else None
    if run and record is None:
        raise DataError(f"the record of {run} is damaged: copy {folder} elsewhere and name the copy")
    return StudentFolder(folder.resolve(), head, run, record)


@dataclass(frozen=True)
class Built:
    """Rows that were added to a knowledge base.

    Attributes:
        header: the header of the base.
        added: rows added.
        repeated: rows left out because their text occurs earlier in the corpus.
        held_out: rows left out because the run held them out.
        known: rows left out because their text is in the base.
        recall: recall of the measured ``ef_search`` on held-out rows; None if it was not measured.
    """

    header: Header
    added: int
    repeated: int
    held_out: int
    known: int
    recall: float | None


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
    progress: Progress = NO_PROGRESS,
) -> Built:
    """Build the knowledge base of a student from a cache; rows that its run held out are left out.

    Args:
        model: a run, or a model folder with a classifier.
        cache: cache with the teacher's vectors and logits.
        corpus, teacher: names; default: those of the run.
        settings: settings of the graph.
        texts: keep the texts, so that neighbours can be shown.
        tau: temperature of the neighbours' weights; default: that of the student's training, else 0.07.
        overwrite: replace an earlier base.
        progress: progress over the rows.

    Raises:
        ConfigError: if there is a base already, or no teacher is known.
        DataError: if the teacher's vectors are not those the student searches, or vectors are missing.
        InputError: if there is no such corpus or teacher.
        StorageError: if it cannot be written.
    """
    student, opened = open_student_folder(model), Cache(cache)
    with locked_folder(student.folder):
        target = student.folder / KNOWLEDGE_BASE
        if target.exists() and not overwrite:
            raise ConfigError(f"{target} exists: add to it with 'distill kb add', or use --overwrite")
        if teacher is not None:
            found = opened.teacher(teacher)
        elif student.teacher is not None:
            found = _teacher(opened, student.teacher.name, student.teacher.contract_id)
        else:
            raise ConfigError(f"{student.title} was trained without a teacher: name one with --teacher")
        logits, _ = find_logits(opened, found)
        origin = Origin.of(found.name, found.contract, logits.contract)
        student.check(origin, found.contract.dimension, f"teacher {found.name!r} in {opened.folder}")
        header = Header(
            rows=0,
            dimension=found.contract.dimension,
            origin=origin,
            index=settings or IndexSettings(),
            tau=student.tau if tau is None else tau,
            texts=texts,
        )
        source = student.find_corpus(opened, corpus)
        return _extend(student, KnowledgeBase.empty(header), opened, source, found, logits, progress)


def add_rows(
    model: str | Path, cache: str | Path, *, corpus: str | None = None, progress: Progress = NO_PROGRESS
) -> Built:
    """Add another corpus to a student's knowledge base; k and beta stay.

    Texts in the base and those that the run held out are left out. ``ef_search`` is measured again if it was
    measured before and the cache has vectors of enough held-out rows.

    Args:
        model: the student.
        cache: cache with vectors and logits of the base's teacher.
        corpus: name; default: the only one.
        progress: progress over the rows.

    Raises:
        DataError: if there is no base, its teacher or classifier is another, or vectors are missing.
        InputError: if there is no such corpus.
        StorageError: if it cannot be written; the base stays as it was.
    """
    student, opened = open_student_folder(model), Cache(cache)
    with locked_folder(student.folder):
        base = student.base()
        origin = base.header.origin
        teacher = _teacher(opened, origin.teacher, origin.contract)
        logits, _ = find_logits(opened, teacher)
        if logits.contract.id != origin.logits:
            raise DataError(
                f"another classifier: the base has soft labels of contract {origin.logits[:12]}, "
                f"{opened.folder} has {logits.contract.id[:12]}: build the base again with 'distill kb build'"
            )
        return _extend(student, base, opened, opened.corpus(corpus), teacher, logits, progress)


def _teacher(cache: Cache, name: str, contract: str) -> CachedTeacher:
    """Find a teacher by its contract: another cache may have it under another name."""
    for teacher in cache.teachers():
        if teacher.contract.id == contract:
            return teacher
    names = ", ".join(teacher.name for teacher in cache.teachers()) or "none"
    raise DataError(f"{cache.folder} has no teacher {name!r} of contract {contract[:12]}; it has {names}")


def _extend(
    student: StudentFolder,
    base: KnowledgeBase,
    cache: Cache,
    corpus: Corpus,
    teacher: CachedTeacher,
    logits: CachedTeacher,
    progress: Progress,
) -> Built:
    """Add the rows of a corpus to a base and write it."""
    held_out, keys = key_array(student.held_out()), corpus.keys()
    first = first_occurrences([keys])
    held = first & contains(held_out, keys)
    known = first & ~held & base.holds(keys)
    rows = np.flatnonzero(first & ~held & ~known)
    if not len(rows):
        raise DataError(f"{corpus.title} has no new row: all are in the knowledge base or were held out")
    vectors, said = (stored_vectors(cache, one, keys[rows], corpus) for one in (teacher, logits))
    soft = softmax(said.astype(np.float64), axis=1).astype(np.float32)
    # Codecs store a unit vector as one of nearly unit length.
    base.index.add(unit(vectors), progress)
    recall = None
    if base.index.settings.ef_search is None or base.index.settings.is_settled:
        store = cache.store(teacher.contract)
        places = store.locate(held_out)
        recall = base.index.settle(unit(store.vectors(places[places >= 0])))
    entry = BaseCorpus(name=corpus.name, digest=corpus.info.digest, rows=len(rows))
    grown = replace(
        base,
        header=base.header.model_copy(update={"corpora": (*base.header.corpora, entry)}),
        soft_labels=np.concatenate([base.soft_labels, soft]),
        keys=np.concatenate([base.keys, keys[rows]]),
        texts=None if base.texts is None else (*base.texts, *corpus.texts(rows)),
    )
    return Built(
        header=grown.write(student.folder).header,
        added=len(rows),
        repeated=len(keys) - int(first.sum()),
        held_out=int(held.sum()),
        known=int(known.sum()),
        recall=recall,
    )
