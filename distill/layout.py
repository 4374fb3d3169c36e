"""What lies in a run's folder, and is called so by those who write it and those who read it."""

from __future__ import annotations

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
