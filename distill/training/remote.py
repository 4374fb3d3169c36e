"""Vectors of a run: from a cache of this machine, or from a remote that is read while training."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.config.models import RunConfig
from distill.errors import ConfigError
from distill.training.tracking import OnProgress, TrainProgress, tell
from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import InputError, MissingInputError
from embedcache.sizes import readable
from embedcache.store import ShardStore

if TYPE_CHECKING:
    from embedcache.share.sample import SampleCheck

_FROM_VECTORS = re.compile(r"\b(tokens|truncated|vectors|teachers|shards)\b", re.IGNORECASE)


@dataclass(frozen=True)
class OpenedCache:
    """Cache to train from.

    Attributes:
        cache: the cache; of a remote, its mirror.
        corpus: name of the corpus in the cache; None: the only one.
        open_store: opens a store that fetches its shards when they are read; None: the cache holds all.
    """

    cache: Cache
    corpus: str | None
    open_store: Callable[[Contract], ShardStore] | None = None


@contextmanager
def open_cache(
    config: RunConfig, on_progress: OnProgress | None = None, *, digest: str | None = None
) -> Iterator[OpenedCache]:
    """Open the cache that ``config`` trains from; inside the block vectors may be fetched.

    Args:
        config: the configuration.
        on_progress: called with the bytes fetched, and with notes.
        digest: digest of the corpus of a resumed run; a remote may have given its name to another one.

    Raises:
        ConfigError: if settings for remotes are given for a cache of this machine.
        EmbedCacheError: if the cache or the remote cannot be used.
    """
    refuse_missing_cache(config.cache)
    stream = config.stream
    if not _is_remote(config.cache):
        if given := [f"stream.{key}" for key, value in stream if value is not None]:
            raise ConfigError(
                f"{' and '.join(given)}: only for a remote, and the cache {config.cache} is a folder: leave "
                "it out, or give the name or URL of a remote as --cache"
            )
        cache = Cache(config.cache)
        _refuse_unnamed(cache, config)
        yield OpenedCache(cache, config.corpus)
        return
    from distill.losses.registry import get_loss
    from embedcache.share.mirror import Mirror

    teacher = config.cached_teacher
    corpus = config.corpus
    if corpus is not None and digest is not None:
        corpus = f"{corpus.partition('@')[0]}@{digest}"
    with Mirror.open(
        config.cache,
        stream.mirror,
        teachers=[teacher] if isinstance(teacher, str) else teacher or [],
        corpus=corpus,
        require_signature=stream.require_signature,
        limit=stream.limit,
        with_logits=get_loss(config.loss.name).inside == "classes",
        progress=_Fetching(on_progress),
        on_sample=_noting(on_progress),
    ) as mirror:
        tell(on_progress, f"mirror of {config.cache}: {mirror.cache.folder}")
        yield OpenedCache(mirror.cache, mirror.corpus, None if stream.limit is None else mirror.store)
        fetched = readable(mirror.fetched_bytes) if mirror.fetched_bytes else "nothing"
        tell(on_progress, f"fetched {fetched} from {config.cache}")


def _refuse_unnamed(cache: Cache, config: RunConfig) -> None:
    """Raise ``ConfigError`` naming all of corpus and teacher that is left open where there are several."""
    corpora = cache.corpus_names()
    teachers = list(dict.fromkeys(teacher.name for teacher in cache.teachers()))
    several = []
    if config.corpus is None and len(corpora) > 1:
        several.append(_choice(corpora, "corpora", "corpus"))
    if config.cached_teacher is None:
        try:
            cache.teacher()
        except InputError:
            if len(teachers) > 1:
                several.append(_choice(teachers, "teachers", "teacher"))
    if several:
        raise ConfigError.joined(several)


def _choice(names: list[str], what: str, key: str) -> ConfigError:
    return ConfigError(f"the cache holds {len(names)} {what}: name one of {'|'.join(names)}", key)


def refuse_missing_cache(cache: str) -> None:
    """Raise ``MissingInputError`` where ``cache`` is neither a folder nor a remote; it names the remotes."""
    if Path(cache).expanduser().exists() or _is_remote(cache):
        return
    from embedcache.share.location import list_remotes

    raise MissingInputError(
        f"no cache at {cache}: the folder does not exist, and no remote has this name (remotes: "
        f"{', '.join(list_remotes()) or 'none'}): give a folder, or the name or URL of a remote"
    )


def refuse_remote(cache: str, what: str) -> None:
    """Raise ``ConfigError`` for a remote where a cache of this machine is needed.

    Args:
        cache: folder, name or URL.
        what: the command that needs the cache, for the message.
    """
    if _is_remote(cache):
        raise ConfigError(
            f"{cache} is a remote, and {what} needs a cache of this machine: fetch it first, with "
            f"'embedcache pull {cache} --cache DIR', and give --cache DIR ('distill run' takes remotes)",
            "cache",
        )


def refuse_unknown_rows(where: str | None, opened: OpenedCache) -> None:
    """Raise ``ConfigError`` for a predicate over vectors that are fetched during the training."""
    found = None if opened.open_store is None else _FROM_VECTORS.search(where or "")
    if found is not None:
        raise ConfigError(
            f"{found[0]!r} needs all vectors, and with --cache-limit they come during the "
            "training: use the corpus's own columns, or leave --cache-limit out",
            "training.where",
        )


def _is_remote(cache: str) -> bool:
    from embedcache.share.location import is_remote

    return is_remote(cache)


def _noting(on_progress: OnProgress | None) -> Callable[[SampleCheck], None]:
    """Return the callback for comparisons with live teachers; it notes each verdict on a teacher once."""
    noted = set[tuple[str, str]]()

    def note(sample: SampleCheck) -> None:
        if (sample.teacher, sample.verdict) not in noted:
            noted.add((sample.teacher, sample.verdict))
            detail = f" ({sample.sampled:,} texts)" if sample.verdict == "ok" else f": {sample.message}"
            tell(on_progress, f"sample of {sample.teacher}: {sample.verdict}{detail}")

    return note


class _Fetching:
    """Progress of a mirror, reported as progress of training."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress, self._lock = on_progress, threading.Lock()
        self._name, self._done, self._total = "", 0, 0

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        with self._lock:
            self._name, self._done, self._total = name, 0, total or 0
            self._show()

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count
            self._show()

    def skip(self, count: int) -> None:
        self.advance(count)

    def note(self, text: str) -> None:
        """Ignore the text."""

    def _show(self) -> None:
        if self._on_progress is not None:
            self._on_progress(TrainProgress("fetch", self._done, self._total, text=self._name))
