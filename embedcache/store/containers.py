"""Containers of shards: a folder of files, memory, and the choice of one for a teacher."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embedcache.errors import CorruptCacheError, InputError, UnreadableError
from embedcache.fsio import commit, inside, list_folder, map_regular, regular_size, remove_file, write_bytes
from embedcache.os_errors import writing
from embedcache.store.base import ShardContainer
from embedcache.store.checked import CheckedFiles
from embedcache.store.lmdb_shards import SEAL, LmdbShards
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

STORE_KINDS = ("arrow", "lmdb")

T = TypeVar("T")
_IS_SHARD_FILE = re.compile(r"[0-9a-f]{64}\.arrow").fullmatch


class FolderShards(ShardContainer):
    """Shards as ``<sha256>.arrow`` in ``folder``, which is created at the first write.

    Args:
        folder: the folder.
        checked: files whose digest was taken; default: those of this process.
    """

    kind = "arrow"

    def __init__(self, folder: Path, checked: CheckedFiles | None = None) -> None:
        self.folder = folder
        self._checked = checked or CheckedFiles()

    def path(self, name: str) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{name}.arrow"

    def names(self) -> list[str]:
        """Return the names of all shards, sorted; files of other names are not shards."""
        files = list_folder(inside(self.folder.parent, self.folder.name))
        return [file[:-6] for file in filter(_IS_SHARD_FILE, files)]

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        return self._read(name, map_regular)

    def size(self, name: str) -> int:
        """Return the number of bytes of a shard."""
        return self._read(name, regular_size)

    def _read(self, name: str, read: Callable[[Path], T]) -> T:
        try:
            return read(self.path(name))
        except UnreadableError:
            raise
        except (OSError, ValueError) as error:
            raise damaged_shard(self.where(name), error) from error

    def add(self, name: str, data: pa.Buffer) -> None:
        """Write a shard's file, unless there is one of the right size."""
        path = self.path(name)
        size = None
        with writing(path), suppress(FileNotFoundError, NotADirectoryError):
            size = path.stat().st_size if path.is_file() else None
        if size != data.size:
            write_bytes(path, memoryview(data))
            self._checked.add(path)

    def adopt(self, name: str, temporary: Path) -> None:
        """Make the finished file ``temporary``, whose digest was taken, a shard's file, durably."""
        commit(temporary, self.path(name))
        self._checked.add(self.path(name))

    def remove(self, name: str) -> None:
        """Delete a shard's file."""
        remove_file(self.path(name))

    def where(self, name: str) -> str:
        """Return the path of a shard's file."""
        return str(self.path(name))

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose files are missing, links, or have another digest."""
        paths = {self.path(name): name for name in names}
        return [paths[path] for path in self._checked.find_corrupt(paths)]

    def finish(self) -> None:
        """Note the files written here as checked."""
        self._checked.save()


class ListedShards(FolderShards):
    """Folder of shards that lists only some of them, and those added through it.

    Args:
        folder: the folder.
        names: names of the shards to list.
        checked: note of the files whose digest was taken; default: none is kept.
        trusted: True if the caller has taken the digests of all files.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        checked: CheckedFiles | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        super().__init__(folder, checked)
        self._listed, self._trusted = set(names), trusted

    def names(self) -> list[str]:
        """Return the listed names, sorted."""
        return sorted(self._listed)

    def add(self, name: str, data: pa.Buffer) -> None:
        """Write a shard's file, and list it."""
        super().add(name, data)
        self._listed.add(name)

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return nothing if the files are trusted; else as a folder of shards."""
        return [] if self._trusted else super().find_corrupt(names)


class MemoryShards(ShardContainer):
    """Shards in a dictionary: for tests, and for vectors that need not outlive the process."""

    kind = "memory"

    def __init__(self) -> None:
        self._shards: dict[str, pa.Buffer] = {}

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        return sorted(self._shards)

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard."""
        return self._shards[name]

    def add(self, name: str, data: pa.Buffer) -> None:
        """Store ``data`` under ``name``."""
        self._shards.setdefault(name, data)

    def remove(self, name: str) -> None:
        """Delete a shard."""
        self._shards.pop(name, None)

    def where(self, name: str) -> str:
        """Return the place of a shard, for messages."""
        return f"{name[:12]}… in memory"


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
    if kind not in (None, *STORE_KINDS):
        raise InputError(f"unknown store {kind!r}: choose one of {', '.join(STORE_KINDS)}")
    files, lmdb = FolderShards(folder / "shards", checked), LmdbShards(folder / "vectors.mdb", checked)
    beside = list_folder(folder)
    if SEAL in beside and lmdb.file.name not in beside:
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
            f"the cache keeps these vectors in {found}, not in {kind}: leave store out, or make a "
            "cache of the other kind with 'embedcache copy --store'"
        )
    return lmdb if (kind or found) == "lmdb" else files
