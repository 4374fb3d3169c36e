"""Note of the files a corpus was read from on this machine, so that unchanged ones are not read again.

A note in ``derived/sources/<corpus>.json`` holds the state of the files *before* they were read. It is never
shared, and where it is missing or damaged the source is simply read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from embedcache.corpus.part import STRICT
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import Source
from embedcache.corpus.url_files import UrlFile
from embedcache.errors import StorageError
from embedcache.fsio import canonical_json, file_state, read_sealed_json, write_sealed_json

NOTE_VERSION = 6
"""Raised as well when the readers come to give other rows of the same file."""

_TICK_NS, _COARSE_TICK_NS = 50_000_000, 2_000_000_000
"""A file may change unseen within a tick of its file system's clock; some keep whole seconds only."""

SourceFiles: TypeAlias = tuple[tuple[str, list[int]], ...]
"""Resolved path and ``file_state`` of each file, in the order read."""


@dataclass(frozen=True, config=STRICT)
class SourceNote:
    """Note of the sources that a corpus was read from.

    Attributes:
        digest: the corpus's digest.
        files: the files, in the order read.
        options: options of reading them.
        column: the column of the texts; None for plain text.
        appended: True if the files were added to rows that were there.
    """

    digest: str
    files: SourceFiles
    options: ReadOptions
    column: str | None
    appended: bool = False


def observe(sources: Sequence[Source]) -> SourceFiles | None:
    """Return the state of ``sources``; call it before they are read.

    Returns:
        None where that cannot show a later change: for standard input, rows in memory, a pipe, a missing
        file, or a file so fresh that it may change again without a trace.
    """
    files = []
    for source in sources:
        if isinstance(source, UrlFile):
            if (state := source.state()) is None:
                return None
            files.append((str(source), state))  # a query may hold a key, and changes with each signature
            continue
        if not isinstance(source, Path) or not source.is_file():
            return None
        path, state = source.resolve(), file_state(source)
        tick = _TICK_NS if state[1] % 1_000_000_000 else _COARSE_TICK_NS
        if abs(time.time_ns() - state[1]) < tick or not str(path).isprintable():
            return None
        files.append((str(path), state))
    return tuple(files)


def unchanged(note: SourceNote, sources: Sequence[Source], options: ReadOptions, *, append: bool) -> bool:
    """Return whether reading ``sources`` with ``options``, or adding them, would give those of ``note``."""
    return (note.options, note.appended, note.files) == (options, append, observe(sources))


def note_path(derived: Path, corpus: str) -> Path:
    """Return the path of the note of the corpus called ``corpus``."""
    return derived / "sources" / f"{corpus}.json"


def write_note(derived: Path, corpus: str, note: SourceNote) -> None:
    """Keep ``note`` for the next build; where the cache cannot be written, nothing is kept.

    Args:
        derived: the cache's folder of rebuildable files.
        corpus: the corpus's name.
        note: with the files as ``observe`` gave them before they were read.
    """
    # An identical note stays as it is, so that a complete cache can be used where it cannot be written.
    if read_note(derived, corpus) != note:
        with suppress(StorageError):
            write_sealed_json(note_path(derived, corpus), {"version": NOTE_VERSION, **asdict(note)})


def read_note(derived: Path, corpus: str) -> SourceNote | None:
    """Return the note of the corpus called ``corpus``, None where there is none that can be used."""
    with suppress(OSError, ValueError, KeyError):
        value = read_sealed_json(note_path(derived, corpus))
        if value.pop("version") == NOTE_VERSION:
            return TypeAdapter(SourceNote).validate_json(canonical_json(value))
    return None
