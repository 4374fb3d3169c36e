"""Syncing: pull, then push."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.share.pull import PullResult, pull
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
    on_pulled: Callable[[PullResult], None] | None = None,
    on_progress: OnCheck | None = None,
) -> SyncResult:
    """Fetch what ``cache`` lacks, then send what ``remote`` lacks. Arguments and errors as those of the two.

    A remote on which nothing lies yet is pushed to alone. Where a sample of what came is bad, nothing is
    pushed. ``on_pulled`` is called with what the pull did once that is done, whatever becomes of the push.
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
