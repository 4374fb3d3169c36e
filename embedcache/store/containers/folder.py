"""Shards as files of a folder: the store that can be shared, merged by copying, and read by anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.fsio import commit, make_directory, remove_file, write_bytes
from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import FileNotes
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"


class FolderShards:
    """Shards as ``<sha256>.arrow`` in ``folder``, which is created at the first write.

    Args:
        folder: the folder.
        notes: remembers the files whose digest was taken; without it all are read at every opening.
    """

    kind = "arrow"

    def __init__(self, folder: Path, notes: FileNotes | None = None) -> None:
        self.folder = folder
        self.notes = notes or FileNotes()
        self._written: list[Path] = []

    def path(self, name: str) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """Return the names of all shards, sorted; files of other names are not shards."""
        if not self.folder.is_dir():
            return []
        names = (path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(name for name in names if is_shard_name(name))

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        import pyarrow as pa

        path = self.path(name)
        if path.is_symlink() or not path.is_file():
            raise damaged_shard(str(path), "it is no regular file; a cache holds its shards itself")
        try:
            # The buffer keeps the mapping, not the file: thousands of shards would run out of open files.
            with pa.memory_map(str(path), "r") as source:
                return source.read_buffer()
        except (OSError, pa.ArrowException) as error:
            raise damaged_shard(str(path), error) from error

    def add(self, name: str, data: pa.Buffer) -> None:
        """Write a shard's file; one that is there with the right size is the same."""
        path = self.path(name)
        if path.is_file() and path.stat().st_size == data.size:
            return
        make_directory(self.folder)
        write_bytes(path, memoryview(data))
        self._written.append(path)

    def adopt(self, name: str, temporary: Path) -> None:
        """Make the finished file ``temporary``, whose digest was taken, a shard's file, durably."""
        commit(temporary, self.path(name))
        self._written.append(self.path(name))

    def remove(self, name: str) -> None:
        """Delete a shard's file; :meth:`finish` writes down that it is not missed."""
        remove_file(self.path(name))
        self.notes.forget([self.path(name).name])

    def is_checked(self, name: str) -> bool:
        """Whether the digest of a shard's file was taken here before, and it is that file still."""
        return self.notes.knows(self.path(name))

    def where(self, name: str) -> str:
        """Return the path of a shard's file."""
        return str(self.path(name))

    def find_liars(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose files have another digest, or are no regular files."""
        paths = {self.path(name): name for name in names}
        others = [name for path, name in paths.items() if path.is_symlink() or not path.is_file()]
        return others or [paths[path] for path in self.notes.find_liars(paths)]

    def finish(self) -> None:
        """Remember the files written here; every file is whole once it has its name."""
        self.notes.remember(self._written)
