"""Which caches take part in a merge, and whose word counts where they do not agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from embedcache.cache import Cache
from embedcache.errors import InputError

T = TypeVar("T")

FIRST, LAST = "first", "last"
"""Words for whose side wins, beside the caches themselves."""


@dataclass(frozen=True)
class Source:
    """A cache to be merged.

    Attributes:
        label: as it was given.
        cache: the cache.
    """

    label: str
    cache: Cache

    def is_at(self, folder: Path) -> bool:
        """Return whether it is the cache in ``folder``."""
        return self.cache.folder.resolve() == folder.resolve()


@dataclass(frozen=True)
class Ruling:
    """How conflicts are decided.

    Attributes:
        preferred: whether the first of the sources wins.
        keep_both: whether what loses keeps a name of its own, where it can have one.
        verdict: what is said of a winner.
    """

    preferred: bool
    keep_both: bool
    verdict: str

    @property
    def decides(self) -> bool:
        """Whether conflicts of names are decided at all."""
        return self.preferred or self.keep_both


def open_sources(caches: Sequence[str | Path], target: Path) -> list[Source]:
    """Return the caches to be merged in order; first what is at ``target``, if there is one.

    Raises:
        InputError: if there is none, or one lies in another or is named twice.
        CacheFormatError: if a folder is no cache.
    """
    if not caches:
        raise InputError("no cache to merge was given: name one or more, and --into for where they go")
    place = target.resolve()
    # What is there and is no cache is refused before the work, not after it.
    empty = target.is_dir() and all(entry.name.startswith(".") for entry in target.iterdir())
    sources = [Source(str(target), Cache(target))] if target.exists() and not empty else []
    places = [place]
    for one in caches:
        source = Cache(one)
        where = source.folder.resolve()
        if any(where == other or where in other.parents or other in where.parents for other in places):
            raise InputError(
                f"{one} is named twice, or lies in another of the caches: name each once; what is at --into "
                f"({target}) already takes part without being named"
            )
        places.append(where)
        sources.append(Source(str(one), source))
    return sources


def rule(
    sources: Sequence[Source], prefer: str | Path | None, *, keep_both: bool
) -> tuple[Ruling, list[Source]]:
    """Return how conflicts are decided, and the sources with the winner first.

    Raises:
        InputError: if ``prefer`` is none of the sources.
    """
    if prefer is None:
        return Ruling(preferred=False, keep_both=keep_both, verdict="--keep-both, the first"), list(sources)
    verdict = f"--prefer {prefer}"
    if prefer == FIRST:
        return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), list(sources)
    if prefer == LAST:
        return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), list(reversed(sources))
    best = [source for source in sources if source.is_at(Path(prefer).expanduser())]
    if not best:
        raise InputError(
            f"{verdict}: expected {FIRST}, {LAST} or one of the caches "
            f"({', '.join(source.label for source in sources)})"
        )
    others = [source for source in sources if source not in best]
    return Ruling(preferred=True, keep_both=keep_both, verdict=verdict), [*best, *others]


def label(holders: Sequence[tuple[Source, T]]) -> str:
    """Return which caches hold something."""
    return ", ".join(source.label for source, _ in holders)
