"""Interruption of a write at a chosen step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from embedcache import fsio


@contextmanager
def cut_off_at(stop: int) -> Iterator[list[str]]:
    """Let what writes inside the block end at step number ``stop``, as if it were killed.

    Yields:
        The steps, that one included; fewer where it came to its end before.
    """
    steps: list[str] = []

    def cut_off(step: str, path: Path) -> None:
        steps.append(step)
        if len(steps) == stop:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(fsio, "on_write_step", cut_off)
        yield steps
