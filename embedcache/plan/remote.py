"""What a planned build would fetch from a remote: found with what the build itself plans with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.build_lender import Lender
from embedcache.build_outputs import codec_of_store
from embedcache.build_remote import RemoteOptions, RemoteRows
from embedcache.build_report import BuildProgress
from embedcache.cache import Cache
from embedcache.plan.survey import Holdings, Lacking
from embedcache.reuse import donors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.store import ShardStore


@dataclass(frozen=True)
class RemoteOfPlan:
    """What a build would take from a remote.

    Attributes:
        remote: where it lies.
        texts: distinct texts that need not be encoded, because it has all that is lacking of them.
        rows: rows that would be fetched, those of all outputs together.
        bytes: what would be fetched for them; row indexes are not counted, and a view's rows are planned with
            the others.
        whole_shards: shards that would come whole; the others' rows come alone.
        coarser_rows: rows that would be encoded although it has them, because their codec keeps less.
        index_bytes: row indexes that were fetched to find this out.
        told: what else is worth telling.
        refused: why a build would refuse to fetch all that; empty where it would not.
    """

    remote: str
    texts: int
    rows: int
    bytes: int
    whole_shards: int
    coarser_rows: int
    index_bytes: int
    told: tuple[str, ...]
    refused: str


class PlannedRemote:
    """A remote beside the outputs of a planned build.

    Args:
        rows: the use that is made of it.
        cache: keeps row indexes; what a build would build into, or one for the time being.
        lasting: whether the build finds them there.
    """

    def __init__(self, rows: RemoteRows, cache: Cache, *, lasting: bool) -> None:
        self._rows, self._cache, self._lasting = rows, cache, lasting
        self._outputs: list[tuple[ShardStore, Lender]] = []

    def add(self, contract: Contract, asked: str | None) -> Holdings:
        """Return what the cache has of the next output, in the codec that a build would store the rest in.

        Raises:
            InputError: if that is the remote's codec, which loses something, and nobody has asked for it.
            RemoteError: if a row index cannot be had, or is refused.
        """
        store = self._cache.store(contract)
        lender = Lender.open(self._rows, self._cache.folder, self._cache, contract)
        codec = codec_of_store(asked, store, donors(self._cache, contract), lender)
        lender.narrow(codec)
        self._outputs.append((store, lender))
        return Holdings(contract, codec, self._cache)

    def plan(self, lacking: Lacking) -> tuple[RemoteOfPlan, NDArray[np.bool_]]:
        """Return what would be taken, and which of the texts would still be encoded, shape (n,).

        Args:
            lacking: the texts that would have to be encoded, were there no remote.
        """
        left = np.zeros(len(lacking.keys), dtype=np.bool_)
        loans = []
        for place, (store, lender) in enumerate(self._outputs):
            wanted = lacking.of_output(place)
            loans.append(lender.plan(store, lacking.keys[wanted]))
            wanted[wanted] = lender.usable.locate(lacking.keys[wanted])[0] < 0
            left |= wanted
        size, index_bytes = sum(loan.rows.bytes for loan in loans), self._rows.meter.bytes
        found = RemoteOfPlan(
            remote=self._rows.remote.where,
            texts=int((~left).sum()),
            rows=sum(len(loan.rows) for loan in loans),
            bytes=size,
            whole_shards=sum(len(loan.rows.whole) for loan in loans),
            coarser_rows=sum(loan.coarser_rows for loan in loans),
            index_bytes=index_bytes,
            told=tuple(self._rows.told),
            refused=self._rows.refusal(
                size if self._lasting else size + index_bytes, reads_again=not self._lasting
            ),
        )
        return found, left


@contextmanager
def planned_remote(
    remote: RemoteOptions | str, cache: Cache | None, on_progress: Callable[[BuildProgress], None]
) -> Iterator[PlannedRemote]:
    """Yield a remote to plan with.

    Args:
        remote: which one, and what of it.
        cache: what a build would build into; None: there is none yet.
        on_progress: called as what it has is read.

    Raises:
        InputError, RemoteError: as :meth:`embedcache.build_remote.RemoteRows.open`.
    """
    given = remote if isinstance(remote, RemoteOptions) else RemoteOptions(remote)
    with TemporaryDirectory(prefix="embedcache-plan-") as scratch:
        rows = RemoteRows.open(given, cache, BuildProgress(), on_progress)
        home = cache or Cache.create(Path(scratch, "cache"))
        yield PlannedRemote(rows, home, lasting=cache is not None)
