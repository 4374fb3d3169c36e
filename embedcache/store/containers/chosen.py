"""A container that is only read, with some of the shards of another one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from embedcache.errors import InputError
from embedcache.store.containers.base import ShardContainer

if TYPE_CHECKING:
    import pyarrow as pa


class ChosenShards:
    """Some of the shards of a container.

    Args:
        container: the container.
        names: names of the shards.
    """

    def __init__(self, container: ShardContainer, names: Collection[str]) -> None:
        self._container, self._names = container, sorted(names)

    @property
    def kind(self) -> str:
        """Where the shards lie."""
        return self._container.kind

    def names(self) -> list[str]:
        """Return the names, sorted."""
        return list(self._names)

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, memory-mapped."""
        return self._container.open(name)

    def add(self, name: str, data: pa.Buffer) -> None:
        """Refuse: nothing is written here."""
        raise InputError(f"{self.where(name)} cannot be written: this container is only read")

    def remove(self, name: str) -> None:
        """Refuse: nothing is deleted here."""
        raise InputError(f"{self.where(name)} cannot be deleted: this container is only read")

    def where(self, name: str) -> str:
        """Return where a shard lies, for messages."""
        return self._container.where(name)

    def find_liars(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest."""
        return self._container.find_liars(names)

    def finish(self) -> None:
        """Do nothing: nothing was written."""
