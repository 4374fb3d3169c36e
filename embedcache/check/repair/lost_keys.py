"""Which rows a damaged shard had, in which order: what it says itself, what the index says, what is missing.

Each is a candidate: that the rows were these is proven where the shard made of them has the lost one's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.repair.cuts import Layout, rows_by_size
from embedcache.check.texts import sound_keys
from embedcache.check.verify.shards import open_without_codebook
from embedcache.check.verify.stores import index_over
from embedcache.corpus.corpus import Corpus, View
from embedcache.errors import CacheFormatError, CorruptCacheError, StorageError
from embedcache.fsio import sha256_file
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store import Shard, ShardHeader
from embedcache.store.index import StoreIndex, made_of
from embedcache.store.mapped_lmdb import check_structure, open_shared
from embedcache.store.reading_order import possible_orders
from embedcache.view_coverage import ViewCoverage

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LostShard:
    """A shard that is damaged or gone.

    Attributes:
        name: its name, the digest of what it was.
        path: where it lies, relative to the cache.
        shard: what can still be opened of it; None where nothing can.
        size: how many bytes it had; 0 where that is not known.
    """

    name: str
    path: str
    shard: Shard | None = None
    size: int = 0

    @property
    def header(self) -> ShardHeader | None:
        """Its header, where that can be read; a digit of it may be wrong."""
        return None if self.shard is None else self.shard.header

    @property
    def keys(self) -> KeyArray | None:
        """Its keys, where they can be read; some may be wrong."""
        return None if self.shard is None else self.shard.keys


def opened(data: pa.Buffer | None, name: str, path: str, size: int = 0) -> LostShard:
    """Return a damaged shard with what can be read of it; ``size`` is what it had, where that is known."""
    shard = None
    with suppress(CorruptCacheError, CacheFormatError):
        if data is not None:
            shard = open_without_codebook(data, name, path)
    return LostShard(name, path, shard, size or (data.size if data is not None else 0))


def keys_by_index(
    folder: Path, sound: Sequence[Shard], lost: Sequence[LostShard], layouts: Sequence[Layout]
) -> dict[str, KeyArray]:
    """Return, by the name of the lost shard, the keys that a sound index of exactly these shards gives it.

    Args:
        folder: ``derived/index/<contract id>``.
        sound: the shards that are there.
        lost: those that are not, or are damaged.
        layouts: how large shards are, by codec.
    """
    there = {shard.name: len(shard) for shard in sound}
    known = {one.name: one.header.codec for one in lost if one.header is not None}
    known |= {shard.name: shard.header.codec for shard in sound}
    found_in = _open(folder, possible_orders(known, {one.name for one in lost} - known.keys()))
    if found_in is None:
        return {}
    index, names = found_in
    # What damaged shards say of their length is believed where it adds up.
    says = {one.name: len(one.keys) for one in lost if one.keys is not None}
    rows = _adding_up(names, {**there, **says}, index.rows) or _adding_up(names, there, index.rows)
    if not rows:
        told = rows_by_size([one.size for one in lost], index.rows - sum(there.values()), layouts)
        if told is not None:
            rows = {**there, **dict(zip((one.name for one in lost), told, strict=True))}
    if not rows:
        return {}
    starts = dict(zip(names, np.cumsum([0, *(rows[name] for name in names)]).tolist(), strict=False))
    found = {one.name: np.zeros(rows[one.name], dtype=KEY_DTYPE) for one in lost}
    filled = {one.name: 0 for one in lost}
    for keys, places in index.entries():
        for name, own in found.items():
            inside = (places >= starts[name]) & (places < starts[name] + len(own))
            own[places[inside] - starts[name]] = keys[inside]
            filled[name] += int(inside.sum())
    # Of a key in two shards the index knows the first place only.
    return {name: own for name, own in found.items() if filled[name] == len(own)}


def _adding_up(names: Sequence[str], known: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the rows of every shard, where at most one is not known; empty where they do not add up."""
    rows = dict(known)
    unknown = [name for name in names if name not in rows]
    if len(unknown) == 1:
        rows[unknown[0]] = total - sum(rows.values())
    fits = len(unknown) < 2 and sum(rows.values()) == total and min(rows.values()) > 0
    return rows if fits else {}


def _open(folder: Path, orders: Iterable[Sequence[str]]) -> tuple[StoreIndex, Sequence[str]] | None:
    """Return an index over shards in one of these orders, and which that is, if a sound one is there."""
    for names in orders:
        for path in sorted(folder.glob(f"{made_of(names)}-*.mdb")):
            with suppress(CorruptCacheError, StorageError, OSError):
                if sha256_file(path) == path.stem.partition("-")[2]:
                    check_structure(path)
                    return StoreIndex(open_shared(path, writable=False), None), names
    return None


def keys_by_elimination(
    corpora: Sequence[Corpus], sound: Sequence[Shard], taken: Sequence[KeyArray]
) -> Iterator[KeyArray]:
    """Yield the distinct keys that no sound shard has, in corpus order, those of a corpus at a time.

    A corpus of which nothing at all is stored was never built with this teacher, and is left out, unless
    nothing sound is left. Views come last, those first of which most is stored; one of whose own texts
    nothing is stored was never encoded.

    Args:
        corpora: the corpora and views.
        sound: the shards that are there.
        taken: keys that are accounted for.
    """
    with TemporaryDirectory(prefix="embedcache-repair-") as scratch:
        index = index_over(sound, Path(scratch))
        seen = np.concatenate([np.empty(0, dtype=KEY_DTYPE), *taken])
        shares = [(_share_stored(corpus, index), corpus) for corpus in corpora if isinstance(corpus, View)]
        views = sorted((one for one in shares if one[0]), key=lambda one: -one[0])
        for corpus in [*(one for one in corpora if not isinstance(one, View)), *(view for _, view in views)]:
            missing, present = _missing(corpus, index, KeyIndex(seen))
            if present or not sound:
                fresh = missing[KeyIndex(missing).first_places()]
                seen = np.concatenate([seen, fresh])
                yield fresh


def _share_stored(view: View, index: StoreIndex | KeyIndex) -> float:
    """Return the share of a view's own texts that are in an index; 0 where they cannot all be read."""
    with suppress(CorruptCacheError):
        coverage = ViewCoverage.of(view, index)
        return coverage.embedded / max(coverage.own, 1)
    return 0.0


def _missing(corpus: Corpus, index: StoreIndex | KeyIndex, others: KeyIndex) -> tuple[KeyArray, bool]:
    """Return the keys of a corpus that are in neither index, and whether any is in one of them."""
    missing, present = [np.empty(0, dtype=KEY_DTYPE)], False
    for _, keys in sound_keys(corpus):
        lacking = (index.locate(keys) < 0) & (others.locate(keys) < 0)
        missing.append(keys[lacking])
        present = present or not lacking.all()
    return np.concatenate(missing), present
