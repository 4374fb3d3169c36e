"""Pulling whole teachers and corpora: every file that the cache lacks."""

from __future__ import annotations

from collections.abc import Sequence

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.conversions import Conversions
from embedcache.share.mirror_notes import keep_shards
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.fetching import fetch_in_stages
from embedcache.share.pulling.outcome import Fetched, PullEstimate, bytes_of, text_rows_of, vectors_of
from embedcache.share.pulling.plan import Preparation, PullChoice, refuse_too_much
from embedcache.share.pulling.recode import Recoder
from embedcache.share.pulling.wanted import Wanted
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
        self._most = choice.max_bytes
        self._recoder = None if choice.codec is None else Recoder(choice.codec)
        # To find them every shard that is here is opened: once is enough.
        self._unnoted: dict[str, tuple[str, ...]] = {}

    def targets(self) -> list[str]:
        """Return the paths in the cache that files are to lie at."""
        return [file.path for file in self._prepared.plan.wanted]

    def estimate(self) -> PullEstimate:
        """Return what is about to be fetched; nothing is written."""
        wanted, cache = self._prepared.plan.wanted, self._prepared.cache
        missing = list(wanted)
        if cache is not None:
            arrivals = self._arrivals(cache)
            missing = [one for one in wanted if not arrivals.has(one)]
        return PullEstimate(
            remote=self._prepared.source.where,
            manifests=len(self._prepared.stock.manifests),
            files=len(missing),
            bytes=bytes_of(missing),
            text_rows=text_rows_of(missing),
            vectors=vectors_of(missing),
            present=len(wanted) - len(missing),
            present_bytes=bytes_of(wanted) - bytes_of(missing),
            told=(*self._prepared.plan.told, *self._doubts(missing)),
        )

    def run(self, cache: Cache) -> Fetched:
        """Fetch what ``cache`` lacks.

        Raises:
            InputError, RemoteError, StorageError: as :func:`embedcache.share.pull.pull`.
        """
        wanted = self._prepared.plan.wanted
        arrivals = self._arrivals(cache)
        self._keep(cache)
        missing = [one for one in wanted if not arrivals.has(one)]
        doubts = self._doubts(missing)
        size = bytes_of(missing)
        # Another process may have added to the cache, or taken away, since it was looked at.
        refuse_too_much(cache.folder, size, self._most)
        self._meter.begin("fetch", total_files=len(missing), total_bytes=size)
        try:
            fetch_in_stages(self._prepared.source, cache, arrivals, missing, self._jobs)
            self._keep(cache)
        finally:
            arrivals.finish()
        recoder = self._recoder
        missing = [one for one in missing if one.path not in arrivals.brought_by_others]
        size = bytes_of(missing)
        return Fetched(
            files=len(missing),
            bytes=size,
            text_rows=text_rows_of(missing),
            vectors=vectors_of(missing),
            present=len(wanted) - len(missing),
            present_bytes=bytes_of(wanted) - size,
            converted=0 if recoder is None else recoder.converted,
            converted_bytes=0 if recoder is None else recoder.bytes,
            part=None,
            told=(*doubts, *self._told(arrivals)),
        )

    def _doubts(self, missing: Sequence[Wanted]) -> list[str]:
        """Return what is to be told of shards that say that they are copies of what is ``missing``."""
        cache = self._prepared.cache
        if cache is None:
            return []
        conversions, count = Conversions(cache), 0
        for contract_id, contract in self._prepared.plan.contracts.items():
            coming = {
                one.entry.stem
                for one in missing
                if one.entry.kind is Kind.SHARD and one.entry.teacher == contract_id
            }
            if coming:
                if contract_id not in self._unnoted:
                    found = conversions.unnoted(cache.container(contract))
                    self._unnoted[contract_id] = tuple(found.values())
                count += sum(source in coming for source in self._unnoted[contract_id])
        say = "says that it is a copy" if count == 1 else "say that they are copies"
        told = (
            f"{counted(count, 'shard')} here {say} of what the remote has, which this cache has not noted: "
            "the originals are fetched"
        )
        return [told] if count else []

    def _keep(self, cache: Cache) -> None:
        """Make those shards stay that runs have fetched into a mirror, and would delete again."""
        for contract_id, contract in self._prepared.plan.contracts.items():
            mine = [one.entry for one in self._prepared.plan.wanted if one.entry.teacher == contract_id]
            keep_shards(cache, contract, [entry.stem for entry in mine if entry.kind is Kind.SHARD])

    def _arrivals(self, cache: Cache) -> Arrivals:
        plan = self._prepared.plan
        codebooks = [one.file.sha256 for one in plan.wanted if one.entry.kind is Kind.CODEBOOK]
        return Arrivals(self._prepared.source, cache, plan.contracts, codebooks, self._meter, self._recoder)

    def _told(self, arrivals: Arrivals) -> tuple[str, ...]:
        told = [] if self._recoder is None else self._recoder.told()
        if arrivals.recoded_before:
            told.append(
                f"{counted(len(arrivals.recoded_before), 'shard')} left as an earlier pull with --codec has "
                "converted them; to have them as they were pushed, pull into another cache"
            )
        return tuple(told)
