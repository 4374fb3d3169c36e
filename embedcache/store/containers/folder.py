"""Shards as files of a folder: can be shared, merged by copying, and read by anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from embedcache.fsio import commit, inside, map_regular, open_regular, remove_file, write_bytes
from embedcache.store.base import is_shard_name
from embedcache.store.checked import CheckedFiles
from embedcache.store.shard import damaged_shard

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"


class FolderShards:
    """Shards as ``<sha256>.arrow`` in ``folder``, which is created at the first write.

    Args:
        folder: the folder.
        checked: files whose digest was taken; default: those of this process.
    """

    kind = "arrow"

    def __init__(self, folder: Path, checked: CheckedFiles | None = None) -> None:
        self.folder = folder
        self.checked = checked or CheckedFiles()

    def path(self, name: str) -> Path:
        """Return the file of a shard."""
        return self.folder / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """Return the names of all shards, sorted; files of other names are not shards."""
        folder = inside(self.folder.parent, self.folder.name)
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if entry.name.endswith(_SUFFIX)]
        return sorted(filter(is_shard_name, (file.removesuffix(_SUFFIX) for file in files)))

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        import pyarrow as pa

        try:
            # The buffer keeps the mapping, not the file: thousands of shards would run out of open files.
            return pa.py_buffer(map_regular(self.path(name)))
        except (OSError, ValueError) as error:
            raise damaged_shard(self.where(name), error) from error

    def _open(self, path: Path) -> BinaryIO:
        try:
            return open_regular(path)
        except (OSError, ValueError) as error:
            raise damaged_shard(str(path), error) from error

    def add(self, name: str, data: pa.Buffer) -> None:
        """Write a shard's file; one that is there with the right size is the same."""
        path = self.path(name)
        if not path.is_file() or path.stat().st_size != data.size:
            write_bytes(path, memoryview(data))
            self.checked.add(path)

    def adopt(self, name: str, temporary: Path) -> None:
        """Make the finished file ``temporary``, whose digest was taken, a shard's file, durably."""
        commit(temporary, self.path(name))
        self.checked.add(self.path(name))

    def remove(self, name: str) -> None:
        """Delete a shard's file."""
        remove_file(self.path(name))
        self.checked.forget(self.path(name).name)

    def where(self, name: str) -> str:
        """Return the path of a shard's file."""
        return str(self.path(name))

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose files have another digest.

        Raises:
            CorruptCacheError: if a file is missing or no regular file.
        """
        paths = {self.path(name): name for name in names}
        for path in paths:
            self._open(path).close()
        return [paths[path] for path in self.checked.find_corrupt(paths)]

    def finish(self) -> None:
        """Note the files written here as checked."""
        self.checked.save()
