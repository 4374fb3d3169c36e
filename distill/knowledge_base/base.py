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

A folder is written beside the old one and put in its place when it is whole. What was made of a base that
another process has changed since is not written over it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import ConfigError, DataError
from distill.knowledge_base.header import (
    CHOSEN,
    INDEX,
    ROWS,
    TEXTS,
    Chosen,
    Header,
    Origin,
    damaged,
    read_header,
)
from distill.knowledge_base.index import NeighbourIndex
from distill.layout import KNOWLEDGE_BASE
from embedcache.folders import folder_that_appears, locked_folder
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex


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

    @property
    def header(self) -> Header:
        """What its header says, without digests of files."""
        return Header(
            rows=len(self),
            dimension=self.index.dimension,
            origin=self.origin,
            settings=self.index.settings,
            tau=self.tau,
            corpora=self.corpora,
            has_texts=self.texts is not None,
            chosen=self.chosen,
        )

    def facts(self) -> dict[str, Any]:
        """Return what the header says of it, as a JSON object."""
        return self.header.facts()

    def write(self, model: Path, *, overwrite: bool = True) -> Path:
        """Write it into a model's folder and return its folder.

        Args:
            model: the folder.
            overwrite: whether it may take the place of one that is there.

        Raises:
            ConfigError: if it may not, and there is one.
            StorageError: if it cannot be written; what was there before stays.
        """
        with _one_writer(model):
            if not overwrite:
                refuse_replacing(model)
            return self._write(model)

    def write_grown(self, model: Path, before: Header) -> KnowledgeBase:
        """Write it in the place of the base that it grew from, and return it as it was written.

        Another k and beta that were chosen meanwhile are kept.

        Args:
            model: the folder that the base was read from.
            before: the header of that base.

        Raises:
            CorruptCacheError: if what is there is damaged.
            DataError: if there is another base by now, or none.
            StorageError: if it cannot be written; what was there before stays.
        """
        with _one_writer(model):
            there = _require_same(model, before, "nothing was added to it, run it again")
            grown = self
            if there.chosen != before.chosen:
                try:
                    held = CHOSEN in there.files
                    keys = _chosen_keys(_read_file(there, model / KNOWLEDGE_BASE, CHOSEN) if held else None)
                except (OSError, ValueError, KeyError) as error:
                    raise damaged(model / KNOWLEDGE_BASE, error) from error
                grown = replace(self, chosen=there.chosen, chosen_keys=keys)
            grown._write(model)
        return grown

    def _write(self, model: Path) -> Path:
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
            replace(self.header, files=digests).write(folder)
        return target

    def keep_choice(self, model: Path, chosen: Chosen, keys: KeyArray) -> None:
        """Write another k and beta into the base in a model's folder; vectors and texts stay as they lie.

        Args:
            model: the folder that the base was read from.
            chosen: k and beta.
            keys: of the texts they were chosen on.

        Raises:
            CorruptCacheError: if the header there is damaged.
            DataError: if there is another base by now.
            StorageError: if it cannot be written; what was there before stays.
        """
        from safetensors.numpy import save

        data, old = save({"keys": _plain(keys)}), model / KNOWLEDGE_BASE
        with _one_writer(model), folder_that_appears(old, overwrite=True) as folder:
            there = _require_same(model, self.header, "choose k and beta again")
            kept = {name: digest for name, digest in there.files.items() if name != CHOSEN}
            for name in kept:
                _link(old / name, folder / name)
            (folder / CHOSEN).write_bytes(data)
            digests = {**kept, CHOSEN: hashlib.sha256(data).hexdigest()}
            replace(there, chosen=chosen, files=digests).write(folder)


def read_base(model: Path) -> KnowledgeBase | None:
    """Return the knowledge base in a model's folder; None where there is none.

    Raises:
        CorruptCacheError: if a file of it is damaged or missing, or a newer version wrote it.
    """
    header, folder = read_header(model), model / KNOWLEDGE_BASE
    if header is None:
        return None
    try:
        return _read(header, folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if read_header(model) == header:
            raise damaged(folder, error) from error
    # Another process has put another one there while this one was read.
    return read_base(model)


def refuse_replacing(model: Path) -> None:
    """See that a model's folder has no knowledge base yet.

    Raises:
        ConfigError: if it has.
    """
    if (model / KNOWLEDGE_BASE).exists():
        raise ConfigError(
            f"{model / KNOWLEDGE_BASE} is there already: add rows with 'distill kb add', or replace it with "
            "--overwrite"
        )


def contains(among: KeyArray, keys: KeyArray) -> NDArray[np.bool_]:
    """Return which of ``keys`` stand among others, bool of shape (len(keys),)."""
    found: NDArray[np.bool_] = KeyIndex(among).locate(keys) >= 0
    return found


def _one_writer(model: Path) -> AbstractContextManager[None]:
    """Have others that change the base wait, for the moment of writing and not for the minutes before.

    What is there is looked at once more inside. Where a folder cannot be locked that has to do.
    """
    return locked_folder(model)


def _read(header: Header, folder: Path) -> KnowledgeBase:
    from safetensors.numpy import load

    files = {name: _read_file(header, folder, name) for name in header.files}
    rows = load(files[ROWS])
    found = KnowledgeBase(
        origin=header.origin,
        index=NeighbourIndex.from_bytes(files[INDEX], header.settings),
        soft_labels=rows["soft_labels"],
        keys=_as_keys(rows["keys"]),
        tau=header.tau,
        corpora=header.corpora,
        texts=tuple(json.loads(files[TEXTS])) if TEXTS in files else None,
        chosen=header.chosen,
        chosen_keys=_chosen_keys(files.get(CHOSEN)),
    )
    counts = {
        "vectors": len(found.index),
        "soft labels": len(found.soft_labels),
        "keys": len(found.keys),
        "texts": len(found) if found.texts is None else len(found.texts),
    }
    if set(counts.values()) != {header.rows}:
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"its header tells of {header.rows} rows, found {told}")
    return found


def _read_file(header: Header, folder: Path, name: str) -> bytes:
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != header.files[name]:
        raise ValueError(f"{name} is not the file it was written with")
    return data


def _chosen_keys(data: bytes | None) -> KeyArray:
    """Return the keys that the file of them holds; none where there is no file."""
    from safetensors.numpy import load

    return np.empty(0, dtype=KEY_DTYPE) if data is None else _as_keys(load(data)["keys"])


def _require_same(model: Path, before: Header, remedy: str) -> Header:
    """Return the header of the base that a model's folder has now, which has to be the one of ``before``."""
    there, folder = read_header(model), model / KNOWLEDGE_BASE
    if there is None:
        raise DataError(f"{folder} was deleted meanwhile: make one with 'distill kb build'")
    if not there.is_of(before):
        raise DataError(
            f"{folder} became another knowledge base meanwhile, of {there.rows:,} rows instead of "
            f"{before.rows:,}, by another 'distill kb' command: {remedy}"
        )
    return there


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Not every file system has links.
        shutil.copyfile(source, target)


def _plain(keys: KeyArray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY_BYTES)


def _as_keys(plain: NDArray[np.uint8]) -> KeyArray:
    return np.ascontiguousarray(plain).view(KEY_DTYPE).reshape(-1)
