"""The marks of processes, by which they tell each other apart in ``claims/``."""

from __future__ import annotations

import os
import platform
import random
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path


def new_mark() -> str:
    """Return what the files of a process begin with: digits for its machine, its number, and random ones."""
    return f"{_machine()}-{os.getpid()}-{random.SystemRandom().getrandbits(48):012x}"


def _machine() -> str:
    """Return 12 digits that stand for this machine since it was started, and for what its processes see."""
    names = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            file = Path(path)
            names.append(str(file.readlink()) if file.is_symlink() else file.read_text(encoding="utf-8"))
    return blake2b("\n".join(names).encode(), digest_size=6).hexdigest()


def may_run(mark: str) -> bool:
    """Return whether the process of a mark may still run: of this machine's that can be told at once."""
    machine, process, _ = mark.split("-")
    if machine != _machine():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
