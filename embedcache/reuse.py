"""Reuse across max_length: a text that was not cut has the same vector whatever the length it is cut at.

Contracts that differ in ``max_length`` alone are *donors* of each other. A donor's row can be carried over
where the donor saw the whole text and the text fits the new length; a truncated row never is. Carried rows
keep the provenance of the run that computed them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.store.base import Positions, VectorBatch

if TYPE_CHECKING:
    from embedcache.codecs import Codec
    from embedcache.contract import Contract
    from embedcache.store.shard import Shard
    from embedcache.store.store import ShardStore

CARRIED_FROM = "carried_from_max_length"
"""The field of a carried shard's provenance that holds the donor's ``max_length``."""

_CHUNK_ROWS = 65536
_NOBODY = -1


@dataclass(frozen=True)
class Donor:
    """A stored contract that is equal to another but for ``max_length``.

    Attributes:
        teacher: the teacher as the cache lists it.
        store: its vectors.
    """

    teacher: CachedTeacher
    store: ShardStore

    @property
    def max_length(self) -> int:
        """Tokens after which the donor cut its texts; 0 means never."""
        return self.teacher.contract.max_length


@dataclass(frozen=True)
class Found:
    """Where n keys were found among donors.

    Attributes:
        donors: int16, shape (n,); number of the donor, -1 where none has a usable row.
        positions: int64, shape (n,); the row in that donor's store, else -1.
        coarser: bool, shape (n,); rows that would be usable, but whose codec keeps less than encoding anew
            would.
    """

    donors: NDArray[np.int16]
    positions: Positions
    coarser: NDArray[np.bool_]


@dataclass
class Carried:
    """What :func:`carry_over` did.

    Attributes:
        rows: rows carried over.
        coarser_rows: rows left to be encoded although a donor has them, because its codec keeps less than
            encoding them anew would.
    """

    rows: int = 0
    coarser_rows: int = 0


def donors(cache: Cache, contract: Contract) -> list[Donor]:
    """Return the donors of ``contract`` in ``cache``, the longest ``max_length`` (0: unlimited) first.

    Raises:
        CorruptCacheError: if a donor's store is damaged.
    """
    found = {
        teacher.contract.max_length: teacher
        for teacher in cache.teachers()
        if teacher.contract != contract
        and replace(teacher.contract, max_length=contract.max_length) == contract
    }
    longest_first = sorted(found, key=lambda length: (length != 0, -length))
    return [Donor(one, cache.store(one.contract)) for one in (found[length] for length in longest_first)]


def usable(store: ShardStore, positions: Positions, max_length: int) -> NDArray[np.bool_]:
    """Return which rows of a donor's store have the vector they would have at ``max_length``.

    Args:
        store: the donor's store.
        positions: shape (n,); -1 stands for a missing row.
        max_length: the new length; 0 means unlimited.
    """
    fits = positions >= 0
    tokens, truncated = store.seen(positions[fits])
    # 0 tokens: the teacher has no tokenizer that could be asked, so nobody knows whether the text was cut.
    fits[fits] = (tokens > 0) & ~truncated & ((tokens <= max_length) if max_length else True)
    return fits


def keeps_its_worth(found: str, wanted: str) -> bool:
    """Return whether rows of codec ``found`` are, as ``wanted``, what encoding anew would store.

    float32 keeps every bit, and rows of the same codec are taken as they are. A codebook belongs to one
    contract and is trained on its first shard, so nothing is carried into or out of product quantisation.
    """
    return wanted != "pq" and found in ("float32", wanted)


def codec_for(store: ShardStore, givers: Sequence[Donor]) -> str:
    """Return the codec that a build stores new rows of ``store`` in where none is asked for.

    It is that of the rows that are there; where there are none, that of the first donor whose rows could be
    carried over as they are.
    """
    lent = [name for name in (giver.store.codec_name for giver in givers) if keeps_its_worth(name, name)]
    return lent[0] if lent and not store.shards else store.codec_name


def locate(givers: Sequence[Donor], keys: KeyArray, max_length: int, codec: str) -> Found:
    """Find, for each key, the first donor with a usable row.

    Args:
        givers: as :func:`donors` returns them.
        keys: shape (n,).
        max_length: of the contract the rows are for; 0 means unlimited.
        codec: name of the codec the rows are to be stored in.
    """
    numbers = np.full(len(keys), _NOBODY, dtype=np.int16)
    places = np.full(len(keys), -1, dtype=np.int64)
    coarser = np.zeros(len(keys), dtype=np.bool_)
    for number, donor in enumerate(givers):
        wanting = np.flatnonzero(numbers == _NOBODY)
        positions = donor.store.locate(keys[wanting])
        fits = usable(donor.store, positions, max_length)
        wanting, positions = wanting[fits], positions[fits]
        fine_shards = np.array(
            [keeps_its_worth(shard.codec.name, codec) for shard in donor.store.shards], np.bool_
        )
        fine = fine_shards[shard_places(donor.store, positions)[0]]
        coarser[wanting[~fine]] = True
        numbers[wanting[fine]] = number
        places[wanting[fine]] = positions[fine]
    return Found(numbers, places, coarser & (numbers == _NOBODY))


def shard_places(
    store: ShardStore, positions: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of each position's shard in ``store.shards``, and its row in that shard.

    Args:
        store: the store the positions are of.
        positions: shape (n,), all of rows that are there.
    """
    starts = np.cumsum([0, *map(len, store.shards)], dtype=np.int64)
    numbers = np.searchsorted(starts, positions, side="right") - 1
    return numbers, positions - starts[numbers]


