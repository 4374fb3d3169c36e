"""Syncing: pull, then push."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.share.pull import PullResult, pull
from embedcache.share.pulling.outcome import OnEstimate
from embedcache.share.pulling.sample import bad_samples
from embedcache.share.push import PushResult, push
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.transfer import JOBS


@dataclass(frozen=True)
class SyncResult:
    """What a sync did.

    Attributes:
        pulled: what the pull did; None where there was no remote yet.
        pushed: what the push did; None where the pull found vectors bad, and nothing was pushed.
    """

    pulled: PullResult | None
    pushed: PushResult | None

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        pulled = None if self.pulled is None else self.pulled.to_json()
        pushed = None if self.pushed is None else self.pushed.to_json()
        return {"pulled": pulled, "pushed": pushed}


def sync(
    cache: Cache | str | Path,
    remote: str,
    *,
    text: bool = True,
    by: str = "",
    message: str = "",
    text_licence: str = "",
    sign: str | Path | None = None,
    alone: bool = False,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    skip_manifests: Collection[str] = (),
    sample_check: bool = True,
    computing: Computing | None = None,
    jobs: int = JOBS,
    on_estimate: OnEstimate | None = None,
    on_pulled: Callable[[PullResult], None] | None = None,
    on_progress: OnCheck | None = None,
) -> SyncResult:
    """Fetch what ``cache`` lacks, then send what ``remote`` lacks.

    Nothing is pulled from a remote that nobody has pushed to yet. Nothing is pushed if a sample of what
    arrived is bad.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote.
        text: whether corpora and their views are pulled and pushed.
        by, message, text_licence, sign, alone: as for :func:`embedcache.share.push.push`.
        max_bytes, require_signature, skip_manifests, sample_check, computing: as for
            :func:`embedcache.share.pull.pull`.
        jobs: transfers at once.
        on_estimate: called once with what is about to be pulled, before it is.
        on_pulled: called with the result of the pull as soon as it is done, before the push.
        on_progress: called as the work goes on.

    Raises:
        InputError: if there is no remote of that name; if the pull cannot tell which version of a corpus is
            meant, the cache holds another one, or more than ``max_bytes`` would have to be fetched; or if the
            push has nothing to send, a key cannot be used, or vectors of the cache were found bad.
        ContractMismatchError: if a teacher's name is another's in the cache.
        MissingExtraError: if manifests are to be signed, or their signatures read, without ``cryptography``.
        CacheFormatError: if the folder is no cache, or one of a newer version.
        CorruptCacheError: if a file of the cache is damaged.
        RemoteError: if the remote cannot be reached or written to, or what lies there is refused.
        StorageError: if the cache cannot be written; what has arrived stays.
    """
    pulled = None
    if _has_manifests(remote):
        pulled = pull(
            cache,
            remote,
            text=text,
            max_bytes=max_bytes,
            require_signature=require_signature,
            skip_manifests=skip_manifests,
            sample_check=sample_check,
            computing=computing,
            jobs=jobs,
            on_estimate=on_estimate,
            on_progress=on_progress,
        )
        if on_pulled is not None:
            on_pulled(pulled)
        if bad_samples(pulled.samples):
            return SyncResult(pulled, None)
    pushed = push(
        cache,
        remote,
        text=text,
        text_licence=text_licence,
        by=by,
        message=message,
        sign=sign,
        alone=alone,
        jobs=jobs,
        on_progress=on_progress,
    )
    return SyncResult(pulled, pushed)


def _has_manifests(remote: str) -> bool:
    source = Remote(location_of(remote))
    return source.is_there() and bool(source.manifest_ids())
