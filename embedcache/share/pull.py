"""Pulling: what a remote has and a cache lacks is fetched.

Everything is planned before anything is written. Then files arrive in an order in which the cache is valid at
every moment, so that a pull that was killed has lost nothing, and the next goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.share.pulling.outcome import OnEstimate, PulledPart, PullEstimate
from embedcache.share.pulling.partial import PartPull
from embedcache.share.pulling.plan import Preparation, PullChoice, prepare, refuse_too_much
from embedcache.share.pulling.same_names import refuse_same_names
from embedcache.share.pulling.sample import ArrivalSamples, SampleCheck
from embedcache.share.pulling.temporaries import abandoned_bytes
from embedcache.share.pulling.whole import WholePull
from embedcache.share.transfer import JOBS


@dataclass(frozen=True)
class PullResult:
    """What a pull did.

    Attributes:
        remote: from where.
        manifests: how many manifests were looked at.
        fetched: files fetched.
        fetched_bytes: their size.
        fetched_text_rows: rows of corpora and views among that.
        fetched_vectors: vectors among that.
        present: files that the cache had already.
        present_bytes: their size.
        converted: shards among those fetched that are kept in another codec.
        converted_bytes: what they take in the cache.
        part: what became of a part of a corpus, where one was pulled.
        told: what is worth telling: versions and names that stayed as they are in the cache.
        samples: what became of comparing samples of what came with the live teachers.
        seconds: how long the transfer took, without that comparison.
    """

    remote: str
    manifests: int
    fetched: int
    fetched_bytes: int
    fetched_text_rows: int
    fetched_vectors: int
    present: int
    present_bytes: int
    converted: int
    converted_bytes: int
    part: PulledPart | None
    told: tuple[str, ...]
    samples: tuple[SampleCheck, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


def pull(
    cache: Cache | str | Path,
    remote: str,
    *,
    teachers: Collection[str] = (),
    corpora: Collection[str] = (),
    text: bool = True,
    alias: str | None = None,
    rows: int | None = None,
    where: str | None = None,
    codec: str | None = None,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    skip_manifests: Collection[str] = (),
    sample_check: bool = True,
    computing: Computing | None = None,
    jobs: int = JOBS,
    on_estimate: OnEstimate | None = None,
    on_progress: OnCheck | None = None,
) -> PullResult:
    """Fetch what ``remote`` has and ``cache`` lacks. Repeated, it fetches only what is still missing.

    With ``rows`` or ``where`` a part of one corpus becomes a corpus of its own, and of the teachers only the
    vectors of its texts come.

    Args:
        cache: the cache or its folder, which is made where there is none.
        remote: the name or the URL of a remote.
        teachers: pull these alone, names or contract ids; default: all.
        corpora: pull these alone, ``NAME`` or ``NAME@DIGEST``; default: all. Vectors are not chosen by it.
        text: whether corpora and their views are pulled.
        alias: what the one corpus of ``corpora``, or else the one teacher of ``teachers``, is called here.
        rows: of the one corpus of ``corpora`` the first so many rows, of those that ``where`` takes.
        where: of the one corpus of ``corpora`` the rows for which this condition in SQL holds.
        codec: keep vectors in this codec where they take more room as they are; ``float16`` or ``int8``.
        max_bytes: refuse to fetch more than this.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip_manifests: leave out manifests whose names begin with these six digits or more, with all that
            they alone list.
        sample_check: whether a sample of what comes of each teacher is compared with the live teacher, where
            its model is on this machine. If not, what earlier samples have found bad is kept from now on.
        computing: how to run that teacher; default: as when the vectors were made. A model that it names is
            used for the teachers that it is.
        jobs: transfers at once.
        on_estimate: called once, when it is known what is about to be fetched.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not there, several versions are and none was chosen, the cache holds another
            one, two names differ in case alone and the file system takes them for one, or more than
            ``max_bytes`` would have to be fetched. Nothing was written then, but for texts that were read to
            choose rows by.
        ContractMismatchError: if a teacher's name is another's in the cache.
        RemoteError: if the remote cannot be reached, or what lies there is refused.
        StorageError: if the cache cannot be written, or another process writes another version of a corpus
            or a view there meanwhile; what has arrived stays.
    """
    started = time.perf_counter()
    choice = PullChoice(
        teachers, corpora, text, alias, rows, where, codec, require_signature, max_bytes, skip_manifests
    )
    prepared, work, estimate = _planned(cache, remote, choice, jobs, on_progress, is_preview=False)
    if on_estimate is not None:
        on_estimate(estimate)
    # From here on something is written.
    target = prepared.cache or Cache.create(prepared.folder)
    arriving = ArrivalSamples(target, prepared.source, prepared.plan.contracts)
    done = work.run(target)
    seconds = time.perf_counter() - started
    samples: tuple[SampleCheck, ...] = ()
    kept: list[str] = []
    if sample_check:
        samples = arriving.compare(computing or Computing(), on_progress)
    else:
        kept = arriving.keep()
    return PullResult(
        remote=prepared.source.where,
        manifests=len(prepared.stock.manifests),
        fetched=done.files,
        fetched_bytes=done.bytes,
        fetched_text_rows=done.text_rows,
        fetched_vectors=done.vectors,
        present=done.present,
        present_bytes=done.present_bytes,
        converted=done.converted,
        converted_bytes=done.converted_bytes,
        part=done.part,
        told=(*prepared.plan.told, *done.told, *kept),
        samples=samples,
        seconds=seconds,
    )


def preview_pull(
    cache: Cache | str | Path,
    remote: str,
    *,
    teachers: Collection[str] = (),
    corpora: Collection[str] = (),
    text: bool = True,
    alias: str | None = None,
    rows: int | None = None,
    where: str | None = None,
    codec: str | None = None,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    skip_manifests: Collection[str] = (),
    on_progress: OnCheck | None = None,
) -> PullEstimate:
    """Say what :func:`pull` would fetch; only manifests and the small documents they list are read.

    Arguments and errors as those of :func:`pull`.
    """
    choice = PullChoice(
        teachers, corpora, text, alias, rows, where, codec, require_signature, max_bytes, skip_manifests
    )
    return _planned(cache, remote, choice, JOBS, on_progress, is_preview=True)[2]


def _planned(
    cache: Cache | str | Path,
    remote: str,
    choice: PullChoice,
    jobs: int,
    on_progress: OnCheck | None,
    *,
    is_preview: bool,
) -> tuple[Preparation, PartPull | WholePull, PullEstimate]:
    """Return what is known of the remote, the work that it makes, and what that fetches, if it may be."""
    meter = Meter(on_progress)
    prepared = prepare(cache, remote, choice, meter)
    work = (PartPull if choice.is_part else WholePull)(prepared, choice, jobs, meter)
    refuse_same_names(prepared.folder, work.targets())
    estimate = work.estimate()
    # What killed pulls have left takes room that this one may need.
    left = 0 if prepared.cache is None else abandoned_bytes(prepared.folder, delete=not is_preview)
    refuse_too_much(prepared.folder, estimate.bytes, choice.max_bytes, freed=left if is_preview else 0)
    return prepared, work, estimate
