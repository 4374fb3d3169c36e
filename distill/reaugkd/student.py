"""A student's folder with a classifier, and the knowledge bases that it can search.

A student searches its teacher's projected vectors with its own. Vectors of another teacher or projection lie
in another space, where its neighbours would be accidental.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from distill.errors import ConfigError, DataError
from distill.layout import BEST, CONFIG, HELD_OUT, describe_missing, describe_unfinished
from distill.reaugkd.soft_labels import encoder_of, find_logits, module_entry
from distill.record import RunRecord, read_record, run_folder
from embedcache.cache import Cache, CachedTeacher
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.teacher.classifier import ClassifierHead

DEFAULT_TAU = 0.07
"""Temperature of neighbours for a student that was not trained with ``reaugkd``."""

_NO_NEIGHBOURS = {
    "kd": "it compares no vectors",
    "rkd-kd": "it compares distances and angles among rows, which do not depend on where the rows lie",
}


class Origin(BaseModel):
    """Source of a knowledge base's vectors and soft labels, as its header holds it.

    Attributes:
        teacher: name of the teacher of the vectors.
        contract: id of its contract.
        base: id of the contract that was projected; None for unprojected vectors.
        projection: sha256 of the projection's weights; None for unprojected vectors.
        logits: id of the contract of the logits.
        labels: names of the labels, in the order of the soft labels.
        classifier: digest of the classifier that gave the logits; None in a base of an older version.
        encoder: fields of the vectors' contract, see :func:`distill.reaugkd.soft_labels.encoder_of`; None in
            a base of an older version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    teacher: str
    contract: str
    base: str | None
    projection: str | None
    logits: str
    labels: tuple[str, ...]
    classifier: str | None = None
    encoder: dict[str, Any] | None = None

    @classmethod
    def find(cls, cache: Cache, teacher: CachedTeacher) -> tuple[Origin, CachedTeacher]:
        """Return the origin of a teacher's vectors, and the teacher of its logits.

        Raises:
            DataError: as :func:`distill.reaugkd.soft_labels.find_logits`.
        """
        logits, labels = find_logits(cache, teacher)
        projection = module_entry(teacher.contract, "Projection") or {}
        origin = cls(
            teacher=teacher.name,
            contract=teacher.contract.id,
            base=projection.get("of"),
            projection=projection.get("weights"),
            logits=logits.contract.id,
            labels=labels,
            classifier=(module_entry(logits.contract, "Classifier") or {})["weights"],
            encoder=encoder_of(teacher.contract),
        )
        return origin, logits


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
    run: Path | None
    record: RunRecord | None

    @property
    def title(self) -> str:
        """Name in messages."""
        return str(self.run or self.folder)

    @property
    def teacher(self) -> tuple[str, Contract] | None:
        """Name and contract of the teacher whose vectors it was trained to approach; None without one."""
        if self.record is None or self.is_taught or self.record.teacher is None:
            return None
        return self.record.teacher.name, Contract.from_json(self.record.teacher.contract)

    @property
    def is_taught(self) -> bool:
        """Trained on labels alone, without a teacher."""
        return self.record is not None and self.record.kind != "run"

    @property
    def tau(self) -> float:
        """Temperature of ``reaugkd`` in its training, else :data:`DEFAULT_TAU`."""
        if self.run is None or not (self.run / CONFIG).is_file():
            return DEFAULT_TAU
        import yaml

        loss = yaml.safe_load((self.run / CONFIG).read_text(encoding="utf-8")).get("loss", {})
        return float(loss.get("tau") or DEFAULT_TAU) if loss.get("name") == "reaugkd" else DEFAULT_TAU

    def held_out(self) -> list[str]:
        """Return the texts held out of its training; none without a record of them."""
        if self.run is None or not (self.run / HELD_OUT).is_file():
            return []
        # splitlines would also cut at line ends of other scripts inside a text.
        lines = (self.run / HELD_OUT).read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    def find_corpus(self, cache: Cache) -> Corpus:
        """Return the corpus it was trained on, by its digest, else by its name.

        For a student trained on a labelled file the only corpus will do: it need not have the file's name.

        Raises:
            InputError: if the cache has no such corpus, or several to choose from.
        """
        if self.record is None:
            return cache.corpus()
        trained = self.record.corpus
        for corpus in cache.corpora():
            if corpus.info.digest == trained.digest:
                return corpus
        by_name = not self.is_taught or trained.name in cache.corpus_names()
        return cache.corpus(trained.name if by_name else None)

    def searches_own_vectors(self, origin: Origin) -> bool:
        """Check if a base holds the student's own vectors, and it was trained to approach no others."""
        return self.teacher is None and origin.classifier == self.head.digest

    def check(self, origin: Origin, dimension: int, where: str) -> None:
        """Refuse a knowledge base that the student cannot search.

        Args:
            origin: source of the base.
            dimension: width of its vectors.
            where: name of the base in messages.

        Raises:
            DataError: if the student's loss compares no positions of vectors, or the labels, the teacher, the
                projection or the width are not the student's.
        """
        loss = self.record.loss if self.record else None
        if loss in _NO_NEIGHBOURS:
            raise DataError(
                f"{self.title} was trained with loss {loss} and has no neighbours: {_NO_NEIGHBOURS[loss]}. "
                "Train a student with --loss reaugkd"
            )
        if origin.labels != self.head.labels:
            raise DataError(
                f"another label set: {where} has {list(origin.labels[:9])}, {self.title} has "
                f"{list(self.head.labels[:9])}: use the teacher that the student was trained with"
            )
        if self.teacher is not None and self.teacher[1].id != origin.contract:
            name, contract = self.teacher
            raise DataError(
                f"{_difference(contract, origin)}: {where} has vectors of {origin.teacher!r} (contract "
                f"{origin.contract[:12]}), {self.title} was trained with {name!r} (contract "
                f"{contract.id[:12]}): name that one with --teacher"
            )
        own = self.searches_own_vectors(origin)
        if (self.is_taught and origin.classifier and not own) or (own and origin.projection):
            what = "a projection of its vectors" if own else "another classifier"
            raise DataError(
                f"{what}: {where} has vectors of {origin.teacher!r}, {self.title} had no teacher and "
                f"searches its own: cache them with 'embedcache build --teacher {self.folder} --output "
                "embedding,logits' and name them with --teacher"
            )
        if dimension != self.head.dimension:
            raise DataError(
                f"another width: {where} has {dimension} dimensions, {self.title} has {self.head.dimension}: "
                f"project the teacher with 'distill kb project --dim {self.head.dimension}'"
            )

    def check_encoder(self, origin: Origin, contract: Contract, where: str) -> None:
        """Refuse the student's own vectors if they were encoded with other settings than its folder's.

        Args:
            origin: source of the base.
            contract: contract of the student's vectors as its folder is loaded.
            where: name of the base in messages.

        Raises:
            DataError: if pooling, prompt, length or another field differs; both values are named.
        """
        if origin.encoder is None or not self.searches_own_vectors(origin):
            return
        pairs = {name: (value, origin.encoder.get(name)) for name, value in encoder_of(contract).items()}
        if differing := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            raise DataError(
                f"{where} has vectors of {origin.teacher!r}, encoded with other settings than {self.title} "
                f"uses ({describe_differences(differing)}): build them again without those options"
            )


