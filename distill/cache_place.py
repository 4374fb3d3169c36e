"""What ``--cache`` of a training may name, looked at without opening anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import MissingInputError
from embedcache.share.remotes import list_remotes

if TYPE_CHECKING:
    from distill.config import RunConfig


def refuse_missing_cache(config: RunConfig) -> None:
    """Refuse a cache that is no remote and no folder; one that a build is to make may come later.

    Args:
        config: the configuration of the run.

    Raises:
        MissingInputError: if there is none; it names the remotes that have a name.
        CorruptCacheError: if the file that these are kept in is damaged.
    """
    place = config.cache
    if config.stream.wait is not None or "://" in place or Path(place).expanduser().exists():
        return
    names = list_remotes()
    if place not in names:
        raise MissingInputError(
            f"no cache at {place}: the folder does not exist, and no remote has this name (there are "
            f"{', '.join(names) or 'none'}): give a folder, or the name or URL of a remote"
        )
