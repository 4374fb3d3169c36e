"""Shards that a pull has converted: to the remote that has what they were made of, they are no news."""

from __future__ import annotations

from collections.abc import Sequence

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.key_index import KeyIndex
from embedcache.share.pushing.declared import Declared
from embedcache.share.pushing.selection import LocalFile, Selection
from embedcache.share.pushing.taken_shards import keys_of
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.sizes import counted


def source_in(stock: Stock, local: LocalFile) -> SharedFile | None:
    """Return the shard that a file of a cache was converted from, where it is in ``stock``."""
    return _version(stock, local, local.copy_of)


def without_copies(
    selection: Selection, there: Declared, cache: Cache, meter: Meter
) -> tuple[Selection, list[str]]:
    """Return what of ``selection`` is no copy of a shard that a remote has, and what is worth telling.

    Where a shard says that it is a copy, and this cache has not noted that, it is taken for one if all of its
    keys are in the shard that it names: nobody can keep another's shard from being sent so. A copy that the
    remote lists stays: it may be gone from there.

    Args:
        selection: what is to be pushed.
        there: what the remote has; it is looked at only where there are copies.
        cache: the cache they are of.
        meter: counts the row indexes that are read for it; they are kept for the next time.

    Raises:
        CorruptCacheError: if a shard that says that it is a copy is damaged.
        RemoteError: if the remote cannot be reached, or a row index is refused.
    """
    if not any(local.copy_of or local.says_copy_of for local in selection.files):
        return selection, []
    stock = there.stock()
    kept = [local for local in selection.files if local.file in stock or source_in(stock, local) is None]
    doubtful = {
        local.file.path: (local, source)
        for local in kept
        if local.file not in stock and (source := _version(stock, local, local.says_copy_of)) is not None
    }
    true = _within_their_sources(list(doubtful.values()), selection.files, stock, there.remote, cache, meter)
    left = selection.reduced(tuple(local for local in kept if local.file.path not in true))
    told = (
        f"{counted(len(true), 'shard')} not sent: by their own word copies of what {there.remote.where} has, "
        "with the same texts, though this cache has not noted that"
    )
    return left, [told] if true else []


def _version(stock: Stock, local: LocalFile, name: str) -> SharedFile | None:
    if not name:
        return None
    folder = local.file.path.rpartition("/")[0]
    return next(iter(stock.versions(f"{folder}/{name}.arrow")), None)


def _within_their_sources(
    doubtful: Sequence[tuple[LocalFile, SharedFile]],
    files: Sequence[LocalFile],
    stock: Stock,
    remote: Remote,
    cache: Cache,
    meter: Meter,
) -> set[str]:
    """Return the paths of those shards whose keys are all in the shard beside them, which the remote has."""
    here = {local.file.sha256: local for local in files if local.file.entry.kind is Kind.SHARD}
    found = set()
    for teacher in sorted({local.file.entry.teacher for local, _ in doubtful}):
        mine = [(local, source) for local, source in doubtful if local.file.entry.teacher == teacher]
        # The keys of those that are here, too, need not be fetched.
        away = {source.sha256 for _, source in mine} - here.keys()
        there = RemoteKeys(
            remote, cache, stock, teacher, without={file.sha256 for file in stock if file.sha256 not in away}
        )
        there.load(meter)
        for local, source in mine:
            whole = there.index(source).keys if source.sha256 in away else keys_of(here[source.sha256])
            if (KeyIndex(whole).locate(keys_of(local)) >= 0).all():
                found.add(local.file.path)
    return found
