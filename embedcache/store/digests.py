"""Old names of the note of checked files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedcache.store.checked import CHECKED, CheckedFiles, read_checked

__all__ = ["CHECKED", "FileNotes", "read_noted"]


class FileNotes(CheckedFiles):
    """Old name of :class:`CheckedFiles`."""

    def remember(self, paths: Iterable[Path]) -> None:
        """Count files as checked and note them."""
        self.add(*paths)
        self.save()


class NotedFiles(NamedTuple):
    """Old form of a note."""

    names: NDArray[np.bytes_]
    states: NDArray[np.uint64]


def read_noted(path: Path) -> NotedFiles:
    """Return the names and states of a note; errors as :func:`read_checked`."""
    noted = read_checked(path)
    return NotedFiles(noted["name"], noted["state"])
