"""What holds shards: bytes under the sha256 of themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[0-9a-f]{64}")


def is_shard_name(name: str) -> bool:
    """Whether ``name`` can be a shard's: 64 hexadecimal digits, and nothing that leads elsewhere."""
    return _NAME.fullmatch(name) is not None


class ShardContainer(Protocol):
    """A set of immutable shards, by name. Of two that add the same shard at once both succeed."""

    @property
    def kind(self) -> str:
        """``arrow``, ``lmdb`` or ``memory``."""
        ...

    def names(self) -> list[str]:
        """Return the names of all shards, sorted, so that nothing depends on the file system's order."""
        ...

    def open(self, name: str) -> pa.Buffer:
        """Return the bytes of a shard, mapped rather than read where that can be.

        Raises:
            CorruptCacheError: if they cannot be had.
        """
        ...

    def add(self, name: str, data: pa.Buffer) -> None:
        """Keep ``data`` under ``name``, durably; harmless where it is there.

        Raises:
            StorageError: if there is no room or no permission; nothing is half stored then.
        """
        ...

    def remove(self, name: str) -> None:
        """Forget a shard; harmless where it is gone. Buffers of its bytes stay as they are."""
        ...

    def where(self, name: str) -> str:
        """Return where a shard lies, for messages."""
        ...

    def find_liars(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` whose bytes have another digest; what is known is not read again."""
        ...

    def finish(self) -> None:
        """Put on record that a writer has added all it wanted to."""
        ...
