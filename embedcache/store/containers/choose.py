"""Container of a teacher's shards."""

from __future__ import annotations

from pathlib import Path

from embedcache.errors import CorruptCacheError, InputError
from embedcache.store.checked import CheckedFiles
from embedcache.store.containers.folder import FolderShards
from embedcache.store.containers.lmdb import SEAL, LmdbShards

STORE_KINDS = ("arrow", "lmdb")


def open_container(folder: Path, checked: CheckedFiles, kind: str | None = None) -> FolderShards | LmdbShards:
    """Return the container of the shards of the teacher in ``folder``.

    Args:
        folder: the teacher's folder in a cache.
        checked: notes the files whose digest was taken.
        kind: ``arrow`` or ``lmdb``; default: the kind that is there, else ``arrow``.

    Raises:
        InputError: if they lie in another kind than asked for, or in both.
        CorruptCacheError: if the LMDB file is missing and its seal is there.
    """
    files, lmdb = FolderShards(folder / "shards", checked), LmdbShards(folder / "vectors.mdb", checked)
    if kind not in (None, *STORE_KINDS):
        raise InputError(f"unknown store {kind!r}: choose one of {', '.join(STORE_KINDS)}")
    if (folder / SEAL).exists() and not lmdb.file.exists():
        raise CorruptCacheError(
            f"{lmdb.file} is missing, and its seal is there: copy it back, or run 'embedcache repair'"
        )
    found = "arrow" if files.names() else None
    # Shards go into an LMDB file even if all in it were deleted.
    if lmdb.is_there and (found is None or lmdb.names()):
        if found:
            raise InputError(
                f"{folder} holds vectors both as shards/ and in vectors.mdb: move one of them out of "
                "the cache; the next build encodes what the other lacks"
            )
        found = "lmdb"
    if kind and found and kind != found:
        raise InputError(
            f"the cache keeps these vectors in {found}, not in {kind}: leave --store out, or make a "
            "cache of the other kind with 'embedcache copy --store'"
        )
    return lmdb if (kind or found) == "lmdb" else files
