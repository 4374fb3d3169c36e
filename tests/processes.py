"""Python processes that begin at once, so that what they do overlaps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_together(program: str, *arguments: Sequence[str]) -> None:
    """Run a program in several processes at once, and see that each ends well.

    Args:
        program: Python. It prints ``ready``, and goes on once it can read a line.
        arguments: of each process.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for words in arguments
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=300)
        assert child.returncode == 0
