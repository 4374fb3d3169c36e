"""Files that are kept for the next time, can be had again, and are checked by their digest when read.

They appear at once, but not durably: after a crash of the machine one may be damaged. Where there are
thousands of small files, waiting for the disk at each of them takes most of the time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from embedcache.fsio import temporary_sibling


def write_kept(target: Path, data: bytes) -> None:
    """Write ``data`` to ``target``.

    Raises:
        StorageError: if it cannot be written.
    """
    with temporary_sibling(target) as temporary:
        temporary.write_bytes(data)
        temporary.replace(target)


def link_kept(source: Path, target: Path) -> None:
    """Make ``source`` appear as ``target`` too; where it cannot be linked it is copied.

    Raises:
        StorageError: if it cannot be written.
    """
    with temporary_sibling(target) as temporary:
        try:
            os.link(source, temporary, follow_symlinks=False)
        except OSError:
            # Another file system, or one without hard links.
            shutil.copyfile(source, temporary)
        temporary.replace(target)
        # A rename does nothing where both are names of one file.
        temporary.unlink(missing_ok=True)
