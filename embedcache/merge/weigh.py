"""Which rows of several stores of one contract are taken: of every key, what the store that wins reads.

A row is left behind where it is another vector than the winner's, beyond what noise explains, and where the
same vector is there in a finer codec. Rows that are the same but for noise all stay, so that whole shards do.
Memory is a byte a row, and a block of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODEC_NAMES, Vectors
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.merge.noise import compare_rows, noise_angle
from embedcache.reuse import shard_places
from embedcache.store import Shard, ShardStore
from embedcache.store.base import Positions

_LOCATE_ROWS = 65536
_BLOCK_ROWS = 4096
_EXAMPLES = 3

OnRows = Callable[[int, int], None]
"""Called with the number of rows looked at and their total."""


@dataclass(frozen=True)
class Taken:
    """A shard, and which of its rows are taken.

    Attributes:
        store: the number of the store it is taken from.
        shard: the shard.
        keep: bool, shape (n,); None where all rows are.
    """

    store: int
    shard: Shard
    keep: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        """How many rows are taken."""
        return len(self.shard) if self.keep is None else int(self.keep.sum())


@dataclass
class Dispute:
    """Keys for which two stores have two vectors, all computed in the same two ways.

    Attributes:
        winner, loser: numbers of the stores.
        ways: how the winner's and the loser's vectors were made: codec and provenance.
        keys: how many.
        worst_cosine: the lowest cosine of two vectors.
        expected_cosine: what noise explains, of these two.
        examples: some of the keys, ``V16``.
    """

    winner: int
    loser: int
    ways: tuple[Mapping[str, object], Mapping[str, object]]
    keys: int = 0
    worst_cosine: float = 1.0
    expected_cosine: float = 1.0
    examples: list[bytes] = field(default_factory=list)


@dataclass
class Weighed:
    """What is taken of the stores of one contract.

    Attributes:
        taken: the shards, in the order of the stores; those of no row too.
        same: rows whose vector another store has bit by bit.
        near: rows that another store has as well, but for noise.
        worst_near: the lowest cosine among these.
        coarser: rows left behind because another store has them in a finer codec.
        unread: rows left behind that were never read where they were: of a key that stands in several.
        disputes: what is beyond noise.
    """

    taken: list[Taken] = field(default_factory=list)
    same: int = 0
    near: int = 0
    worst_near: float = 1.0
    coarser: int = 0
    unread: int = 0
    disputes: list[Dispute] = field(default_factory=list)


def weigh(stores: Sequence[ShardStore], noise: float | None = None, on_rows: OnRows | None = None) -> Weighed:
    """Decide which rows of which shards are taken.

    Args:
        stores: of one contract; of two vectors of a key the earlier store's wins.
        noise: how much 1 - cosine of two vectors may be; default: what their shards' headers explain.
        on_rows: called as the work goes on.

    Raises:
        CorruptCacheError: if a shard is damaged.
    """
    return _Scales(stores, noise, on_rows).weigh()


class _Scales:
    def __init__(self, stores: Sequence[ShardStore], noise: float | None, on_rows: OnRows | None) -> None:
        self._stores, self._noise = stores, noise
        self._report = on_rows or (lambda done, total: None)
        self._found = Weighed()
        self._disputes: dict[tuple[int, int, bytes], Dispute] = {}
        self._angles = [np.array([noise_angle(one.header, noise) for one in s.shards]) for s in stores]
        self._fineness = [np.array([CODEC_NAMES.index(one.codec.name) for one in s.shards]) for s in stores]
        self._starts = [dict(_starts(store)) for store in stores]
        self._one_codec = len({one.codec.name for store in stores for one in store.shards}) < 2
        # Where no key can stand twice there is nothing to look up.
        self._alone = sum(bool(s.shards) for s in stores) < 2 and not any(s.repeats_keys for s in stores)

    def weigh(self) -> Weighed:
        names: set[str] = set()
        todo = []
        for number, store in enumerate(self._stores):
            todo += [(number, shard) for shard in store.shards if shard.name not in names]
            # A shard that an earlier store has is not looked at again, so its rows are counted here.
            self._found.same += sum(len(shard) for shard in store.shards if shard.name in names)
            names |= {shard.name for shard in store.shards}
        done, total = 0, sum(len(shard) for _, shard in todo)
        self._report(0, total)
        for number, shard in todo:
            keep = np.ones(len(shard), dtype=np.bool_)
            for first in range(0, 0 if self._alone else len(shard), _LOCATE_ROWS):
                rows = np.arange(first, min(first + _LOCATE_ROWS, len(shard)))
                keep[rows] = self._weigh_rows(number, shard, rows)
                self._report(done + int(rows[-1]) + 1, total)
            done += len(shard)
            self._found.taken.append(Taken(number, shard, None if keep.all() else keep))
            self._report(done, total)
        self._found.disputes = list(self._disputes.values())
        return self._found

    def _weigh_rows(self, number: int, shard: Shard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``rows`` of a shard are taken."""
        keys = shard.keys[rows]
        places = np.stack([store.locate(keys) for store in self._stores])
        readers = self._readers(shard, rows, places)
        # What stands in one row of one store is taken without a look.
        disputed = ((places >= 0).sum(axis=0) > 1) | (readers < 0)
        if self._one_codec:
            # Neither is what the winner reads.
            disputed &= readers != (places >= 0).argmax(axis=0)
        contested = np.flatnonzero(disputed)
        keep = np.ones(len(rows), dtype=np.bool_)
        for first in range(0, len(contested), _BLOCK_ROWS):
            some = contested[first : first + _BLOCK_ROWS]
            reader = np.where(readers[some] < 0, number, readers[some])
            keep[some] = self._compare(shard, rows[some], places[:, some], reader, readers[some] >= 0)
        return keep

    def _readers(self, shard: Shard, rows: NDArray[np.int64], places: Positions) -> NDArray[np.int64]:
        """Return the first store that reads each row of a shard, -1 where none does, shape (n,)."""
        readers = np.full(len(rows), -1, dtype=np.int64)
        for number, starts in enumerate(self._starts):
            if shard.name in starts:
                reads = (places[number] == starts[shard.name] + rows) & (readers < 0)
                readers[reads] = number
        return readers

    def _compare(
        self,
        shard: Shard,
        rows: NDArray[np.int64],
        places: Positions,
        readers: NDArray[np.int64],
        is_read: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which of these rows are taken: near enough to the winner's, and in no coarser codec."""
        winners = (places >= 0).argmax(axis=0)
        won, won_angles, _ = self._vectors(winners, places[winners, np.arange(len(rows))])
        mine = np.asarray(shard.codec.decode(shard.stored.take(rows)), dtype=np.float32)
        my_angle = noise_angle(shard.header, self._noise)
        found, lost = compare_rows(mine, won, my_angle + won_angles)
        # It is the winner's own, whatever it holds.
        lost &= ~(is_read & (readers == winners))
        self._note(shard, rows, lost & is_read, winners, readers, places, found, my_angle + won_angles)
        self._found.unread += int((lost & ~is_read).sum())
        others = is_read & ~lost & (readers != winners)
        coarser = np.zeros(len(rows), dtype=np.bool_)
        if not self._one_codec:
            coarser = ~lost & (CODEC_NAMES.index(shard.codec.name) > self._finest(places, won, won_angles))
            self._found.coarser += int(coarser.sum())
        same = (mine == won).all(axis=1)
        self._found.same += int((others & same).sum())
        near = others & ~same
        self._found.near += int(near.sum())
        self._found.worst_near = min(self._found.worst_near, float(found[near].min(initial=1.0)))
        return ~lost & ~coarser

    def _finest(self, places: Positions, won: Vectors, won_angles: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of the finest codec that any store has the winner's vector in, shape (n,)."""
        finest = np.full(places.shape[1], len(CODEC_NAMES), dtype=np.int64)
        for number in range(len(self._stores)):
            there = np.flatnonzero(places[number] >= 0)
            theirs, angles, fineness = self._vectors(np.full(len(there), number), places[number, there])
            _, wrong = compare_rows(theirs, won[there], angles + won_angles[there])
            right = ~wrong
            finest[there[right]] = np.minimum(finest[there[right]], fineness[right])
        return finest

    def _vectors(
        self, numbers: NDArray[np.int64], places: Positions
    ) -> tuple[Vectors, NDArray[np.float64], NDArray[np.int64]]:
        """Return what stores read at places: vectors, noise angles and the fineness of their codecs."""
        vectors = np.empty((len(numbers), self._stores[0].contract.dimension), dtype=np.float32)
        angles, fineness = np.empty(len(numbers)), np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            store, there = self._stores[number], places[rows]
            vectors[rows] = store.vectors(there)
            shards, _ = shard_places(store, there)
            angles[rows], fineness[rows] = self._angles[number][shards], self._fineness[number][shards]
        return vectors, angles, fineness

    def _note(
        self,
        shard: Shard,
        rows: NDArray[np.int64],
        lost: NDArray[np.bool_],
        winners: NDArray[np.int64],
        readers: NDArray[np.int64],
        places: Positions,
        found: NDArray[np.float64],
        angles: NDArray[np.float64],
    ) -> None:
        """Write down what is lost, by who has won over whom and how their vectors were made."""
        gone = np.flatnonzero(lost)
        if not len(gone):
            return
        won_shards = np.empty(len(gone), dtype=np.int64)
        for winner in np.unique(winners[gone]).tolist():
            of_winner = winners[gone] == winner
            there = places[winner, gone[of_winner]]
            won_shards[of_winner], _ = shard_places(self._stores[winner], there)
        cases, case_of = np.unique(
            np.stack([winners[gone], readers[gone], won_shards]), axis=1, return_inverse=True
        )
        for number, (winner, loser, won_shard) in enumerate(cases.T.tolist()):
            some = gone[case_of.reshape(-1) == number]
            ways = (_way(self._stores[winner].shards[won_shard]), _way(shard))
            name = (winner, loser, canonical_json(list(ways)))
            dispute = self._disputes.setdefault(name, Dispute(winner, loser, ways))
            worst = int(some[found[some].argmin()])
            if not dispute.keys or found[worst] < dispute.worst_cosine:
                dispute.worst_cosine = float(found[worst])
                dispute.expected_cosine = float(np.cos(min(angles[worst], np.pi)))
            dispute.keys += len(some)
            wanted = some[: _EXAMPLES - len(dispute.examples)]
            dispute.examples += [key.tobytes() for key in shard.keys[rows[wanted]]]


def _starts(store: ShardStore) -> Iterator[tuple[str, int]]:
    start = 0
    for shard in store.shards:
        yield shard.name, start
        start += len(shard)


def _way(shard: Shard) -> dict[str, object]:
    return {"codec": shard.codec.name, **shard.header.provenance}


def keys_of(disputes: Sequence[Dispute]) -> KeyArray:
    """Return the keys of all examples, dtype ``V16``."""
    return np.frombuffer(b"".join(key for one in disputes for key in one.examples), dtype="V16")
