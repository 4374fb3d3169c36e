"""Pulling whole teachers and corpora: every file that the cache lacks."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.share.mirror_notes import keep_shards
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.fetching import fetch_in_stages
from embedcache.share.pulling.outcome import (
    Fetched,
    PullEstimate,
    bytes_of,
    text_rows_of,
    unread_bytes_of,
    vectors_of,
)
from embedcache.share.pulling.plan import Preparation
from embedcache.share.pulling.recode import Recoder
from embedcache.sizes import counted


class WholePull:
    """A pull of all files that were asked for.

    Args:
        prepared: what is known of the remote.
        choice: what is wanted.
        jobs: transfers at once.
        meter: counts what arrives.
    """

    def __init__(self, prepared: Preparation, choice: PullChoice, jobs: int, meter: Meter) -> None:
        self._prepared, self._jobs, self._meter = prepared, jobs, meter
        self._recoder = None if choice.codec is None else Recoder(choice.codec)

    def targets(self) -> list[str]:
        """Return the paths in the cache that files are to lie at."""
        return [file.path for file in self._prepared.plan.wanted]

    def estimate(self) -> PullEstimate:
        """Return what is about to be fetched; nothing is written."""
        wanted, cache = self._prepared.plan.wanted, self._prepared.cache
        missing = list(wanted)
        if cache is not None:
            arrivals = self._arrivals(cache)
            missing = [file for file in wanted if not arrivals.has(file)]
        return PullEstimate(
            remote=self._prepared.source.where,
            manifests=len(self._prepared.stock.manifests),
            files=len(missing),
            bytes=bytes_of(missing),
            least_bytes=bytes_of(missing),
            counted_bytes=self._prepared.allowance.read + unread_bytes_of(missing),
            text_rows=text_rows_of(missing),
            vectors=vectors_of(missing),
            present=len(wanted) - len(missing),
            present_bytes=bytes_of(wanted) - bytes_of(missing),
            told=tuple(self._prepared.plan.told),
        )

    def run(self, cache: Cache) -> Fetched:
        """Fetch what ``cache`` lacks.

        Raises:
            InputError, RemoteError, StorageError: as :func:`embedcache.share.pull.pull`.
        """
        wanted = self._prepared.plan.wanted
        arrivals = self._arrivals(cache)
        self._protect_from_eviction(cache)
        missing = [file for file in wanted if not arrivals.has(file)]
        size = bytes_of(missing)
        # Another process may have added to the cache, or taken away, since it was looked at.
        self._prepared.allowance.refuse_too_much(cache.folder, unread_bytes_of(missing))
        self._meter.begin("fetch", total_files=len(missing), total_bytes=size)
        try:
            fetch_in_stages(self._prepared.source, cache, arrivals, missing, self._jobs)
            self._protect_from_eviction(cache)
        finally:
            arrivals.finish()
        recoder = self._recoder
        missing = [one for one in missing if one.path not in arrivals.brought_by_others]
        size = bytes_of(missing)
        return Fetched(
            fetched=len(missing),
            fetched_bytes=size,
            fetched_row_bytes=0,
            fetched_text_rows=text_rows_of(missing),
            fetched_vectors=vectors_of(missing),
            present=len(wanted) - len(missing),
            present_bytes=bytes_of(wanted) - size,
            converted=0 if recoder is None else recoder.converted,
            converted_bytes=0 if recoder is None else recoder.bytes,
            part=None,
            told=self._told(arrivals),
        )

    def _protect_from_eviction(self, cache: Cache) -> None:
        """Let no run delete wanted shards that it has fetched into this cache as its mirror."""
        for contract_id, contract in self._prepared.plan.contracts.items():
            names = [
                file.entry.stem
                for file in self._prepared.plan.wanted
                if file.entry.kind is Kind.SHARD and file.entry.teacher == contract_id
            ]
            keep_shards(cache, contract, names)

    def _arrivals(self, cache: Cache) -> Arrivals:
        plan = self._prepared.plan
        codebooks = [file.file.sha256 for file in plan.wanted if file.entry.kind is Kind.CODEBOOK]
        return Arrivals(
            self._prepared.source,
            cache,
            contracts=plan.contracts,
            codebooks=codebooks,
            meter=self._meter,
            recoder=self._recoder,
        )

    def _told(self, arrivals: Arrivals) -> tuple[str, ...]:
        told = [] if self._recoder is None else self._recoder.told()
        if arrivals.recoded_before:
            told.append(
                f"{counted(len(arrivals.recoded_before), 'shard')} left as an earlier pull with --codec has "
                "converted them; to have them as they were pushed, pull into another cache"
            )
        return tuple(told)
