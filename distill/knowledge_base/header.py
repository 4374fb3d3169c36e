"""The header of a knowledge base: all that is known of one without reading its vectors.

It is written last and seals the other files: their sha256 stand in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distill.knowledge_base.index import IndexSettings
from distill.layout import KNOWLEDGE_BASE
from embedcache.errors import CorruptCacheError
from embedcache.fsio import read_sealed_json, regular_size, write_sealed_json

HEADER = "header.json"
INDEX = "index.faiss"
ROWS = "rows.safetensors"
TEXTS = "texts.json"
CHOSEN = "chosen.safetensors"

_VERSION = 1


@dataclass(frozen=True)
class Origin:
    """Whose vectors and soft labels a knowledge base holds.

    Attributes:
        teacher: name of the teacher whose vectors they are, the projected one.
        contract: id of its contract.
        base: id of the contract that was projected; None where the vectors are a teacher's own.
        projection: sha256 of the projection's weights; None where there is none.
        logits: id of the contract of the logits that the soft labels were made of.
        labels: names of the labels, in the order of the soft labels.
        classifier: digest of the classifier that gave the logits, see
            :attr:`embedcache.teacher.classifier.ClassifierHead.digest`; None where an older version built it.
        encoder: what gave the vectors and how it read texts, before any projection, see
            :func:`distill.reaugkd.soft_labels.encoder_of`; None where an older version built it.
    """

    teacher: str
    contract: str
    base: str | None
    projection: str | None
    logits: str
    labels: tuple[str, ...]
    classifier: str | None = None
    encoder: Mapping[str, object] | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {**vars(self), "labels": list(self.labels)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Origin:
        """Return the origin that a JSON object holds."""
        return cls(**{**value, "labels": tuple(value["labels"])})


@dataclass(frozen=True)
class Chosen:
    """What predictions are made with, and on which rows that was chosen.

    Attributes:
        k: neighbours asked.
        beta: what the student's own answer counts for, 0 to 1.
        source: the rows, in words.
        digest: sha256 of their texts and labels.
        rows: how many they were.
        accuracy: share of them that was right with k and beta.
        without: share that was right without retrieval.
        base_rows: rows of the base when they were chosen.
        lead: the 95 % interval of ``accuracy - without``; None where an older version chose.
    """

    k: int
    beta: float
    source: str
    digest: str
    rows: int
    accuracy: float
    without: float
    base_rows: int
    lead: tuple[float, float] | None = None

    @property
    def is_within_chance(self) -> bool:
        """Whether neighbours are asked that do not show to help: the interval of their lead reaches zero."""
        return self.beta < 1 and self.lead is not None and self.lead[0] <= 0

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {**vars(self), "lead": None if self.lead is None else list(self.lead)}

    def facts(self) -> dict[str, object]:
        """Return the same with what follows from it."""
        return {**self.to_json(), "within_chance": self.is_within_chance}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Chosen:
        """Return the choice that a JSON object holds."""
        lead = value.get("lead")
        return cls(**{**value, "lead": None if lead is None else (float(lead[0]), float(lead[1]))})


@dataclass(frozen=True)
class Header:
    """What the header says.

    Attributes:
        rows: rows of the base.
        dimension: width of its vectors.
        origin: whose they are.
        settings: of the index.
        tau: the temperature that the student was trained with.
        corpora: what was put in, in order: ``{"name", "digest", "rows"}``.
        has_texts: whether the texts are kept.
        chosen: k and beta; None until they are chosen.
        files: name -> sha256 of every other file; empty before they are written.
    """

    rows: int
    dimension: int
    origin: Origin
    settings: IndexSettings
    tau: float
    corpora: tuple[Mapping[str, object], ...]
    has_texts: bool
    chosen: Chosen | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return all but the digests as a JSON object."""
        return {
            "version": _VERSION,
            "rows": self.rows,
            "dimension": self.dimension,
            "origin": self.origin.to_json(),
            "index": self.settings.to_json(),
            "tau": self.tau,
            "corpora": [dict(corpus) for corpus in self.corpora],
            "texts": self.has_texts,
            "chosen": None if self.chosen is None else self.chosen.facts(),
        }

    def write(self, folder: Path) -> None:
        """Write it into a base's folder."""
        chosen = None if self.chosen is None else self.chosen.to_json()
        write_sealed_json(folder / HEADER, {**self.facts(), "chosen": chosen, "files": dict(self.files)})

    @classmethod
    def read(cls, folder: Path) -> Header:
        """Read it from a base's folder.

        Raises:
            OSError, ValueError, KeyError, TypeError: if it is missing or damaged, or of another version.
        """
        value = read_sealed_json(folder / HEADER)
        if value["version"] != _VERSION:
            raise ValueError(f"it has version {value['version']}, this distill reads version {_VERSION}")
        return cls(
            rows=int(value["rows"]),
            dimension=int(value["dimension"]),
            origin=Origin.from_json(value["origin"]),
            settings=IndexSettings(**value["index"]),
            tau=float(value["tau"]),
            corpora=tuple(value["corpora"]),
            has_texts=bool(value["texts"]),
            chosen=None if value["chosen"] is None else Chosen.from_json(value["chosen"]),
            files=dict(value["files"]),
        )

    def is_of(self, other: Header) -> bool:
        """Return whether both describe the same rows, whatever k and beta were chosen."""
        first, second = (replace(one, chosen=None, files={}) for one in (self, other))
        return first == second


def read_header(model: Path) -> Header | None:
    """Return the header of the knowledge base in a model's folder; None where there is none.

    The other files are not read: damage of them is found by whoever opens the base.

    Raises:
        CorruptCacheError: if it is damaged or missing, or a newer version wrote it.
    """
    folder = model / KNOWLEDGE_BASE
    if not folder.is_dir():
        return None
    try:
        return Header.read(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, error) from error


def index_bytes(model: Path) -> int:
    """Return the size of the index of the base in a model's folder, without reading it.

    Raises:
        CorruptCacheError: if it is missing.
    """
    folder = model / KNOWLEDGE_BASE
    try:
        return regular_size(folder / INDEX)
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, why: Exception) -> CorruptCacheError:
    """Return the error that tells of a damaged base."""
    return CorruptCacheError(
        f"the knowledge base {folder} is damaged ({str(why)[:300]}): copy it again, or delete it and "
        "run 'distill kb build'"
    )
