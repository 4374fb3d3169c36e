"""The marks of processes, by which they tell each other apart in ``claims/``."""

from __future__ import annotations

import os
import platform
import random
from functools import cache
from hashlib import blake2b
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_NUMBERS = Path("/proc/self/ns/pid")


def new_mark() -> str:
    """Return what the files of a process begin with: digits for its machine, its number, and random ones."""
    machine = _machine() or _digits(platform.node())
    return f"{machine}-{os.getpid()}-{random.SystemRandom().getrandbits(48):012x}"


def may_run(mark: str) -> bool:
    """Return whether the process of a mark may still run; only a process of this machine can be looked up."""
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


@cache
def _machine() -> str | None:
    """Return 12 digits for this machine since its start and for the process numbers that are valid here.

    None where the system does not tell both: a hostname alone may belong to several machines, and a process
    of another one must not be looked up here.
    """
    try:
        started = _BOOT_ID.read_text(encoding="utf-8")
        numbers = str(_PROCESS_NUMBERS.readlink())
    except OSError:
        return None
    return _digits(platform.node(), started, numbers)


def _digits(*names: str) -> str:
    return blake2b("\n".join(names).encode(), digest_size=6).hexdigest()
