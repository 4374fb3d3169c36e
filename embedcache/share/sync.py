"""Syncing: pull, then push."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.progress import OnCheck
from embedcache.corpus.choice import CorpusChoice
from embedcache.errors import InputError
from embedcache.share.pull import PullResult, pull
from embedcache.share.pulling.choice import EVERYTHING, PullChoice
from embedcache.share.pulling.outcome import OnEstimate
from embedcache.share.pulling.sample_check import bad_samples
from embedcache.share.push import PushResult, push
from embedcache.share.pushing.selection import PushChoice
from embedcache.share.remote.open_stock import open_remote
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
    choice: PullChoice = EVERYTHING,
    *,
    by: str = "",
    message: str = "",
    text_licence: str = "",
    sign: str | Path | None = None,
    alone: bool = False,
    new_remote: bool = False,
    sample_check: bool = True,
    computing: Computing | None = None,
    jobs: int = JOBS,
    on_estimate: OnEstimate | None = None,
    on_pulled: Callable[[PullResult], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    on_progress: OnCheck | None = None,
) -> SyncResult:
    """Fetch what ``cache`` lacks, then send what ``remote`` lacks.

    Nothing is pulled from a remote that nobody has pushed to yet. Nothing is pushed if a sample of what
    arrived is bad.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote.
        choice: what is pulled; its teachers, corpora and ``text`` choose what is pushed, too. Of the names in
            it, one may be known to the remote or to the cache alone. Default: all.
        by, message, text_licence, sign, alone, new_remote: as for :func:`embedcache.share.push.push`.
        sample_check, computing: as for :func:`embedcache.share.pull.pull`.
        jobs: transfers at once.
        on_estimate: called once with what is about to be pulled, before it is.
        on_pulled: called with the result of the pull as soon as it is done, before the push.
        on_warning: as for :func:`embedcache.share.push.push`.
        on_progress: called as the work goes on.

    Raises:
        InputError: if there is no remote of that name; if a name is neither there nor here, the choice is a
            part of a corpus or gives another name, the pull cannot tell which version of a corpus is meant,
            the cache holds another one, or more than ``choice.max_bytes`` would have to be fetched; or if
            the push has nothing to send, a key cannot be used, or vectors of the cache were found bad.
        ContractMismatchError: if a teacher's name is another's in the cache.
        MissingExtraError: if manifests are to be signed, or their signatures read, without ``cryptography``.
        CacheFormatError: if the folder is no cache, or one of a newer version.
        CorruptCacheError: if a file of the cache is damaged.
        RemoteError: if the remote cannot be reached or written to, or what lies there is refused.
        StorageError: if the cache cannot be written; what has arrived stays.
    """
    if choice.is_part or choice.alias is not None:
        raise InputError(
            "a sync takes whole corpora under their own names: pull with --rows, --where or --as, then push"
        )
    # A digest tells versions of the remote apart; the cache has one of each name.
    names = [CorpusChoice.parse(text).name for text in choice.corpora]
    pulled = None
    # What the pull has read of it, the push need not read again.
    source = open_remote(remote)
    if source.is_there() and source.manifest_ids():
        pulled = pull(
            cache,
            source,
            replace(choice, allow_local_names=True),
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
        source,
        PushChoice(choice.teachers, names, choice.text),
        text_licence=text_licence,
        by=by,
        message=message,
        sign=sign,
        alone=alone,
        new_remote=new_remote,
        jobs=jobs,
        on_warning=on_warning,
        on_progress=on_progress,
    )
    return SyncResult(pulled, pushed)
