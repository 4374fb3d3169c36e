"""Digests of the files that a training or an evaluation depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from distill.layout import BEST, KNOWLEDGE_BASE
from embedcache.fsio import sha256_file

ABSENT = "missing"
"""Digest of a missing folder."""


def folder_digest(folder: Path) -> str:
    """Return a digest of all files below ``folder`` but its cards and its knowledge base.

    Neither changes what the model gives for a text. ``ABSENT`` where there is no folder.
    """
    if not folder.is_dir():
        return ABSENT
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix != ".md" and name.parts[0] != KNOWLEDGE_BASE:
            whole.update(f"{name.as_posix()} {_file_digest(path)}\n".encode())
    return whole.hexdigest()


def _file_digest(path: Path) -> str:
    found = path.stat()
    return _read_digest(path.resolve(), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=4096)
def _read_digest(path: Path, *stamp: int) -> str:
    """Return the digest of a file, which is read again when its stamp changes."""
    return sha256_file(path)


def model_digest(spec: str) -> str | None:
    """Return the digest of a model's folder, or of a run's student; None of a hub id or an alias."""
    # The package of evaluations imports this module.
    from distill.record import run_folder

    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    return None if run is None and not folder.is_dir() else folder_digest(folder)


def files_digest(files: Iterable[Path]) -> str:
    """Return a digest of files, in an order that is always the same, by their names and content."""
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"\n{path.name} {_file_digest(path)}".encode())
    return whole.hexdigest()
