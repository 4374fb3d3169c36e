"""Rows whose vectors a pull has found bad: counted, and kept from whoever would make something of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.reuse import are_in_shards
from embedcache.sample_notes import FOUND_BAD, bad_shards
from embedcache.sizes import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.corpus.corpus import Corpus
    from embedcache.store.store import ShardStore


class BadRows:
    """Counts rows that are read from shards which are marked as bad.

    Args:
        cache: the cache.
        contract: the teacher's.
        store: its vectors.

    Attributes:
        count: how many there were among those that were added.
    """

    def __init__(self, cache: Cache, contract: Contract, store: ShardStore) -> None:
        self._cache, self._contract, self._store = cache, contract, store
        # Marks may outlast their shards.
        self._marked = bad_shards(cache, contract.id) & {shard.name for shard in store.shards}
        self.count = 0

    def add(self, positions: NDArray[np.integer]) -> None:
        """Look at rows by their positions in the store, shape (n,); -1 stands for one that is not there."""
        if self._marked:
            there = positions[positions >= 0]
            self.count += int(are_in_shards(self._store, there, self._marked).sum())

    def add_corpus(self, corpus: Corpus) -> None:
        """Look at the rows of a corpus, or of a view, that have a vector.

        Raises:
            CorruptCacheError: if a part of it is damaged.
        """
        if self._marked:
            for keys in corpus.iter_keys():
                self.add(self._store.locate(keys))

    def refuse(self) -> None:
        """See that there was none.

        Raises:
            InputError: if there was; it says what to do.
        """
        if self.count:
            name = self._cache.teacher(self._contract.id).name
            raise InputError(f"{self._cache.folder}: {told_bad_rows(self.count, name)}")


def refuse_bad_rows(
    cache: Cache, contract: Contract, store: ShardStore, *positions: NDArray[np.integer]
) -> None:
    """See that no row is read from a shard that is marked as bad.

    Args:
        cache: the cache.
        contract: the teacher's.
        store: its vectors.
        positions: the rows in ``store``, arrays of shape (n,).

    Raises:
        InputError: if one is; it says what to do.
    """
    found = BadRows(cache, contract, store)
    for some in positions:
        found.add(some)
    found.refuse()


def told_bad_rows(count: int, teacher: str) -> str:
    """Return what is wrong with so many rows of a teacher, and what to do."""
    have = "has its vector" if count == 1 else "have their vectors"
    return (
        f"{counted(count, 'row')} {have} of teacher {teacher!r} from shards in which {FOUND_BAD}: "
        f"'embedcache rm teacher {teacher} --bad' deletes these shards, and a build encodes what is missing "
        "then; a pull with --no-sample-check from a remote that has them keeps them"
    )
