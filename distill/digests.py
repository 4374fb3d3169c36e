"""Digests of the files that a training or an evaluation depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from distill.layout import BEST, KNOWLEDGE_BASE
from embedcache.fsio import sha256_file

ABSENT = "missing"
"""Digest of a missing folder."""


def folder_digest(folder: Path) -> str:
    """Return a digest of all files below ``folder`` but its cards and its knowledge base.

    Neither changes what the model gives for a text. :data:`ABSENT` where there is no folder.
    """
    if not folder.is_dir():
        return ABSENT
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix != ".md" and name.parts[0] != KNOWLEDGE_BASE:
            whole.update(f"{name.as_posix()} {sha256_file(path)}\n".encode())
    return whole.hexdigest()


def model_digest(spec: str) -> str | None:
    """Return the digest of a model's folder, or of a run's student; None of a hub id or an alias."""
    # The package of evaluations imports this module.
    from distill.record import run_folder

    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    return None if run is None and not folder.is_dir() else folder_digest(folder)


def files_digest(files: Iterable[Path], name: str = "", known: dict[Path, str] | None = None) -> str:
    """Return a digest of ``name`` and of files, by their names and content.

    Args:
        files: the files, in an order that is always the same.
        name: what else is digested.
        known: the digests of files that were read before; takes those that are read now.
    """
    known = {} if known is None else known
    whole = hashlib.sha256(name.encode())
    for path in files:
        if path not in known:
            known[path] = sha256_file(path)
        whole.update(f"\n{path.name} {known[path]}".encode())
    return whole.hexdigest()
