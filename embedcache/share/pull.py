"""Pulling: fetching what a remote has and a cache lacks.

A pull is planned before anything is written. Then files arrive in an order in which the cache is valid at
every moment: if a pull is killed, nothing is lost, and the next one goes on from there.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.share.pulling.choice import EVERYTHING, PullChoice
from embedcache.share.pulling.outcome import Fetched, OnEstimate, PullEstimate
from embedcache.share.pulling.partial import PartPull
from embedcache.share.pulling.plan import Preparation, prepare
from embedcache.share.pulling.same_names import refuse_same_names
from embedcache.share.pulling.sample import ArrivalSamples
from embedcache.share.pulling.sample_check import SampleCheck
from embedcache.share.pulling.whole import WholePull
from embedcache.share.remote.remote import Remote
from embedcache.share.temporaries import abandoned_bytes
from embedcache.share.transfer import JOBS


@dataclass(frozen=True)
class PullResult(Fetched):
    """What a pull did: what it fetched, from where, and what samples of it say.

    Attributes:
        remote: from where.
        manifests: how many manifests were looked at.
        samples: what became of comparing samples of what came with the live teachers.
        seconds: how long the transfer took, without that comparison.
        sample_seconds: how long the comparison took.
    """

    remote: str
    manifests: int
    samples: tuple[SampleCheck, ...]
    seconds: float
    sample_seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class _PlannedPull:
    """A pull of which everything is known before anything is written.

    Attributes:
        prepared: what is known of the remote.
        work: what fetches the files.
        estimate: how much that is.
    """

    prepared: Preparation
    work: PartPull | WholePull
    estimate: PullEstimate


def pull(
    cache: Cache | str | Path,
    remote: str | Remote,
    choice: PullChoice = EVERYTHING,
    *,
    sample_check: bool = True,
    computing: Computing | None = None,
    jobs: int = JOBS,
    on_estimate: OnEstimate | None = None,
    on_progress: OnCheck | None = None,
) -> PullResult:
    """Fetch what ``remote`` has and ``cache`` lacks. Repeated, it fetches only what is still missing.

    Args:
        cache: the cache or its folder; it is made if it is not there.
        remote: the name or the URL of a remote, or the remote itself.
        choice: what is pulled; default: all.
        sample_check: whether a sample of the vectors of each teacher is compared with the live teacher, if
            its model is on this machine. If False, vectors that earlier samples found bad are kept for good.
        computing: how to run that teacher; default: as when the vectors were made. If it names a model, that
            is used for the teacher whose model it is.
        jobs: transfers at once.
        on_estimate: called once with what is about to be fetched, before it is.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not there, several versions are and none was chosen, the cache holds another
            one, two names differ in case alone and the file system takes them for one, or more than
            ``choice.max_bytes`` would have to be fetched. Then nothing was written, except texts that were
            read to choose rows by.
        ContractMismatchError: if a teacher's name is another's in the cache.
        CacheFormatError: if the folder holds other things, or a cache of a newer version.
        CorruptCacheError: if the cache is damaged.
        RemoteError: if the remote cannot be reached, or what lies there is refused.
        StorageError: if the cache cannot be written, or another process writes another version of a corpus
            or a view there meanwhile; what has arrived stays.
    """
    started = time.perf_counter()
    planned = _plan_pull(cache, remote, choice, jobs, on_progress, is_preview=False)
    prepared = planned.prepared
    if on_estimate is not None:
        on_estimate(planned.estimate)
    # From here on something is written.
    target = prepared.cache or Cache.create(prepared.folder)
    arriving = ArrivalSamples(target, prepared.source, prepared.plan.contracts)
    fetched = planned.work.run(target)
    seconds = time.perf_counter() - started
    samples: tuple[SampleCheck, ...] = ()
    kept: list[str] = []
    if sample_check:
        samples = arriving.compare(computing or Computing(), on_progress)
    else:
        kept = arriving.keep()
    fetched = replace(fetched, told=(*prepared.plan.told, *fetched.told, *kept))
    return PullResult(
        **vars(fetched),
        remote=prepared.source.where,
        manifests=len(prepared.stock.manifests),
        samples=samples,
        seconds=seconds,
        sample_seconds=time.perf_counter() - started - seconds,
    )


def preview_pull(
    cache: Cache | str | Path,
    remote: str | Remote,
    choice: PullChoice = EVERYTHING,
    *,
    on_progress: OnCheck | None = None,
) -> PullEstimate:
    """Say what :func:`pull` would fetch; only manifests and the small documents they list are read.

    Args:
        cache: the cache or its folder; nothing is made where there is none.
        remote: the name or the URL of a remote, or the remote itself.
        choice: what would be pulled; default: all.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not there, several versions are and none was chosen, the cache holds another
            one, or more than ``choice.max_bytes`` would have to be fetched.
        ContractMismatchError: if a teacher's name is another's in the cache.
        CacheFormatError: if the folder holds other things, or a cache of a newer version.
        RemoteError: if the remote cannot be reached, or what lies there is refused.
        StorageError: if the disk has no room for what would be fetched.
    """
    return _plan_pull(cache, remote, choice, JOBS, on_progress, is_preview=True).estimate


def _plan_pull(
    cache: Cache | str | Path,
    remote: str | Remote,
    choice: PullChoice,
    jobs: int,
    on_progress: OnCheck | None,
    *,
    is_preview: bool,
) -> _PlannedPull:
    """Plan a pull, and refuse it if it fetches too much; but for a preview, delete what killed pulls left."""
    meter = Meter(on_progress)
    prepared = prepare(cache, remote, choice, meter)
    work = (PartPull if choice.is_part else WholePull)(prepared, choice, jobs, meter)
    refuse_same_names(prepared.folder, work.targets())
    estimate = work.estimate()
    # What killed pulls have left takes room that this one may need.
    left = 0 if prepared.cache is None else abandoned_bytes(prepared.folder, delete=not is_preview)
    allowance = prepared.allowance
    least = estimate.counted_bytes - allowance.read
    allowance.refuse_too_much(prepared.folder, least, freed=left if is_preview else 0)
    return _PlannedPull(prepared, work, estimate)
