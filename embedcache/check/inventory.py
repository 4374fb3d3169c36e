"""Every file of a cache, and what it is by the place it lies in; nothing is read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from embedcache.check.findings import Kind
from embedcache.fsio import TEMPORARY_PREFIX

QUARANTINE = "quarantine"
INCOMING, REMOTES, MIRROR = "incoming", "remotes", "mirror"
"""Folders of ``derived/``: downloads of a pull, copies of manifests, and the work folder of a mirror."""

_ID = r"[0-9a-f]{64}"
_NAME = r"\w[\w.-]*"
_VIEW = rf"corpora/(?P<corpus>{_NAME})/views/(?P<view>(?!original/)\w[\w.-]{{0,99}})"
_PLACES = (
    (Kind.MARKER, r"cache\.json"),
    (Kind.CORPUS, rf"corpora/(?P<corpus>{_NAME})/corpus\.json"),
    (Kind.PART, rf"corpora/(?P<corpus>{_NAME})/{_ID}\.arrow"),
    (Kind.VIEW, rf"{_VIEW}/corpus\.json"),
    (Kind.VIEW_PART, rf"{_VIEW}/{_ID}\.arrow"),
    (Kind.RECIPE, rf"{_VIEW}/recipe\.json"),
    (Kind.CONTRACT, rf"teachers/(?P<teacher>{_ID})/contract\.json"),
    (Kind.NAME, rf"teachers/(?P<teacher>{_ID})/names/{_NAME}\.json"),
    (Kind.SHARD, rf"teachers/(?P<teacher>{_ID})/shards/{_ID}\.arrow"),
    (Kind.STORE, rf"teachers/(?P<teacher>{_ID})/vectors\.mdb"),
    (Kind.SEAL, rf"teachers/(?P<teacher>{_ID})/vectors\.seal\.json"),
    (Kind.LOCK, rf"teachers/(?P<teacher>{_ID})/vectors\.mdb-lock"),
    (Kind.LOCK, r"derived/(incoming|mirror)\.lock"),
    (Kind.CODEBOOK, rf"teachers/(?P<teacher>{_ID})/codebooks/{_ID}\.npy"),
    (Kind.TABLE, rf"teachers/(?P<teacher>{_ID})/token_embeddings\.safetensors"),
    (Kind.PROJECTION, rf"teachers/(?P<teacher>{_ID})/projection\.safetensors"),
    (Kind.INDEX, rf"derived/index/(?P<teacher>{_ID})/{_ID}\.npy"),
    (Kind.DERIVED, rf"derived/index/(?P<teacher>{_ID})/checked\.bin"),
    (Kind.DERIVED, rf"derived/models/(?P<teacher>{_ID})\.json"),
    (Kind.DERIVED, rf"derived/sources/(?P<corpus>{_NAME})\.json"),
    (Kind.TOKENS, r"derived/tokens/[0-9a-f]{32}/(tokens\.json|ids\.bin|offsets\.npy|first\.bin)"),
    (Kind.QUARANTINED, rf"{QUARANTINE}/.*"),
)
_OF_A_PULL = tuple(f"derived/{name}" for name in (INCOMING, f"{INCOMING}.lock", REMOTES, MIRROR))
_RULES = [(kind, re.compile(rule, re.DOTALL)) for kind, rule in _PLACES]


@dataclass(frozen=True)
class Entry:
    """A file of a cache.

    Attributes:
        path: relative to the cache, with ``/`` between its parts.
        kind: what it is.
        size: bytes.
        corpus: the name of the corpus it belongs to; empty where it belongs to none.
        teacher: the contract id of the teacher it belongs to; empty where it belongs to none.
        view: the name of the view of ``corpus`` that it belongs to; empty where it belongs to none.
    """

    path: str
    kind: Kind
    size: int
    corpus: str = ""
    teacher: str = ""
    view: str = ""

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return self.path.rpartition("/")[2].rpartition(".")[0]

    @property
    def folder(self) -> str:
        """The folder it lies in, relative to the cache."""
        return self.path.rpartition("/")[0]


def take_inventory(folder: Path) -> list[Entry]:
    """Return every file below ``folder``, links and devices included, sorted by path; no link is followed.

    Files that a pull works with are left out: nothing but a pull reads them, and it checks them itself.
    """
    return sorted(_walk(folder), key=lambda entry: entry.path)


def entry_of(folder: Path, path: str) -> Entry:
    """Return the entry of the file at ``path``, relative to the cache in ``folder``."""
    found = (folder / path).lstat()
    return _entry(path, found)


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
        except OSError:
            yield Entry(place, Kind.SPECIAL, 0)
            continue
        for path, entry in found:
            if path in _OF_A_PULL:
                continue
            if entry.is_dir(follow_symlinks=False):
                left.append(path)
            else:
                # A temporary file of a build that is running may be gone by now.
                with suppress(FileNotFoundError):
                    yield _entry(path, entry.stat(follow_symlinks=False))


def _entry(path: str, found: os.stat_result) -> Entry:
    if not stat.S_ISREG(found.st_mode):
        return Entry(path, Kind.SPECIAL, 0)
    if any(part.startswith(TEMPORARY_PREFIX) for part in path.split("/")):
        return Entry(path, Kind.LEFTOVER, found.st_size)
    return entry_at(path, found.st_size)


def entry_at(path: str, size: int) -> Entry:
    """Return the entry of a plain file of ``size`` bytes at ``path``; nothing is read."""
    for kind, rule in _RULES:
        if match := rule.fullmatch(path):
            return Entry(path, kind, size, **match.groupdict())
    return Entry(path, Kind.FOREIGN, size)
