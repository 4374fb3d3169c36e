"""A classifier's folder, and whether a knowledge base is one that its student can ask.

A student asks with its own vectors for its teacher's projected ones. Those of another teacher, or of another
projection of the same, lie in a space that it has never seen, and their soft labels may be of other labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import ConfigError, DataError
from distill.layout import BEST, CONFIG, HELD_OUT, describe_missing, describe_unfinished
from distill.reaugkd.soft_labels import encoder_of, module_entry
from distill.record import run_folder
from embedcache.contract import Contract, describe_differences
from embedcache.teacher.classifier import ClassifierHead

if TYPE_CHECKING:
    from distill.knowledge_base.header import Origin
    from embedcache.cache import Cache
    from embedcache.corpus.corpus import Corpus
    from embedcache.teacher.load import Teacher

DEFAULT_TAU = 0.07
"""The temperature of neighbours where no run says with which one its student was trained."""

_NEVER_NEAR = {
    "kd": "it compares no vectors",
    "rkd-kd": "it compares distances and angles among rows, which are the same wherever the rows lie",
}
"""Losses of classifiers whose vectors never come to lie near their teacher's, and why."""


@dataclass(frozen=True)
class ClassifierFolder:
    """A model folder with a classifier, and what its run says of it.

    Attributes:
        folder: the model's folder.
        head: its classifier.
        run: the run it lies in; None for a folder of its own.
        record: that run's record; empty without one.
    """

    folder: Path
    head: ClassifierHead
    run: Path | None
    record: dict[str, Any]

    @property
    def title(self) -> str:
        """What messages call it."""
        return str(self.run or self.folder)

    @property
    def trained_on(self) -> tuple[str, Contract] | None:
        """Name and contract of the teacher it was trained on; None where nobody says."""
        teacher = self.record.get("teacher")
        if not isinstance(teacher, dict) or not teacher.get("contract"):
            return None
        return str(teacher.get("name")), Contract.from_json(teacher["contract"])

    @property
    def is_taught(self) -> bool:
        """Whether ``distill teach`` made it, without a teacher: its vectors lie in a space of its own."""
        from distill.classification.config import KIND

        return self.record.get("kind") == KIND

    @property
    def corpus(self) -> str | None:
        """Name of the corpus it was trained on; None where nobody says."""
        return self._of_corpus("name")

    @property
    def corpus_digest(self) -> str | None:
        """Digest of that corpus as it was then; None where nobody says."""
        # A taught classifier has seen a file, not a corpus; its digest is another.
        return None if self.is_taught else self._of_corpus("digest")

    def find_corpus(self, cache: Cache) -> Corpus:
        """Return the corpus it was trained on, whatever a cache calls it, else what is called so now.

        One that was taught has read a file, after which no corpus need be called: then it is the only one.

        Raises:
            InputError: if the cache holds neither, or several and nobody says which it was.
        """
        for corpus in sorted(cache.corpora(), key=lambda one: one.name != self.corpus):
            if corpus.info.digest == self.corpus_digest:
                return corpus
        is_a_files = self.is_taught and self.corpus not in cache.corpus_names()
        return cache.corpus(None if is_a_files else self.corpus)

    def asks_its_own(self, origin: Origin) -> bool:
        """Return whether vectors are the classifier's own and it was trained to come near no others."""
        return origin.classifier == self.head.digest and self.trained_on is None

    @property
    def tau(self) -> float:
        """The temperature it was trained with; :data:`DEFAULT_TAU` where nobody says."""
        if self.run is None or not (self.run / CONFIG).is_file():
            return DEFAULT_TAU
        import yaml

        config = yaml.safe_load((self.run / CONFIG).read_text(encoding="utf-8"))
        loss = config.get("loss", {})
        # The tau of other losses is no temperature of neighbours.
        return float(loss["tau"]) if loss.get("name") == "reaugkd" and loss.get("tau") else DEFAULT_TAU

    def held_out(self) -> list[str]:
        """Return the texts that were kept out of its training; none where nobody says."""
        if self.run is None or not (self.run / HELD_OUT).is_file():
            return []
        # Not splitlines, which also cuts at line ends of other scripts that a text may hold.
        lines = (self.run / HELD_OUT).read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    def _of_corpus(self, key: str) -> str | None:
        corpus = self.record.get("corpus")
        value = corpus.get(key) if isinstance(corpus, dict) else None
        return value if isinstance(value, str) and value else None


def open_folder(spec: str | Path) -> ClassifierFolder:
    """Return the classifier's folder that ``spec`` means: a run (its ``best/``) or a folder.

    Raises:
        ConfigError: if there is no such folder.
        DataError: if it holds no classifier, or its run's record is damaged.
        CorruptCacheError: if the classifier is damaged.
    """
    from distill.record import read_record

    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    if run and not folder.is_dir():
        raise DataError(describe_unfinished(run))
    if not folder.is_dir():
        raise ConfigError(describe_missing(str(spec)) or f"there is no folder {folder}: check the path")
    head = ClassifierHead.read(folder)
    if head is None:
        raise DataError(
            f"{folder} holds no classifier: give a model that 'distill teach' made, or 'distill run' with "
            "--loss kd or reaugkd"
        )
    record = read_record(run) if run else None
    if run and record is None:
        raise DataError(f"the record of the run {run} is damaged: copy {folder} elsewhere and name the copy")
    facts = {} if record is None else record.model_dump(mode="json")
    return ClassifierFolder(folder.resolve(), head, run, facts)


