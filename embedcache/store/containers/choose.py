"""Which container a teacher's shards lie in."""

from __future__ import annotations

from pathlib import Path

from embedcache.errors import CorruptCacheError, InputError
from embedcache.store.containers.folder import FolderShards
from embedcache.store.containers.lmdb import SEAL, LmdbShards
from embedcache.store.digests import FileNotes

STORE_KINDS = ("arrow", "lmdb")


def open_container(folder: Path, notes: FileNotes, kind: str | None = None) -> FolderShards | LmdbShards:
    """Return where the shards of the teacher in ``folder`` lie, or are to lie.

    Args:
        folder: the teacher's folder in a cache.
        notes: remembers the files whose digest was taken.
        kind: ``arrow`` or ``lmdb``; default: the kind that is there, else ``arrow``.

    Raises:
        InputError: if they lie in another kind than asked for, or in both.
        CorruptCacheError: if the LMDB file is gone and its seal is still there.
    """
    lmdb = LmdbShards(folder / "vectors.mdb", notes)
    containers: dict[str, FolderShards | LmdbShards] = {
        "arrow": FolderShards(folder / "shards", notes),
        "lmdb": lmdb,
    }
    there = [name for name, container in containers.items() if container.names()]
    # A file that all shards were deleted from is still where the next go, or there would be both kinds.
    if not there and lmdb.is_there:
        there = ["lmdb"]
    if len(there) > 1:
        raise InputError(
            f"{folder} holds vectors both as shards/ and in vectors.mdb: move one of them out of "
            "the cache; the next build encodes what the other lacks"
        )
    if (folder / SEAL).exists() and not (folder / "vectors.mdb").exists():
        raise CorruptCacheError(
            f"{folder / 'vectors.mdb'} is gone, and its seal is still there: copy it back, or let "
            "'embedcache repair' make it anew"
        )
    if kind is not None and kind not in STORE_KINDS:
        raise InputError(f"unknown store {kind!r}: choose one of {', '.join(STORE_KINDS)}")
    if kind is not None and there and kind != there[0]:
        raise InputError(
            f"the cache keeps these vectors in {there[0]}, not in {kind}: leave --store out, or make a "
            "cache of the other kind with 'embedcache copy'"
        )
    return containers[kind or (there[0] if there else "arrow")]
