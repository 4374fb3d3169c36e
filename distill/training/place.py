"""Where a run's vectors come from: a cache of this machine, one that is still being built, or a remote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distill.cache_place import refuse_missing_cache
from distill.data.begun import open_begun_cache
from distill.data.order import Feed
from distill.data.waiting import Patience
from distill.errors import ConfigError
from distill.losses.registry import LOSSES
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.cache import Cache
from embedcache.corpus.choice import CorpusChoice
from embedcache.sizes import readable

if TYPE_CHECKING:
    from distill.config import RunConfig
    from embedcache.check.progress import OnCheck
    from embedcache.contract import Contract
    from embedcache.share.mirror.mirror import Mirror
    from embedcache.store import VectorStore

_FROM_VECTORS = re.compile(r"\b(tokens|truncated|vectors|teachers|shards)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """A cache to train from.

    Attributes:
        cache: the cache; of a remote, its mirror.
        feed: how vectors come that are not all here.
        open_store: opens the store of a contract; None: that of the cache.
        corpus: name of the corpus in the cache; None: as the configuration says.
        corpus_said: what the configuration of a run is to call it, to find it again; None: as the cache does.
        mirror: of a remote, what fetches its shards.
    """

    cache: Cache
    feed: Feed = field(default_factory=Feed)
    open_store: Callable[[Contract], VectorStore] | None = None
    corpus: str | None = None
    corpus_said: str | None = None
    mirror: Mirror | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all vectors are here before training begins."""
        return self.feed.patience is None and self.open_store is None


@contextmanager
def open_place(
    config: RunConfig, on_progress: OnProgress | None = None, *, digest: str | None = None
) -> Iterator[Place]:
    """Open what ``config`` trains from; inside the block vectors may be fetched.

    Args:
        config: the configuration.
        on_progress: told what is fetched and waited for.
        digest: of the corpus that a run began with which is gone on with: of a remote, the corpus is that
            one, though others may have its name by now.

    Raises:
        ConfigError: if settings of its stream do not go together.
        EmbedCacheError: if the cache or the remote cannot be used.
    """
    stream = config.stream.filled()
    if stream.limit is not None and stream.window is not None:
        raise ConfigError(
            "stream.window: with a limit, windows are as many shards as fit in half of it: give --window or "
            "--cache-limit, not both"
        )
    tell = on_progress or (lambda progress: None)
    teacher = config.cached_teacher
    names = [teacher] if isinstance(teacher, str) else teacher or []
    asked = CorpusChoice.parse(config.corpus) if config.corpus is not None else None
    refuse_missing_cache(config)
    is_remote = _is_remote(config.cache)
    # Of a cache of this machine a name alone says enough: whether it is the same corpus is looked at later.
    if asked is not None and digest is not None and (is_remote or asked.digest):
        asked = replace(asked, digest=digest)
    if not is_remote:
        if given := stream.of_remote:
            raise ConfigError(
                f"{' and '.join(given)}: only for a remote, and the cache {config.cache} is a folder: leave "
                "it out, or give the name or URL of a remote as --cache"
            )
        if stream.wait is None:
            cache = Cache(config.cache)
            yield Place(cache, Feed(stream.window), corpus=_name_in(cache, asked), corpus_said=config.corpus)
            return
        cache = open_begun_cache(
            config.cache,
            asked,
            names,
            stream.wait,
            lambda what: tell(TrainProgress("wait", 0, 0, text=f"the build: {what}")),
        )
        patience = Patience(stream.wait, lambda there, rows: tell(TrainProgress("wait", there, rows)))
        feed = Feed(stream.window, None, patience)
        yield Place(cache, feed, corpus=_name_in(cache, asked), corpus_said=config.corpus)
        return
    if stream.wait is not None:
        raise ConfigError(
            f"stream.wait: it is for a build that adds to a cache of this machine, and {config.cache} is a "
            "remote: leave --wait-for-build out"
        )
    from embedcache.share.mirror.mirror import Mirror, remaining_manifests

    skipped = stream.skip_manifests or []
    if skipped and digest is not None:
        # One that was deleted since the run began needs no leaving out.
        skipped = remaining_manifests(config.cache, skipped)
    with Mirror.open(
        config.cache,
        stream.mirror,
        teachers=names,
        corpus=None if asked is None else str(asked),
        require_signature=stream.require_signature,
        skip_manifests=skipped,
        limit=stream.limit,
        max_bytes=stream.max_bytes,
        logits=LOSSES[config.loss.name].inside == "classes",
        on_progress=_fetching(tell),
        on_wait=lambda what: tell(TrainProgress("wait", 0, 0, text=what)),
    ) as mirror:
        _note(tell, f"what comes from {config.cache} is kept in the mirror {mirror.cache.folder}")
        yield Place(
            mirror.cache,
            Feed(stream.window, stream.limit),
            mirror.store,
            mirror.corpus,
            config.corpus or mirror.corpus_on_remote,
            mirror,
        )
        fetched = readable(mirror.fetched_bytes) if mirror.fetched_bytes else "nothing"
        _note(tell, f"{fetched} came from {config.cache} into the mirror {mirror.cache.folder}")


def refuse_remote(cache: str, what: str) -> None:
    """Refuse a remote where a cache of this machine is needed.

    Args:
        cache: what was given.
        what: what needs it, for the message.

    Raises:
        ConfigError: if it is a remote.
    """
    if _is_remote(cache):
        raise ConfigError(
            f"cache: {cache} is a remote, and {what} needs a cache of this machine: fetch it first, with "
            f"'embedcache pull {cache} --cache DIR', and give --cache DIR ('distill run' takes remotes)"
        )


def refuse_unknown_rows(config: RunConfig, place: Place) -> None:
    """Refuse what has to know all vectors before training begins, where they are not all here.

    Raises:
        ConfigError: naming the setting.
    """
    if place.is_whole:
        return
    found = _FROM_VECTORS.search(config.training.where or "")
    if found is not None:
        raise ConfigError(
            f"training.where: {found[0]!r} is known once all vectors are here, and they are still to come: "
            "use the corpus's own columns, or train from a whole cache"
        )
    if place.feed.patience is not None and LOSSES[config.loss.name].inside == "classes":
        raise ConfigError(
            f"stream.wait: the loss {config.loss.name} reads the logits of all rows before training begins: "
            "wait for the build to end, and leave --wait-for-build out"
        )


def _is_remote(cache: str) -> bool:
    from embedcache.share.mirror.mirror import is_remote

    return is_remote(cache)


def _name_in(cache: Cache, asked: CorpusChoice | None) -> str | None:
    """Return the name in a cache of the corpus that a digest tells; None where none was given."""
    if asked is None or not asked.digest:
        return None
    name = asked.among(cache.corpora())
    if name is None:
        raise ConfigError(
            f"corpus: no corpus in {cache.folder} has a digest that begins with {asked.digest}: it holds "
            f"{', '.join(cache.corpus_names()) or 'none'}, of which --corpus NAME takes one"
        )
    return name


def _note(tell: OnProgress, text: str) -> None:
    tell(TrainProgress("note", 0, 0, text=text))


def _fetching(tell: OnProgress) -> OnCheck:
    """Return what tells how far the mirror is, until training begins."""
    return lambda check: tell(TrainProgress("fetch", check.bytes, check.total_bytes, text=check.phase))