def open_student(spec: str | Path) -> StudentFolder:
    """Open a run (its ``best/``) or a model folder with a classifier.

    Raises:
        ConfigError: if there is no such folder.
        DataError: if it holds no classifier, or its run's record is damaged.
        CorruptCacheError: if the classifier is damaged.
    """
    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    if run and not folder.is_dir():
        raise DataError(describe_unfinished(run))
    if not folder.is_dir():
        raise ConfigError(describe_missing(str(spec)) or f"no folder {folder}: check the path")
    head = ClassifierHead.read(folder)
    if head is None:
        raise DataError(f"{folder} has no classifier: train one with 'distill run --loss kd' or reaugkd")
    record = read_record(run) if run else None
    if run and record is None:
        raise DataError(f"the record of {run} is damaged: copy {folder} elsewhere and name the copy")
    return StudentFolder(folder.resolve(), head, run, record)


def _difference(trained: Contract, origin: Origin) -> str:
    """Name the difference between a base's vectors and those a student was trained with."""
    projection = module_entry(trained, "Projection") or {}
    if origin.base and origin.base in (trained.id, projection.get("of")):
        return "another projection of the same teacher" if projection else "a projection of the same teacher"
    same = projection.get("of") == origin.contract
    return "the same teacher without its projection" if same else "another teacher"