class _Pile:
    """Rows of one donor, one codec and one provenance, waiting to fill a shard."""

    def __init__(self, donor: Donor, codec: Codec, provenance: Mapping[str, object]) -> None:
        self._donor = donor
        self._codec = codec
        self._provenance = {**provenance, CARRIED_FROM: donor.max_length}
        self._keys: list[KeyArray] = []
        self._positions: list[Positions] = []
        self._count = 0

    def add(self, keys: KeyArray, positions: Positions) -> None:
        self._keys.append(keys)
        self._positions.append(positions)
        self._count += len(keys)

    def put_into(self, store: ShardStore, shard_rows: int, *, rest: bool = False) -> None:
        """Store whole shards, and with ``rest`` what is left over as well."""
        end = self._count if rest else self._count - self._count % shard_rows
        if not end:
            return
        keys, positions = np.concatenate(self._keys), np.concatenate(self._positions)
        for start in range(0, end, shard_rows):
            rows = slice(start, min(start + shard_rows, end))
            self._put(store, keys[rows], positions[rows])
        self._keys, self._positions = [keys[end:]], [positions[end:]]
        self._count -= end

    def _put(self, store: ShardStore, keys: KeyArray, positions: Positions) -> None:
        donor = self._donor.store
        tokens, truncated = donor.seen(positions)
        batch = VectorBatch(keys, donor.vectors(positions), tokens, truncated, self._provenance)
        if self._codec.name == store.codec_name:
            # What was lost was lost when the donor stored it; measured again it would look like nothing.
            shards = [donor.shards[number] for number in np.unique(shard_places(donor, positions)[0])]
            store.put_stored(self._codec, self._codec.encode(batch.vectors), batch, _error(shards))
        else:
            store.put(batch)


def _error(shards: Sequence[Shard]) -> dict[str, float]:
    """Return bounds of what the codec lost of rows out of ``shards``: the lowest of each figure."""
    errors = [shard.header.error for shard in shards]
    return {name: min(error[name] for error in errors) for name in errors[0]}


def _piles_of_shards(donor: Donor) -> tuple[list[_Pile], NDArray[np.int64]]:
    """Return a pile for each kind of a donor's shards, and the number of each shard's pile."""
    piles: dict[tuple[str, bytes], _Pile] = {}
    kinds = []
    for shard in donor.store.shards:
        provenance = {k: v for k, v in shard.header.provenance.items() if k != CARRIED_FROM}
        kinds.append((shard.codec.name, canonical_json(provenance)))
        piles.setdefault(kinds[-1], _Pile(donor, shard.codec, provenance))
    order = list(piles)
    return list(piles.values()), np.array([order.index(kind) for kind in kinds], dtype=np.int64)


def carry_over(
    cache: Cache,
    store: ShardStore,
    keys: KeyArray,
    shard_rows: int,
    on_keys: Callable[[int], None] | None = None,
    *,
    givers: Sequence[Donor] | None = None,
) -> Carried:
    """Store those of ``keys`` that a donor in ``cache`` holds a usable row of, without the teacher.

    Rows of one donor and one provenance are put together, in the order of ``keys``, ``shard_rows`` a shard.
    So a run that was killed, repeated with the keys that are still missing, cuts the same shards.

    Args:
        cache: the cache that ``store`` belongs to.
        store: where the rows go.
        keys: distinct keys that ``store`` lacks, in corpus order, shape (n,).
        shard_rows: vectors a shard.
        on_keys: called with the number of keys looked up so far, and carried over where they could be.
        givers: what :func:`donors` has returned; default: they are opened here.

    Raises:
        CorruptCacheError: if a donor's store is damaged.
        StorageError: if the store cannot be written.
    """
    carried = Carried()
    if givers is None:
        givers = donors(cache, store.contract)
    if not givers:
        return carried
    sorted_out = [_piles_of_shards(donor) for donor in givers]
    piles = [pile for of_donor, _ in sorted_out for pile in of_donor]
    for start in range(0, len(keys), _CHUNK_ROWS):
        chunk = keys[start : start + _CHUNK_ROWS]
        found = locate(givers, chunk, store.contract.max_length, store.codec_name)
        carried.coarser_rows += int(found.coarser.sum())
        for number, (of_donor, pile_of_shard) in enumerate(sorted_out):
            rows = np.flatnonzero(found.donors == number)
            carried.rows += len(rows)
            # Not shard by shard: rows of one pile stay in the order of the keys, wherever the chunks begin.
            chosen = pile_of_shard[shard_places(givers[number].store, found.positions[rows])[0]]
            for index, pile in enumerate(of_donor):
                mine = rows[chosen == index]
                pile.add(chunk[mine], found.positions[mine])
        for pile in piles:
            pile.put_into(store, shard_rows)
        if on_keys is not None:
            on_keys(start + len(chunk))
    for pile in piles:
        pile.put_into(store, shard_rows, rest=True)
    return carried
