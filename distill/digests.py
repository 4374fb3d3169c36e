"""Digests of the files that a training or an evaluation depends on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from distill.layout import BEST
from embedcache.fsio import sha256_file

ABSENT = "is not there"
"""Stands for the digest of what is not there."""


def folder_digest(folder: Path) -> str:
    """Return a digest of all files below ``folder`` but its cards; :data:`ABSENT` where there is none."""
    if not folder.is_dir():
        return ABSENT
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            whole.update(f"{path.relative_to(folder).as_posix()} {sha256_file(path)}\n".encode())
    return whole.hexdigest()


def model_digest(spec: str) -> str | None:
    """Return the digest of a model's folder, or of a run's student; None of a hub id or an alias."""
    # The package of evaluations imports this module.
    from distill.evaluation.record import run_folder

    run = run_folder(spec)
    folder = run / BEST if run else Path(spec).expanduser()
    return None if run is None and not folder.is_dir() else folder_digest(folder)


def data_files(data: Path | None) -> list[Path]:
    """Return the files that evaluation data consists of, sorted by name."""
    if data is None:
        return []
    found = data.glob("*.tsv*") if data.is_dir() else [data]
    return sorted(path for path in found if path.is_file())


def data_digest(data: Path | None, name: str = "") -> str:
    """Return a digest of ``name`` and of the files that evaluation data consists of."""
    whole = hashlib.sha256(name.encode())
    for path in data_files(data):
        whole.update(f"\n{path.name} {sha256_file(path)}".encode())
    return whole.hexdigest()
