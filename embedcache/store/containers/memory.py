"""Shards in memory: for tests, and for vectors that need not outlive the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class MemoryShards:
    """Shards in a dictionary."""

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

    def find_corrupt(self, names: Sequence[str]) -> list[str]:
        """Return nothing: bytes in memory are those that were added."""
        return []

    def finish(self) -> None:
        """Do nothing."""
