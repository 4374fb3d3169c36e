"""Building with a remote: rows that teammates have encoded are fetched instead of encoded again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.build_report import BuildProgress, OnProgress, RemoteSummary
from embedcache.cache import Cache
from embedcache.check.progress import CheckProgress, Meter
from embedcache.errors import InputError
from embedcache.share.limits import Allowance
from embedcache.share.pulling.take_rows import TakenRows
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.open_stock import open_stock
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.whole_fetches import less_without_ranges, no_ranges_notes

if TYPE_CHECKING:
    from embedcache.contract import Contract

_LESS = "build without --remote"


@dataclass(frozen=True)
class RemoteOptions:
    """A remote that a build takes rows from.

    Attributes:
        remote: its name or URL.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip_manifests: leave out those manifests whose names begin so.
        sample_check: whether a sample of the rows of each teacher is compared with the live teacher, if none
            of that teacher were taken from this remote before.
        max_bytes: refuse to fetch more than this.
        on_note: called with what is worth knowing before anything is fetched; the summary has it too.
    """

    remote: str
    require_signature: str | Path | None = None
    skip_manifests: Collection[str] = ()
    sample_check: bool = True
    max_bytes: int | None = None
    on_note: Callable[[str], None] | None = None


@dataclass
class RemoteRows:
    """A remote during one build, with counts of what is taken from it.

    Attributes:
        remote: the remote.
        stock: what it has.
        options: how it is to be used.
        meter: counts what is fetched.
        allowance: how much may be fetched, with what was read to look at it.
        taken: what each store has taken.
        coarser_rows: rows that were not taken, because their codec keeps less.
        texts_saved: texts that the teacher need not read.
        checked: texts encoded for comparisons.
        seconds: how long reading the remote, comparing and fetching took.
        sample_rate: texts a second that the teacher encodes in those comparisons.
        told: what is worth telling.
    """

    remote: Remote
    stock: Stock
    options: RemoteOptions
    meter: Meter
    allowance: Allowance
    taken: list[TakenRows] = field(default_factory=list)
    coarser_rows: int = 0
    texts_saved: int = 0
    checked: int = 0
    seconds: float = 0.0
    sample_rate: float = 0.0
    told: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        options: RemoteOptions,
        cache: Cache | None,
        progress: BuildProgress,
        on_progress: OnProgress | None,
    ) -> RemoteRows:
        """Look at what a remote has.

        Args:
            options: which remote, and what of it.
            cache: keeps copies of what is read; None where there is none yet.
            progress: kept up to date.
            on_progress: called with it.

        Raises:
            InputError: if there is no remote of that name, a key cannot be used, or its manifests are more
                than may be fetched.
            RemoteError: if it cannot be reached, or what lies there is refused.
        """
        started = time.perf_counter()
        meter = Meter(_passed_on(progress, on_progress))
        meter.begin("read the remote")
        allowance = Allowance(options.max_bytes, _LESS)
        remote, stock = open_stock(
            options.remote, cache, options.require_signature, options.skip_manifests, allowance=allowance
        )
        seconds = time.perf_counter() - started
        return cls(remote, stock, options, meter, allowance, seconds=seconds)

    def tell(self, notes: Sequence[str]) -> None:
        """Keep notes, and pass them on at once: they are to be known before anything is fetched."""
        self.told += notes
        if self.options.on_note is not None:
            for note in notes:
                self.options.on_note(note)

    def codebooks(self, contract: Contract) -> dict[str, SharedFile]:
        """Return the codebooks that the remote has of a teacher, by name: with one, none has to be learnt."""
        return self.stock.codebooks(contract.id)

    def refuse_too_much(self, folder: Path, size: int) -> None:
        """Refuse to fetch ``size`` more bytes into a cache if that is too much.

        Raises:
            InputError: if they are, with those fetched before, more than ``max_bytes`` of the options.
            StorageError: if the disk of ``folder`` has no room for them.
        """
        self.allowance.refuse_too_much(folder, size, fetched=self.meter.bytes)

    def refuse_whole_shards(self, folder: Path, size: int) -> None:
        """Refuse to fetch ``size`` more bytes of whole shards, which a remote without ranges takes.

        Raises:
            InputError, StorageError: as :meth:`refuse_too_much`.
        """
        less = less_without_ranges(_LESS, self.remote.where)
        self.allowance.refuse_too_much(folder, size, less, fetched=self.meter.bytes)

    def refusal(self, size: int, *, reads_again: bool) -> str:
        """Return why a build would refuse to fetch so many bytes; empty if it would not.

        Args:
            size: how many bytes.
            reads_again: whether the build would fetch manifests again, too.
        """
        allowance = self.allowance if reads_again else Allowance(self.options.max_bytes, _LESS)
        try:
            allowance.refuse_more(size)
        except InputError as error:
            return str(error)
        return ""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def summary(self, encoded: int, encode_seconds: float) -> RemoteSummary:
        """Return what was taken.

        Args:
            encoded: texts that the build has encoded.
            encode_seconds: what that took.
        """
        rate = encoded / encode_seconds if encoded and encode_seconds else self.sample_rate
        unranged_shards = sum(taken.unranged_shards for taken in self.taken)
        self.told += no_ranges_notes(self.remote.where, unranged_shards)
        return RemoteSummary(
            remote=self.remote.where,
            rows=sum(taken.rows for taken in self.taken),
            bytes=self.meter.bytes,
            whole_shards=sum(taken.whole_shards for taken in self.taken),
            coarser_rows=self.coarser_rows,
            texts_saved=self.texts_saved,
            checked=self.checked,
            seconds=self.seconds,
            encode_seconds_saved=self.texts_saved / rate if rate else None,
            told=list(self.told),
        )


def _passed_on(progress: BuildProgress, on_progress: OnProgress | None) -> Callable[[CheckProgress], None]:
    def report(state: CheckProgress) -> None:
        progress.begin(f"remote: {state.phase}")
        if state.total_bytes:
            progress.rows, progress.total, progress.unit = state.bytes, state.total_bytes, "bytes"
        elif state.rows or state.total_rows:
            progress.rows, progress.total = state.rows, state.total_rows
        else:
            progress.unit = ""
        progress.seconds = state.seconds
        if on_progress is not None:
            on_progress(progress)

    return report
