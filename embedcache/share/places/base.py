"""What every place can do. Paths are relative to it, with ``/`` between their parts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from embedcache.errors import RemoteError
from embedcache.fsio import TEMPORARY_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

Data: TypeAlias = "bytes | memoryview | pa.Buffer"

_TEMPORARY = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}-(.+)", re.DOTALL)


@dataclass(frozen=True)
class Stat:
    """What a place says of a file.

    Attributes:
        bytes: its size; None where the place does not tell.
        changed: when it was last written, in seconds by the clock of the place, where it tells.
    """

    bytes: int | None
    changed: float | None = None


# Large blocks cost few requests. Small ones show progress and hear an interrupt where the connection is slow.
_FIRST_BLOCK_BYTES, _SMALLEST_BLOCK_BYTES = 1 << 20, 1 << 18
_FAST_SECONDS, _SLOW_SECONDS = 0.5, 2.0


def growing_blocks(read: Callable[[int], bytes], most: int) -> Iterator[memoryview]:
    """Yield what ``read`` returns until that is empty, in blocks that suit the speed of the connection.

    The first block is small. Blocks double while one takes less than half a second, and halve when one takes
    more than two.

    Args:
        read: returns at most so many bytes; none at the end.
        most: size of the largest block.
    """
    size = min(_FIRST_BLOCK_BYTES, most)
    while True:
        began = time.monotonic()
        block = read(size)
        seconds = time.monotonic() - began
        if not block:
            return
        if seconds < _FAST_SECONDS:
            size = min(2 * size, most)
        elif seconds > _SLOW_SECONDS:
            size = max(size // 2, min(_SMALLEST_BLOCK_BYTES, most))
        yield memoryview(block)


def final_name(name: str) -> str:
    """Return the final name that a temporary file stands for; empty if ``name`` is not temporary."""
    match = _TEMPORARY.fullmatch(name)
    return "" if match is None else match[1]


class RangesNotServedError(RemoteError):
    """The place gives no parts of files: rows have to be taken out of the whole file. It is final."""


class Place(Protocol):
    """A folder somewhere. Every method may be called from several threads.

    What fails is raised in one of two ways, which :func:`embedcache.share.retry.retrying` tells apart:

    - A plain ``OSError``, or one of the errors of :mod:`embedcache.share.retry`, is tried again, unless it
      says that this does not help: a ``FileNotFoundError``, a ``PermissionError``, a ``RefusedError``.
    - An :class:`embedcache.errors.EmbedCacheError` is final: a :class:`RangesNotServedError`, and the
      ``StorageError`` of a folder on a disk that is full, read-only or not the user's.
    """

    @property
    def where(self) -> str:
        """Its URL, for messages; nothing in it is secret."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written there at all."""
        ...

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the files that lie directly in ``folder``, by name; none where there is no such folder."""
        ...

    def below(self, folder: str) -> dict[str, Stat] | None:
        """Return all files below ``folder``, however deep, by their paths from there; as one listing.

        None where folders can only be listed one by one.
        """
        ...

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return the temporary files in ``folder``, by name: of writes under way, and of writes cut off.

        :meth:`list` leaves them out. A place whose files have no name before they are whole has none.
        """
        ...

    def stat(self, path: str) -> Stat | None:
        """Return what is known of a file; None where there is none."""
        ...

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file, at most ``size`` at a time.

        Raises:
            FileNotFoundError: if it is not there.
        """
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes of a file from ``start`` on; fewer where it ends before.

        Raises:
            FileNotFoundError: if it is not there.
            RangesNotServedError: if the place gives no parts of files.
        """
        ...

    def write(self, path: str, data: Data) -> None:
        """Write a file, so that nobody ever sees a part of it; folders above it are made.

        Raises:
            PermissionError: if the place can only be read.
            StorageError: if the disk of a folder is full, read-only or not the user's.
        """
        ...

    def remove(self, path: str) -> None:
        """Delete a file; harmless where it is gone. Errors as :meth:`write`."""
        ...
