"""How far a check is: files, bytes and rows, counted from several threads."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class CheckProgress:
    """Where a check stands.

    Attributes:
        phase: what is being done: ``read files``, ``read rows``, ``look up texts``, ``load teacher NAME``,
            ``encode``.
        files: files done, of ``total_files``.
        bytes: bytes read, of ``total_bytes``.
        rows: rows done in this phase, of ``total_rows`` where that is known, else 0.
        seconds: since the phase began.
    """

    phase: str
    files: int = 0
    total_files: int = 0
    bytes: int = 0
    total_bytes: int = 0
    rows: int = 0
    total_rows: int = 0
    seconds: float = 0.0


OnCheck = Callable[[CheckProgress], None]


@dataclass
class Meter:
    """Counts what is done; safe from several threads.

    Args:
        on_progress: called as the count goes on.

    Attributes:
        bytes: bytes read in all phases.
    """

    on_progress: OnCheck | None = None
    bytes: int = 0
    _state: CheckProgress = field(default_factory=lambda: CheckProgress(""))
    _began: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self, phase: str, *, total_files: int = 0, total_bytes: int = 0, total_rows: int = 0) -> None:
        """Begin a phase."""
        with self._lock:
            self._began = time.perf_counter()
            self._state = CheckProgress(
                phase, total_files=total_files, total_bytes=total_bytes, total_rows=total_rows
            )
            self._report()

    @contextmanager
    def aside(self, phase: str) -> Iterator[None]:
        """Do something else in the middle of a phase, which then goes on as if no time had passed."""
        with self._lock:
            before, elapsed = self._state, time.perf_counter() - self._began
        self.begin(phase)
        try:
            yield
        finally:
            with self._lock:
                self._began = time.perf_counter() - elapsed
                self._state = before

    def add(self, *, files: int = 0, size: int = 0, rows: int = 0) -> None:
        """Count files that are done, bytes that were read and rows that were checked."""
        with self._lock:
            self.bytes += size
            self._state = replace(
                self._state,
                files=self._state.files + files,
                bytes=self._state.bytes + size,
                rows=self._state.rows + rows,
                seconds=time.perf_counter() - self._began,
            )
            self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self._state)

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file's bytes, counted as they are read.

        Raises:
            OSError: if it cannot be read.
        """
        taken = hashlib.sha256()
        with path.open("rb") as handle:
            while block := handle.read(_BLOCK_BYTES):
                taken.update(block)
                self.add(size=len(block))
        return taken.hexdigest()
