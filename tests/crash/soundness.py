"""What must hold of a cache at any moment, whatever has happened to the processes that build it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from builds import crash_teacher

from embedcache.cache import Cache
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.keys import key_array
from embedcache.store.containers import LmdbShards
from embedcache.testing import FakeEncoder

Snapshot = dict[str, str]
"""Path inside a cache -> sha256 of what stands there; shards inside an LMDB file count as files."""

_LMDB_FILE = "vectors.mdb"
# The pages of two LMDB files may differ though the same shards are in them.
_BESIDE_LMDB = (f"{_LMDB_FILE}-lock", "vectors.seal.json")


def snapshot(cache: Path) -> Snapshot:
    """Return what a cache holds: everything but what is derived, and what killed processes left behind."""
    found: Snapshot = {}
    for path in sorted(cache.rglob("*")):
        inside = path.relative_to(cache)
        if inside.parts[0] == "derived" or not path.is_file() or _is_leftover(inside):
            continue
        if path.name == _LMDB_FILE:
            shards = LmdbShards(path)
            for name in shards.names():
                found[f"{inside}/{name}"] = hashlib.sha256(memoryview(shards.open(name))).hexdigest()
        elif path.name not in _BESIDE_LMDB:
            found[inside.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def leftovers(cache: Path) -> list[Path]:
    """Return the half-written files in a cache; their names say that they are."""
    inside = (path.relative_to(cache) for path in cache.rglob("*"))
    return [path for path in inside if _is_leftover(path)]


def _is_leftover(inside: Path) -> bool:
    # Files that a build keeps for its successor begin alike, but are not numbered at random.
    return any(re.match(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}", part) for part in inside.parts)


def assert_sound(cache: Path, texts: Sequence[str]) -> None:
    """Assert that a cache can be opened and read, as far as it has been built.

    Args:
        cache: its folder; there may be nothing in it yet.
        texts: everything that is being built.
    """
    if not (cache / "cache.json").exists():
        return
    opened = Cache(cache)
    for corpus in opened.corpora():
        assert sum(len(part) for part in corpus.iter_texts()) == len(corpus)
    if opened.teachers():
        _assert_vectors(opened, texts)


def assert_complete(cache: Path, texts: Sequence[str]) -> None:
    """Assert that a cache holds ``texts`` as its one corpus, with the vector of every one of them."""
    opened = Cache(cache)
    assert [text for part in opened.corpus().iter_texts() for text in part] == list(texts)
    assert _assert_vectors(opened, texts) == len(texts)


def _assert_vectors(cache: Cache, texts: Sequence[str]) -> int:
    """Assert that the vectors of ``texts`` are the teacher's, and return how many are there."""
    encoder = FakeEncoder(crash_teacher())
    store = cache.store(encoder.teacher.contract)
    positions = store.locate(key_array(texts))
    there = np.flatnonzero(positions >= 0)
    expected = encoder.encode(texts).vectors[there].astype(np.float16)
    np.testing.assert_array_equal(store.vectors(positions[there]), expected.astype(np.float32))
    return len(there)
