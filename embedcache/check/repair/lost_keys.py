"""Which rows a damaged shard had, in which order: what it says itself, what the index says, what is missing.

Each is a candidate: that the rows were these is proven where the shard made of them has the lost one's name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.repair.cuts import Layout, rows_by_size
from embedcache.check.texts import sound_keys
from embedcache.check.verify.shards import open_without_codebook
from embedcache.check.verify.stores import index_over
from embedcache.codecs import CODEC_NAMES
from embedcache.corpus.corpus import Corpus, View
from embedcache.errors import CacheFormatError, CorruptCacheError, StorageError
from embedcache.fsio import sha256_file
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.store import Shard, ShardHeader
from embedcache.store.lmdb_index import StoreIndex, made_of, may_be_made_of
from embedcache.store.mapped_lmdb import check_structure, open_shared
from embedcache.store.reading_order import reading_rank
from embedcache.view_coverage import ViewCoverage

if TYPE_CHECKING:
    import pyarrow as pa

# Of more shards there are too many ways in which they may have had several codecs.
_MOST_GUESSED = 6


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
    told = {one.name: one.header.codec for one in lost if one.header is not None}
    told |= {shard.name: shard.header.codec for shard in sound}
    unknown = {one.name for one in lost} - told.keys()
    for shards in may_be_made_of(told.keys() | unknown):
        index = _open(folder, shards)
        if index is not None:
            possible = (order for order in _possible_orders(told, unknown) if made_of(order.names) == shards)
            fitting = _fitting(index, sound, lost, possible, layouts)
            if fitting is not None:
                return _read(index, lost, *fitting)
    return {}


@dataclass(frozen=True)
class _Order:
    """How shards may have been ordered.

    Attributes:
        names: their names, in the order of reading.
        codecs: the codecs that make it so, by name.
    """

    names: list[str]
    codecs: Mapping[str, str]


def _possible_orders(known: Mapping[str, str], unknown: Collection[str]) -> Iterator[_Order]:
    """Yield the orders in which shards may have been read.

    Args:
        known: the codecs of shards, by their names.
        unknown: names of shards that nobody knows the codec of any more.
    """
    one_each = [(codec,) * len(unknown) for codec in CODEC_NAMES]
    guesses = product(CODEC_NAMES, repeat=len(unknown)) if len(unknown) <= _MOST_GUESSED else one_each
    for guess in guesses:
        codecs = {**known, **dict(zip(sorted(unknown), guess, strict=True))}
        yield _Order(sorted(codecs, key=lambda name: reading_rank(codecs[name], name)), codecs)


def _fitting(
    index: StoreIndex,
    sound: Sequence[Shard],
    lost: Sequence[LostShard],
    possible: Iterable[_Order],
    layouts: Sequence[Layout],
) -> tuple[list[str], dict[str, int]] | None:
    """Return the order of the shards of an index and the rows of each, as far as these can be told.

    In the right one the index has in the places of a sound shard nothing but that shard's keys. Of several
    the one counts under which the sizes of the lost are most like what is expected. Memory: a byte a row.
    """
    there = {shard.name: len(shard) for shard in sound}
    stands = {shard.name: _stand(index, shard) for shard in sound}
    taken = np.zeros(index.rows, dtype=np.bool_)
    for _, places in index.entries():
        taken[places[(places >= 0) & (places < index.rows)]] = True
    best: tuple[float, list[str], dict[str, int]] | None = None
    # What damaged shards say of their length is believed where it adds up.
    says = {one.name: len(one.keys) for one in lost if one.keys is not None}
    for order in possible:
        rows, off = _adding_up(order.names, {**there, **says}, index.rows), 0.0
        rows = rows or _adding_up(order.names, there, index.rows)
        if not rows:
            rows, off = _by_size(index.rows - sum(there.values()), lost, order.codecs, layouts)
            rows = {**there, **rows} if rows else {}
        starts = _starts(order.names, rows) if rows else {}
        if rows and (best is None or off < best[0]):
            own = ((starts[name], there[name], *stand) for name, stand in stands.items())
            if all(
                np.count_nonzero(taken[start : start + count]) == (keys if start == stood else 0)
                for start, count, stood, keys in own
            ):
                best = (off, order.names, rows)
    return best and best[1:]


def _stand(index: StoreIndex, shard: Shard) -> tuple[int, int]:
    """Return where a sound shard starts, and how many keys an index has there.

    Where shards before it have all its keys, it starts further down than is said.
    """
    found = index.locate(shard.keys) - np.arange(len(shard))
    start = int(found.max())
    return start, int(np.count_nonzero(found == start))


def _by_size(
    total: int, lost: Sequence[LostShard], codecs: Mapping[str, str], layouts: Sequence[Layout]
) -> tuple[dict[str, int], float]:
    """Return how many rows lost shards of these codecs had, or none, and how far off their headers are."""
    sizes = [one.size for one in lost]
    by_codec = {layout.codec.name: layout for layout in reversed(layouts)}
    mine = [by_codec[codecs[one.name]] for one in lost if codecs[one.name] in by_codec]
    if len(mine) < len(lost):
        return {}, 0.0
    if (rows := rows_by_size(sizes, total, mine)) is None:
        return {}, 0.0
    off = sum(
        abs(size - layout.overhead - count * layout.row)
        for size, layout, count in zip(sizes, mine, rows, strict=True)
    )
    return dict(zip((one.name for one in lost), rows, strict=True)), off


def _read(
    index: StoreIndex, lost: Sequence[LostShard], names: Sequence[str], rows: Mapping[str, int]
) -> dict[str, KeyArray]:
    """Return the keys of the lost shards of which an index knows all, by name."""
    starts = _starts(names, rows)
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


def _starts(names: Sequence[str], rows: Mapping[str, int]) -> dict[str, int]:
    """Return the first position of each shard."""
    return dict(zip(names, np.cumsum([0, *(rows[name] for name in names)]).tolist(), strict=False))


def _open(folder: Path, shards: str) -> StoreIndex | None:
    """Return an index whose file begins with ``shards``, if a sound one is there."""
    for path in sorted(folder.glob(f"{shards}-*.mdb")):
        with suppress(CorruptCacheError, StorageError, OSError):
            if sha256_file(path) == path.stem.partition("-")[2]:
                check_structure(path)
                return StoreIndex(open_shared(path, writable=False), None)
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
