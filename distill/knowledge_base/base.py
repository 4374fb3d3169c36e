"""A knowledge base on disk: ``knowledge_base/`` inside a student's model folder.

=====================  =============================================================================
file                   what
=====================  =============================================================================
``header.json``        whose vectors and labels they are, settings, the other files' digests; sealed
``index.faiss``        the projected vectors in an HNSW graph
``rows.safetensors``   ``soft_labels`` float32 (n, c); ``keys`` uint8 (n, 16), those of the texts
``texts.json``         the texts, where they are kept
``chosen.safetensors`` ``keys`` uint8 (m, 16) of the texts that beta and k were chosen on
=====================  =============================================================================

A folder is written beside the old one and put in its place when it is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.knowledge_base.index import IndexSettings, NeighbourIndex
from distill.layout import KNOWLEDGE_BASE
from embedcache.errors import CorruptCacheError
from embedcache.folders import folder_that_appears
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray

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
    """

    teacher: str
    contract: str
    base: str | None
    projection: str | None
    logits: str
    labels: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {
            "teacher": self.teacher,
            "contract": self.contract,
            "base": self.base,
            "projection": self.projection,
            "logits": self.logits,
            "labels": list(self.labels),
        }


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
    """

    k: int
    beta: float
    source: str
    digest: str
    rows: int
    accuracy: float
    without: float
    base_rows: int


@dataclass(frozen=True)
class KnowledgeBase:
    """Vectors of texts with what the teacher said of them.

    Attributes:
        origin: whose they are.
        index: the vectors.
        soft_labels: float32, shape (n, c); rows sum to 1.
        keys: dtype ``V16``, shape (n,); the keys of the texts.
        tau: the temperature that the student was trained with.
        corpora: what was put in, in order: ``{"name", "digest", "rows"}``.
        texts: the texts, where they are kept.
        chosen: k and beta; None until they are chosen.
        chosen_keys: the keys of the texts they were chosen on.
    """

    origin: Origin
    index: NeighbourIndex
    soft_labels: NDArray[np.float32]
    keys: KeyArray
    tau: float
    corpora: tuple[Mapping[str, object], ...]
    texts: tuple[str, ...] | None = None
    chosen: Chosen | None = None
    chosen_keys: KeyArray = field(default_factory=lambda: np.empty(0, dtype=KEY_DTYPE))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def holds(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return which of the texts of ``keys`` stand in the base, bool of shape (n,)."""
        return contains(self.keys, keys)

    def choosing(self, chosen: Chosen, keys: KeyArray) -> KnowledgeBase:
        """Return the base with another k and beta, chosen on the texts of ``keys``."""
        return replace(self, chosen=chosen, chosen_keys=keys)

    def facts(self) -> dict[str, Any]:
        """Return what the header says of it, as a JSON object."""
        return {
            "version": _VERSION,
            "rows": len(self),
            "dimension": self.index.dimension,
            "origin": self.origin.to_json(),
            "index": self.index.settings.to_json(),
            "tau": self.tau,
            "corpora": [dict(corpus) for corpus in self.corpora],
            "texts": self.texts is not None,
            "chosen": None if self.chosen is None else vars(self.chosen),
        }

    def write(self, model: Path) -> Path:
        """Write it into a model's folder, in the place of one that is there, and return its folder.

        Raises:
            StorageError: if it cannot be written; what was there before stays.
        """
        from safetensors.numpy import save

        files = {
            INDEX: self.index.to_bytes().tobytes(),
            ROWS: save({"soft_labels": self.soft_labels, "keys": _plain(self.keys)}),
        }
        if self.texts is not None:
            files[TEXTS] = json.dumps(list(self.texts), ensure_ascii=False, indent=0).encode()
        if self.chosen is not None:
            files[CHOSEN] = save({"keys": _plain(self.chosen_keys)})
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        target = model / KNOWLEDGE_BASE
        with folder_that_appears(target, overwrite=True) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            write_sealed_json(folder / HEADER, {**self.facts(), "files": digests})
        return target


def read_base(model: Path) -> KnowledgeBase | None:
    """Return the knowledge base in a model's folder; None where there is none.

    Raises:
        CorruptCacheError: if a file of it is damaged or missing, or a newer version wrote it.
    """
    folder = model / KNOWLEDGE_BASE
    if not folder.is_dir():
        return None
    try:
        return _read(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptCacheError(
            f"the knowledge base {folder} is damaged ({str(error)[:300]}): copy it again, or delete it and "
            "run 'distill kb build'"
        ) from error


def contains(among: KeyArray, keys: KeyArray) -> NDArray[np.bool_]:
    """Return which of ``keys`` stand among others, bool of shape (len(keys),)."""
    found: NDArray[np.bool_] = KeyIndex(among).locate(keys) >= 0
    return found


def _read(folder: Path) -> KnowledgeBase:
    from safetensors.numpy import load

    header = read_sealed_json(folder / HEADER)
    if header["version"] != _VERSION:
        raise ValueError(f"it has version {header['version']}, this distill reads version {_VERSION}")
    files: dict[str, bytes] = {}
    for name, digest in header["files"].items():
        files[name] = (folder / name).read_bytes()
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise ValueError(f"{name} is not the file it was written with")
    settings = IndexSettings(**header["index"])
    rows = load(files[ROWS])
    origin = dict(header["origin"])
    chosen = header["chosen"]
    found = KnowledgeBase(
        origin=Origin(**{**origin, "labels": tuple(origin["labels"])}),
        index=NeighbourIndex.from_bytes(files[INDEX], settings),
        soft_labels=rows["soft_labels"],
        keys=_as_keys(rows["keys"]),
        tau=float(header["tau"]),
        corpora=tuple(header["corpora"]),
        texts=tuple(json.loads(files[TEXTS])) if TEXTS in files else None,
        chosen=None if chosen is None else Chosen(**chosen),
        chosen_keys=_as_keys(load(files[CHOSEN])["keys"])
        if CHOSEN in files
        else np.empty(0, dtype=KEY_DTYPE),
    )
    counts = {
        "vectors": len(found.index),
        "soft labels": len(found.soft_labels),
        "keys": len(found.keys),
        "texts": len(found) if found.texts is None else len(found.texts),
    }
    if set(counts.values()) != {header["rows"]}:
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"its header tells of {header['rows']} rows, found {told}")
    return found


def _plain(keys: KeyArray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY_BYTES)


def _as_keys(plain: NDArray[np.uint8]) -> KeyArray:
    return np.ascontiguousarray(plain).view(KEY_DTYPE).reshape(-1)
