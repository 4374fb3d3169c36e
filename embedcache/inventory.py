"""Files of a cache, each with a kind that follows from its path. Nothing is read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from embedcache.fsio import TEMPORARY_PREFIX

DERIVED = "derived"
QUARANTINE = f"{DERIVED}/quarantine"
"""Folder of the files that repair has moved aside, under their paths in the cache."""


class Kind(str, Enum):
    """Kind of a file."""

    MARKER = "marker"
    CORPUS = "corpus description"
    PART = "corpus part"
    VIEW = "view description"
    VIEW_PART = "view part"
    RECIPE = "view recipe"
    CONTRACT = "contract"
    NAME = "teacher name"
    SHARD = "shard"
    STORE = "LMDB store"
    SEAL = "seal of an LMDB store"
    LOCK = "lock"
    CODEBOOK = "codebook"
    TABLE = "token embeddings"
    PROJECTION = "projection"
    DERIVED = "derived file"
    LEFTOVER = "unfinished write"
    FOLDER = "folder"
    UNKNOWN = "unknown file"
    SPECIAL = "link or device"


_ID = r"[0-9a-f]{64}"
_NAME = r"\w[\w.-]*"
_VIEW = rf"corpora/(?P<corpus>{_NAME})/views/(?P<view>(?!original/)\w[\w.-]{{0,99}})"
_TEACHER = rf"teachers/(?P<teacher>{_ID})"
_PLACES = {
    Kind.MARKER: r"cache\.json",
    Kind.CORPUS: rf"corpora/(?P<corpus>{_NAME})/corpus\.json",
    Kind.PART: rf"corpora/(?P<corpus>{_NAME})/{_ID}\.arrow",
    Kind.VIEW: rf"{_VIEW}/corpus\.json",
    Kind.VIEW_PART: rf"{_VIEW}/{_ID}\.arrow",
    Kind.RECIPE: rf"{_VIEW}/recipe\.json",
    Kind.CONTRACT: rf"{_TEACHER}/contract\.json",
    Kind.NAME: rf"{_TEACHER}/names/{_NAME}\.json",
    Kind.SHARD: rf"{_TEACHER}/shards/{_ID}\.arrow",
    Kind.STORE: rf"{_TEACHER}/vectors\.mdb",
    Kind.SEAL: rf"{_TEACHER}/vectors\.seal\.json",
    Kind.LOCK: rf"{_TEACHER}/vectors\.mdb-lock",
    Kind.CODEBOOK: rf"{_TEACHER}/codebooks/{_ID}\.npy",
    Kind.TABLE: rf"{_TEACHER}/token_embeddings\.safetensors",
    Kind.PROJECTION: rf"{_TEACHER}/projection\.safetensors",
    Kind.DERIVED: rf"{DERIVED}/.*",
}
_RULES = [(kind, re.compile(rule, re.DOTALL)) for kind, rule in _PLACES.items()]


@dataclass(frozen=True)
class Entry:
    """A file of a cache.

    Attributes:
        path: relative to the cache, with ``/`` between its parts.
        kind: its kind.
        size: bytes.
        corpus: name of the corpus it belongs to, else empty.
        teacher: contract id of the teacher it belongs to, else empty.
        view: name of the view of ``corpus`` it belongs to, else empty.
        unread: why the file, or the folder, could not be looked at; else empty.
    """

    path: str
    kind: Kind
    size: int = 0
    corpus: str = ""
    teacher: str = ""
    view: str = ""
    unread: str = ""

    @property
    def stem(self) -> str:
        """Name of the file without its ending."""
        return self.path.rpartition("/")[2].rpartition(".")[0]


def entry_at(path: str, size: int = 0) -> Entry:
    """Return the entry of a plain file of ``size`` bytes at ``path``."""
    for kind, rule in _RULES:
        if match := rule.fullmatch(path):
            return Entry(path, kind, size, **match.groupdict())
    return Entry(path, Kind.UNKNOWN, size)


def list_files(folder: Path) -> list[Entry]:
    """Return every file of the cache in ``folder``, links and devices too, sorted; no link is followed.

    A folder that cannot be listed stands for its files, with the reason in ``unread``.
    """
    return sorted(_walk(folder), key=lambda entry: entry.path)


def _unread_folder(place: str, why: str) -> Entry:
    top, _, rest = place.partition("/")
    owner = rest.partition("/")[0]
    kind = Kind.DERIVED if top == DERIVED else Kind.FOLDER
    return Entry(
        f"{place}/",
        kind,
        corpus=owner if top == "corpora" else "",
        teacher=owner if top == "teachers" else "",
        unread=why,
    )


def _walk(folder: Path) -> Iterator[Entry]:
    # Not os.walk, which calls itself for every folder in a folder.
    left = [""]
    while left:
        place = left.pop()
        try:
            with os.scandir(f"{folder}/{place}") as entries:
                found = [(f"{place}/{entry.name}" if place else entry.name, entry) for entry in entries]
        except FileNotFoundError:
            continue
        except OSError as error:
            yield _unread_folder(place, str(error.strerror))
            continue
        for path, entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)
                    continue
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                # A temporary file of a running build may be gone by now.
                continue
            except OSError as error:
                yield replace(entry_at(path), unread=str(error.strerror))
                continue
            if not stat.S_ISREG(state.st_mode):
                yield Entry(path, Kind.SPECIAL)
            elif any(part.startswith(TEMPORARY_PREFIX) for part in path.split("/")):
                yield Entry(path, Kind.LEFTOVER, state.st_size)
            else:
                yield entry_at(path, state.st_size)