def load_student(folder: Path, device: str = "auto") -> Teacher:
    """Return a student's encoder as its folder describes it.

    Raises:
        TeacherError: if the model cannot be loaded.
    """
    from embedcache.teacher.load import load_teacher

    return load_teacher(folder, name="student", device=device)


def refuse_other_encoder(student: ClassifierFolder, origin: Origin, contract: Contract, what: str) -> None:
    """See that a classifier's own vectors are what it gives when it is opened.

    The same classifier may have been put into a cache with another pooling, prompt or length of texts: such
    vectors lie elsewhere than those it searches with.

    Args:
        student: the classifier.
        origin: whose vectors and labels the base has.
        contract: that of the classifier's vectors, see :func:`load_student`.
        what: what messages call the base, or what it is to be made of.

    Raises:
        DataError: if the vectors are its own and were given otherwise; it says how.
    """
    # Of a base that an older version made nobody says how its vectors were given.
    if origin.encoder is None or not student.asks_its_own(origin):
        return
    own = encoder_of(contract)
    others = {name: (value, origin.encoder.get(name)) for name, value in own.items()}
    if others := {name: pair for name, pair in others.items() if pair[0] != pair[1]}:
        raise DataError(
            f"its own vectors, but given otherwise: {what} has those of {origin.teacher!r}, which differ "
            f"from what {student.title} searches with ({describe_differences(others)}): put them into a "
            f"cache with 'embedcache build --teacher {student.folder} --output embedding,logits' and no "
            "other setting of the teacher, and name them with --teacher"
        )


def refuse_other_origin(student: ClassifierFolder, origin: Origin, dimension: int, what: str) -> None:
    """See that a student can ask a knowledge base.

    One whose run says that its loss brought its vectors nowhere near a teacher's can ask none: what it found
    would be neighbours by accident.

    Args:
        student: the student.
        origin: whose vectors and labels the base has.
        dimension: width of its vectors.
        what: what messages call the base, or what it is to be made of.

    Raises:
        DataError: if it is of another label set, another teacher or another projection than the student was
            trained with, or of another width; it says which. Also if the student can ask none, or it is a
            classifier that was taught and the vectors are not its own.
    """
    loss = student.record.get("loss")
    if loss in _NEVER_NEAR:
        raise DataError(
            f"no loss for neighbours: the student {student.title} was trained with {loss}, and "
            f"{_NEVER_NEAR[loss]}, so its vectors do not lie near its teacher's and would find neighbours by "
            "accident: train one with 'distill run --loss reaugkd'"
        )
    if origin.labels != student.head.labels:
        raise DataError(
            f"another label set: {what} has the labels {_listed(origin.labels)}, the student {student.title} "
            f"{_listed(student.head.labels)}: use a base of the teacher that the student was trained with"
        )
    _refuse_other_space(student, origin, what)
    if (trained := student.trained_on) is not None and trained[1].id != origin.contract:
        name, contract = trained
        of = _how_other(contract, origin)
        raise DataError(
            f"{of}: {what} has the vectors of {origin.teacher!r} (contract {origin.contract[:12]}), the "
            f"student {student.title} was trained with {name!r} (contract {contract.id[:12]}): give that one "
            "with --teacher, or train a student with this one"
        )
    if dimension != student.head.dimension:
        raise DataError(
            f"another width: {what} has vectors of {dimension} numbers, the student {student.title} gives "
            f"{student.head.dimension}: project the teacher to that width with 'distill project --dim "
            f"{student.head.dimension}'"
        )


def _refuse_other_space(student: ClassifierFolder, origin: Origin, what: str) -> None:
    """See that a classifier that is its own teacher asks for vectors of its own, as it gives them."""
    # Of a base that an older version made nobody says whose classifier it was.
    if origin.classifier is None or student.trained_on is not None:
        return
    is_own = origin.classifier == student.head.digest
    if is_own and origin.projection is not None:
        raise DataError(
            f"a projection of its own vectors: {what} has those of {origin.teacher!r}, a projection of what "
            f"{student.title} itself gives, which searches with its vectors as they are: name the teacher "
            "without its projection with --teacher, or train a student on the projected one with "
            "'distill run --loss reaugkd'"
        )
    if student.is_taught and not is_own:
        raise DataError(
            f"another classifier: {what} has the vectors and the answers of {origin.teacher!r}, and "
            f"{student.title} was taught by 'distill teach', without a teacher, so only its own vectors lie "
            f"in its space: put them into a cache with 'embedcache build --teacher {student.folder} --output "
            "embedding,logits' and name them with --teacher"
        )


def _how_other(trained: Contract, origin: Origin) -> str:
    """Return in words how the vectors of ``origin`` differ from those a student was trained with."""
    projection = module_entry(trained, "Projection")
    if projection is None:
        return "a projection of the same teacher" if origin.base == trained.id else "another teacher"
    if projection["of"] == origin.contract:
        return "the same teacher without its projection"
    return "another projection of the same teacher" if projection["of"] == origin.base else "another teacher"


def _listed(labels: tuple[str, ...]) -> str:
    shown = ", ".join(repr(label) for label in labels[:5])
    return shown + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
