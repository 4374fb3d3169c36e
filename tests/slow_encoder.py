"""Slow encoder for workers in separate processes; some texts may kill its process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from embedcache import testing
from embedcache.building import pending
from embedcache.teacher.batching import EncodedTexts
from embedcache.testing import FakeEncoder, fake_teacher

TEACHER = fake_teacher(16)


class Slow(FakeEncoder):
    """Takes its time over a text, notes its process, dies of one text, and gives NaN for another.

    In a worker it may keep its batches, of 32 texts, every ``keep`` seconds.
    """

    def __init__(
        self,
        folder: Path,
        seconds: float = 0.0,
        fatal: str = "",
        times: int = 99,
        nan: str = "",
        keep: float | None = None,
    ) -> None:
        super().__init__(TEACHER)
        self.keep = keep
        self.folder, self.seconds, self.fatal, self.times, self.nan = folder, seconds, fatal, times, nan

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set what a worker's process has imported again."""
        vars(self).update(state)
        if self.keep is not None:
            pending.KEEP_SECONDS, testing._BATCH = self.keep, 32

    def encode(self, texts: Any) -> EncodedTexts:
        (self.folder / f"pid-{os.getpid()}").touch()
        time.sleep(self.seconds * len(texts))
        ended = len(list(self.folder.glob("ended-*")))
        if self.fatal in texts and ended < self.times:
            (self.folder / f"ended-{ended}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        found = super().encode(texts)
        found.vectors[[text == self.nan for text in texts]] = np.nan
        return found
