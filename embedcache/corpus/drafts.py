"""Drafts of a view: what a model has made of a chunk of rows, kept until the view is there.

They lie in the view's folder under temporary names that carry the sha256 of their bytes, so nothing mistakes
them for rows, and a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from embedcache.fsio import TEMPORARY_PREFIX, remove_file, write_bytes
from embedcache.views.kept import Kept, Made


class Drafts:
    """The drafts of one view.

    Args:
        folder: the view's folder.
        identity: digest of all that determines its texts; drafts of another are not read.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._prefix = f"{TEMPORARY_PREFIX}draft-{identity[:16]}-"

    def write(self, first_row: int, made: Sequence[Made]) -> None:
        """Keep what was made of the chunk that begins at ``first_row``.

        Raises:
            StorageError: if it cannot be written.
        """
        values = [[one.value] if isinstance(one, Kept) else one for one in made]
        data = json.dumps(values, ensure_ascii=False).encode()
        name = f"{self._prefix}{first_row}-{hashlib.sha256(data).hexdigest()}.json"
        write_bytes(self._folder / name, data)

    def read(self, first_row: int, rows: int) -> list[Made] | None:
        """Return what was made of the chunk, None where that is not there or damaged."""
        found = (_made(path) for path in self._folder.glob(f"{self._prefix}{first_row}-*.json"))
        return next((made for made in found if made is not None and len(made) == rows), None)


def remove_drafts(folder: Path) -> None:
    """Delete the drafts in the folder of a view, whatever recipe they are of.

    Raises:
        StorageError: if they cannot be deleted.
    """
    for path in folder.glob(f"{TEMPORARY_PREFIX}draft-*"):
        remove_file(path)


def _made(path: Path) -> list[Made] | None:
    """Return what a draft holds, None where it is not as it was written."""
    try:
        data = path.read_bytes()
        if path.stem.rpartition("-")[2] != hashlib.sha256(data).hexdigest():
            return None
        return [Kept(one[0]) if isinstance(one, list) else str(one) for one in json.loads(data)]
    except (OSError, ValueError):
        return None
