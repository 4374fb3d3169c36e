"""When a file was made: what neither a change of its mode nor a new link to it alters, and nobody can set."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

# Of linux/stat.h and linux/fcntl.h; the layout is the same on all machines.
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_STATX_BYTES, _BTIME_AT = 256, 80


def birth_ns(path: Path) -> int | None:
    """Return when a file was made, in nanoseconds; None where the file system or the machine does not tell.

    Args:
        path: the file; of a symbolic link it is the link.

    Raises:
        OSError: if there is none.
    """
    born: float | None = getattr(os.lstat(path), "st_birthtime", None)
    if born is not None:
        return round(born * 1e9)
    if not sys.platform.startswith("linux"):
        return None
    # Before 3.15 Python does not ask for it.
    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found):
        return None
    (known,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_AT)
    return int(seconds) * 10**9 + int(nanoseconds) if known & _STATX_BTIME else None
