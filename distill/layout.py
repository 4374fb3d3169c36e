"""What lies in a run's folder, and is called so by those who write it and those who read it."""

from __future__ import annotations

from pathlib import Path

BEST = "best"
"""The best student, a sentence-transformers folder."""

RECORD = "run.json"
"""What the run says about itself: teachers, corpus, result."""

HELD_OUT = "held_out.txt"
"""The texts kept out of training, one JSON string a line."""

TARGETS = "targets.safetensors"
"""How the targets were combined, where they are not one teacher's vectors as stored."""

IN_TARGET_SPACE = "in_target_space"
"""Key of the record: whether the student's vectors are to be like its targets, number by number."""

CHECKPOINT = "checkpoint.safetensors"
"""Where an unfinished run goes on from."""

CONFIG = "config.yaml"
"""The configuration, everything filled in."""

METRICS = "metrics.jsonl"
"""Loss, learning rate, speed and selection score on the way."""

LOCK = ".lock"
"""Held by the process that trains."""


def default_folder(words: str) -> str:
    """Return ``runs/WORDS``, with what a file name had better not hold replaced."""
    return str(Path("runs") / file_name(words))


def file_name(words: str) -> str:
    """Return ``words`` with everything but letters, digits, ``.``, ``_`` and ``-`` replaced by ``_``."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in words)
