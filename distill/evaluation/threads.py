"""How many CPU threads an evaluation may use."""

from __future__ import annotations

import os


def cpu_threads() -> int:
    """Return what ``OMP_NUM_THREADS`` allows, or the cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    from embedcache.teacher.encode import available_cores

    return available_cores()
