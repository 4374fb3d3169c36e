"""Description of the machine that a speed was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def thread_count() -> int:
    """Return the threads that ``OMP_NUM_THREADS`` allows, or the cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    from embedcache.teacher.encode import available_cores

    return available_cores()


def processor() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
