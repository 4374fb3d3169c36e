"""Files whose digest has been taken here before: a foreign file is read once, not at every opening.

A file that is named by the sha256 of its bytes may lie. Its digest is taken at the first opening, and again
only when the file has changed. Whether it has is told by what nobody can set: inode and change time. So a
note that came along with somebody else's cache vouches for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from embedcache.errors import StorageError
from embedcache.fsio import file_state, read_sealed_json, sha256_file, write_sealed_json

# What was found sound beside notes that cannot be written: a read-only cache is read once a process.
_noted_nowhere: dict[Path, list[int]] = {}


class FileNotes:
    """Notes on files found to be what they should be.

    Args:
        note: where the notes are kept; derived, never shared. A damaged or missing one is no note; one that
            cannot be written lasts as long as the process. None: they last as long as this object.
    """

    def __init__(self, note: Path | None = None) -> None:
        self._note = note
        self._known = self._read()
        self._forgotten: set[str] = set()
        self._unsaved = False

    def knows(self, path: Path) -> bool:
        """Whether ``path`` is still the file that was remembered."""
        return file_state(path) in (self._known.get(path.name), self._unwritten().get(path.absolute()))

    def remember(self, paths: Iterable[Path]) -> None:
        """Remember files as sound. Where the note cannot be written the next process checks them again."""
        paths = list(paths)
        states: dict[str, list[int]] = {}
        for path in paths:
            # Another process may have merged it into a larger one meanwhile.
            with suppress(FileNotFoundError):
                states[path.name] = file_state(path)
        if self._unsaved or any(self._known.get(name) != state for name, state in states.items()):
            # What other processes have checked meanwhile is kept.
            theirs = {name: state for name, state in self._read().items() if name not in self._forgotten}
            self._known = {**theirs, **self._known, **states}
            self._forgotten -= states.keys()
            self._unsaved = False
            if self._note is not None:
                try:
                    write_sealed_json(self._note, self._known)
                except StorageError:
                    places = {path.name: path.absolute() for path in paths}
                    _noted_nowhere.update({places[name]: state for name, state in states.items()})

    def forget(self, names: Iterable[str]) -> None:
        """Drop the notes on the files named ``names``; :meth:`remember` writes that down."""
        for name in names:
            self._unsaved |= self._known.pop(name, None) is not None
            self._forgotten.add(name)
        for path in [path for path in self._unwritten() if path.name in self._forgotten]:
            del _noted_nowhere[path]

    def _unwritten(self) -> dict[Path, list[int]]:
        # Without a place of their own, notes are nobody else's.
        return {} if self._note is None else _noted_nowhere

    def _read(self) -> dict[str, list[int]]:
        if self._note is None:
            return {}
        try:
            value = read_sealed_json(self._note)
        except (OSError, ValueError):
            return {}
        return {name: state for name, state in value.items() if isinstance(state, list)}

    def find_liars(self, files: Mapping[Path, str]) -> list[Path]:
        """Return those of ``files`` (path -> sha256 it should have) whose bytes have another digest.

        Files known to be sound are not read again; those found sound are remembered.
        """
        unknown = [path for path in files if not self.knows(path)]
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(sha256_file, unknown))
        liars = [path for path, digest in zip(unknown, digests, strict=True) if files[path] != digest]
        self.remember(path for path in unknown if path not in liars)
        return liars
