"""Checks of what is derived: it can be made anew, but while it is there it has to be right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.check.bench import Bench
from embedcache.check.findings import DERIVED_WAY_OUT, Findings, Kind, damage, reason
from embedcache.check.inventory import Entry
from embedcache.check.verify.documents import check_sealed
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.fsio import read_sealed_json
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store import Shard
from embedcache.store.lmdb_index import StoreIndex, made_of
from embedcache.store.mapped_lmdb import open_shared

TOKENS_HEADER = "tokens.json"


def check_index(bench: Bench, entry: Entry) -> Findings:
    """Check an index by the digest in its name, and its structure."""
    path = bench.folder / entry.path
    digest = bench.meter.digest(path)
    if digest != entry.stem:
        yield damage(entry.path, entry.kind, f"its bytes have the digest {digest[:12]}…", DERIVED_WAY_OUT)


def check_answers(bench: Bench, path: str, shards: Sequence[Shard]) -> Findings:
    """Compare what a sound index says with the shards of its teacher.

    Args:
        bench: where the cache is.
        path: the index, relative to the cache.
        shards: all shards of the teacher, in the order of reading.
    """
    if not path.rpartition("/")[2].startswith(f"{made_of([shard.name for shard in shards])}-"):
        # Of an earlier state, say before 'compact': the next reader deletes it and makes its own.
        return
    wrong = ""
    try:
        index = StoreIndex(open_shared(bench.folder / path, writable=False), sum(map(len, shards)))
        wrong = _wrong_answer(index, shards)
    except (CorruptCacheError, StorageError) as error:
        wrong = reason(error)
    if wrong:
        yield damage(path, Kind.INDEX, wrong, DERIVED_WAY_OUT)


def _wrong_answer(index: StoreIndex, shards: Sequence[Shard]) -> str:
    """Return what is wrong with the answers of an index, empty where nothing is."""
    starts = np.cumsum([0, *map(len, shards)])
    fresh = 0
    for shard, start in zip(shards, starts, strict=False):
        found = index.locate(shard.keys)
        places = np.arange(start, start + len(shard))
        own = found == places
        fresh += int(own.sum())
        # Of a key in several places the first counts.
        earlier = found[~own]
        outside = (earlier < 0) | (earlier > places[~own])
        if outside.any() or (_keys_at(shards, starts, earlier) != shard.keys[~own]).any():
            return f"it gives wrong places for keys of shard {shard.name[:12]}…"
    if fresh != index.distinct:
        return f"it tells of {index.distinct} distinct keys, the shards have {fresh}"
    return ""


def _keys_at(shards: Sequence[Shard], starts: NDArray[np.int64], places: NDArray[np.int64]) -> KeyArray:
    keys = np.empty(len(places), dtype=KEY_DTYPE)
    numbers = np.searchsorted(starts, places, side="right") - 1
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        keys[mine] = shards[number].keys[places[mine] - starts[number]]
    return keys


def check_tokens(bench: Bench, entry: Entry) -> Findings:
    """Check one of the files of a corpus's token arrays."""
    path = bench.folder / entry.path
    name = path.name
    if name == TOKENS_HEADER:
        yield from check_sealed(bench, entry)
        return
    try:
        expected = read_sealed_json(path.with_name(TOKENS_HEADER))["files"][name]
    except (OSError, ValueError, KeyError, TypeError):
        yield damage(entry.path, entry.kind, f"no sound {TOKENS_HEADER} vouches for it", DERIVED_WAY_OUT)
        return
    digest = bench.meter.digest(path)
    if digest != expected:
        yield damage(entry.path, entry.kind, f"its bytes have the digest {digest[:12]}…", DERIVED_WAY_OUT)
