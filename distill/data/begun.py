"""A build that has only just been started: its cache, corpus and teacher are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from distill.errors import DataError
from embedcache.cache import Cache
from embedcache.corpus.choice import CorpusChoice

_POLL_SECONDS = 0.5


def open_begun_cache(
    folder: str | Path,
    corpus: CorpusChoice | None,
    teachers: Sequence[str],
    minutes: float,
    on_wait: Callable[[str], None],
) -> Cache:
    """Open a cache once a build has put into it what a run begins with.

    A build names its teacher last, after the corpus is there as a whole.

    Args:
        folder: the cache's folder; it need not be there yet.
        corpus: which corpus; None: any.
        teachers: names of teachers, or how their contract ids begin; none: any teacher.
        minutes: give up after so long.
        on_wait: called with what is waited for, whenever that is something else.

    Raises:
        DataError: if it did not come.
        EmbedCacheError: if what lies there is no cache, or is damaged.
    """
    began, told = time.monotonic(), ""
    while missing := _missing(Path(folder).expanduser(), corpus, teachers):
        if time.monotonic() - began > 60 * minutes:
            raise DataError(
                f"waited {minutes:g} minutes for {missing}, and it did not come: see whether 'embedcache "
                "build' for this corpus and teacher runs, and whether --cache, --corpus and --teacher are "
                "what it was given"
            )
        if missing != told:
            on_wait(missing)
            told = missing
        time.sleep(_POLL_SECONDS)
    return Cache(folder)


def _missing(folder: Path, corpus: CorpusChoice | None, teachers: Sequence[str]) -> str:
    """Return what is not there yet, in words; empty where nothing is missing."""
    # A build writes the marker of a cache before all else: where other things lie, the cache refuses them.
    if not folder.exists() or (folder.is_dir() and not _visible(folder)):
        return f"the cache {folder}"
    cache = Cache(folder)
    corpora = cache.corpus_names()
    if not corpora or (corpus is not None and not _has(cache, corpus)):
        wanted = "a corpus" if corpus is None else f"the corpus {str(corpus)!r}"
        return f"{wanted} in {folder} (it holds {', '.join(corpora) or 'none'})"
    there = cache.teachers()
    absent = [
        name
        for name in teachers
        if not any(one.name == name or one.contract.id.startswith(name) for one in there)
    ]
    if absent or not there:
        wanted = f"the teacher {', '.join(map(repr, absent))}" if absent else "a teacher"
        return f"{wanted} in {folder} (it holds {', '.join(one.name for one in there) or 'none'})"
    return ""


def _has(cache: Cache, corpus: CorpusChoice) -> bool:
    if not corpus.digest:
        return corpus.name in cache.corpus_names()
    return corpus.among(cache.corpora()) is not None


def _visible(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]
