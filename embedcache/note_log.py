"""Notes that name another shard for each of some, in a file that only grows and vouches for every line.

They count where they were written alone; see :mod:`embedcache.own_notes` for what tells that.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from embedcache.cache import Cache
from embedcache.fsio import canonical_json, file_state, parsed_json, regular_size, write_bytes, write_step
from embedcache.own_notes import ANCHOR, identity_of, is_same_anchor, locked

# Two names of shards and a seal; the line that names the anchor is shorter.
_SEAL_DIGITS = 16
_LINE_BYTES = 64 + 1 + 64 + 1 + _SEAL_DIGITS + 1


class NoteLog:
    """Notes that name another shard for each of some, in a file that only grows.

    One more costs the same however many there are. They count where they were written alone, as those of
    :class:`embedcache.own_notes.OwnNotes` do. Each line vouches for itself and for all before it: what a
    killed process has left of one is no note, and is cut off by whoever adds the next. Safe from several
    threads.

    Args:
        cache: where they are kept.
        name: of their file.
    """

    def __init__(self, cache: Cache, name: str) -> None:
        folder = cache.derived_folder / "remotes"
        self._path, self._anchor = folder / name, folder / ANCHOR
        self._known: dict[str, str] = {}
        self._seen: list[int] | None = None
        self._end, self._seal = 0, b""
        self._lock = threading.Lock()
        self.refresh()

    def get(self, shard: str) -> str | None:
        """Return the note on a shard, where there is one."""
        return self._known.get(shard)

    def all(self) -> Mapping[str, str]:
        """Return the notes by shard."""
        with self._lock:
            return dict(self._known)

    def refresh(self) -> None:
        """Take in what other processes have added since."""
        with self._lock:
            self._take_in()

    def add(self, found: Mapping[str, str]) -> None:
        """Remember notes. Where they cannot be written they last as long as this object."""
        with self._lock:
            fresh = {shard: note for shard, note in found.items() if self._known.get(shard) != note}
            if not fresh:
                return
            self._learn(fresh)
            # Whoever has begun the file has seen to it that the anchor lasts.
            with suppress(OSError), locked(self._anchor, durably=not self._end) as anchor:
                # What other processes have added meanwhile is kept.
                self._take_in()
                self._learn(fresh)
                if self._end:
                    self._append(fresh)
                else:
                    self._begin(anchor)
                self._seen = file_state(self._path)
        # Outside the locks: where several threads add notes, the disk is waited for by all of them at once.
        with suppress(OSError), self._path.open("rb") as handle:
            os.fsync(handle.fileno())
            write_step("synced", self._path)

    def _learn(self, notes: Mapping[str, str]) -> None:
        self._known |= notes

    def _begin(self, anchor: Sequence[int | None]) -> None:
        """Write all notes to a new file. One that is there counts for nothing: it came from elsewhere."""
        lines, seal = _sealed_lines([canonical_json(anchor)], b"")
        more, self._seal = _sealed_lines(_spelled(self._known), seal)
        write_bytes(self._path, lines, more)
        self._end = len(lines) + len(more)

    def _append(self, notes: Mapping[str, str]) -> None:
        lines, seal = _sealed_lines(_spelled(notes), self._seal)
        with self._path.open("r+b") as handle:
            handle.truncate(self._end)
            handle.seek(self._end)
            handle.write(lines)
        write_step("written", self._path)
        self._end, self._seal = self._end + len(lines), seal

    def _take_in(self) -> None:
        """Take in what was added to the file, or all of it where it is not the one that was read last."""
        try:
            regular_size(self._path)
            state = file_state(self._path)
            if state == self._seen:
                return
            if not (self._end and self._read_on()):
                self._end, self._seal = 0, b""
                self._read_on()
            self._seen = state
        except (OSError, ValueError):
            self._end, self._seal, self._seen = 0, b"", None

    def _read_on(self) -> bool:
        """Take in the lines from where reading has ended on; return whether there were any."""
        begun, found = self._end, {}
        with self._path.open("rb") as handle:
            handle.seek(begun)
            for text, seal, size in _right_lines(handle, self._seal):
                if self._end:
                    shard, _, note = text.decode().partition(" ")
                    found[shard] = note
                elif not is_same_anchor(parsed_json(text), identity_of(self._anchor)):
                    break
                self._end, self._seal = self._end + size, seal
        self._learn(found)
        return self._end > begun


def check_log(path: Path) -> None:
    """See that a file of :class:`NoteLog` is as it was written; the last line may be unfinished.

    Raises:
        ValueError: if it is not.
        OSError: if it cannot be read.
    """
    size, right = regular_size(path), 0
    with path.open("rb") as handle:
        for _, _, length in _right_lines(handle, b""):
            right += length
    if not right or size - right >= _LINE_BYTES:
        raise ValueError(f"of {size:,} bytes {right:,} are as they were written")


def _spelled(notes: Mapping[str, str]) -> Iterator[bytes]:
    return (f"{shard} {note}".encode() for shard, note in notes.items())


def _sealed_lines(texts: Iterable[bytes], seal: bytes) -> tuple[bytes, bytes]:
    """Return texts as lines that follow the one with ``seal``, and the seal of the last."""
    lines = []
    for text in texts:
        seal = _seal_of(text, seal)
        lines.append(b"%b %b\n" % (text, seal))
    return b"".join(lines), seal


def _right_lines(handle: BinaryIO, seal: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield text, seal and bytes of each line, up to the first that is not as it was written.

    Args:
        handle: the file, at the beginning of a line.
        seal: of the line before it.
    """
    # No line is longer, whoever wrote the file.
    while line := handle.readline(_LINE_BYTES):
        text, _, _ = line.rpartition(b" ")
        seal = _seal_of(text, seal)
        if line != b"%b %b\n" % (text, seal):
            return
        yield text, seal, len(line)


def _seal_of(text: bytes, before: bytes) -> bytes:
    return hashlib.sha256(before + text).hexdigest()[:_SEAL_DIGITS].encode()
