"""What a build reads through to: rows that teammates have encoded are fetched from a remote."""

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
from embedcache.share.pulling.plan import refuse_more_than, refuse_too_much
from embedcache.share.pulling.take_rows import TakenRows
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import PublicKey, signed_manifests
from embedcache.share.remotes import location_of
from embedcache.share.rows.whole_fetches import no_ranges_notes

if TYPE_CHECKING:
    from embedcache.contract import Contract

_LESS = "build without --remote"


@dataclass(frozen=True)
class RemoteOptions:
    """A remote to read through to.

    Attributes:
        remote: its name or URL.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip_manifests: leave out those manifests whose names begin so.
        sample_check: whether a sample of each teacher that comes from there for the first time is compared
            with the live teacher.
        max_bytes: refuse to fetch more than this.
        on_note: called with what is worth knowing before anything is fetched for it; the summary has it too.
    """

    remote: str
    require_signature: str | Path | None = None
    skip_manifests: Collection[str] = ()
    sample_check: bool = True
    max_bytes: int | None = None
    on_note: Callable[[str], None] | None = None


@dataclass
class RemoteRows:
    """The use that one build makes of a remote.

    Attributes:
        remote: the remote.
        stock: what it has.
        options: how it is to be used.
        meter: counts what is fetched.
        taken: what was taken, one after the other.
        unworthy: rows that were left, because their codec keeps less.
        texts_saved: texts that the teacher need not read.
        checked: texts encoded for comparisons.
        seconds: what all of that took.
        sample_rate: texts a second in those comparisons.
        told: what is worth telling.
    """

    remote: Remote
    stock: Stock
    options: RemoteOptions
    meter: Meter
    taken: list[TakenRows] = field(default_factory=list)
    unworthy: int = 0
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
            InputError: if there is no remote of that name, or a key cannot be used.
            RemoteError: if it cannot be reached, or what lies there is refused.
        """
        started = time.perf_counter()
        key = None if options.require_signature is None else PublicKey.load(Path(options.require_signature))
        remote = Remote(location_of(options.remote))
        meter = Meter(_passed_on(progress, on_progress))
        meter.begin("read the remote")
        remote.require()
        only = None if key is None else signed_manifests(remote, key)
        stock = Stock(remote.manifests(cache, only, options.skip_manifests))
        seconds = time.perf_counter() - started
        return cls(remote, stock, options, meter, seconds=seconds)

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
        """See that so many bytes more may be fetched into a cache in ``folder``, and have room.

        Raises:
            InputError: if they are too many.
            StorageError: if the disk has no room for them.
        """
        most = self.options.max_bytes
        refuse_too_much(folder, self.meter.bytes + size, most, _LESS)

    def refusal(self, size: int) -> str:
        """Return why a build would not fetch so many bytes in all; empty where it would."""
        try:
            refuse_more_than(self.options.max_bytes, size, _LESS)
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
        rows = sum(one.rows for one in self.taken)
        self.told += no_ranges_notes(self.remote.where, sum(one.unranged_shards for one in self.taken))
        return RemoteSummary(
            remote=self.remote.where,
            rows=rows,
            bytes=self.meter.bytes,
            whole_shards=sum(one.whole_shards for one in self.taken),
            unworthy=self.unworthy,
            texts_saved=self.texts_saved,
            checked=self.checked,
            seconds=self.seconds,
            encode_seconds_saved=self.texts_saved / rate if rate else None,
            told=list(self.told),
        )


def _passed_on(progress: BuildProgress, on_progress: OnProgress | None) -> Callable[[CheckProgress], None]:
    def report(state: CheckProgress) -> None:
        counts = (state.bytes, state.total_bytes) if state.total_bytes else (state.rows, state.total_rows)
        progress.phase = f"remote: {state.phase}"
        progress.rows, progress.total = counts
        progress.seconds = state.seconds
        if on_progress is not None:
            on_progress(progress)

    return report
