"""Names of files and folders in a run's folder, and messages about missing ones."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

BEST = "best"
"""The best student, a sentence-transformers folder."""

KNOWLEDGE_BASE = "knowledge_base"
"""The folder of a knowledge base inside a model's folder."""

RECORD = "run.json"
"""The run's record: teachers, corpus, result."""

HELD_OUT = "held_out.txt"
"""The texts kept out of training, one JSON string a line."""

TARGETS = "targets.safetensors"
"""The combination of the targets, unless they are one teacher's vectors as stored."""

CHECKPOINT = "checkpoint.safetensors"
"""The state that an unfinished run resumes from."""

CONFIG = "config.yaml"
"""The configuration with every default filled in."""

METRICS = "metrics.jsonl"
"""Loss, learning rate, speed and selection score by step."""

LOCK = ".lock"
"""Held by the process that trains."""

REPLACED = ".replaced"
"""The finished run that was in the folder, kept until the new one is finished."""


def default_folder(words: str) -> str:
    """Return ``runs/WORDS``, as a file name."""
    return str(Path("runs") / file_name(words))


def file_name(words: str) -> str:
    """Return ``words`` with everything but letters, digits, ``.``, ``_`` and ``-`` replaced by ``_``."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in words)


def resume_command(run: Path) -> str:
    """Return the command that resumes an interrupted run."""
    try:
        kind = json.loads((run / RECORD).read_text()).get("kind", "run")
    except (OSError, ValueError, AttributeError):
        kind = "run"
    return f"distill {kind} --resume {run}"


def describe_unfinished(run: Path) -> str:
    """Return an error message for a run's folder without a student: state and remedy."""
    on = (
        f"resume it with '{resume_command(run)}'"
        if (run / CHECKPOINT).is_file()
        else "train it again; no checkpoint was written yet"
    )
    return f"the run {run} has no {BEST}/ folder, so it did not reach its first evaluation: {on}"


def describe_missing(spec: str) -> str | None:
    """Return an error message for a model that is named like a folder and is missing, with similar names.

    Without this a mistyped folder would be looked for on the hub.

    Args:
        spec: a folder, a hub id (``organisation/name``, with a revision after ``@``) or an alias.

    Returns:
        The message; None if the folder exists, or the name need not be a folder.
    """
    typed = spec.partition("@")[0].rstrip("/")
    if typed.startswith((".", "/", "~")) or typed.count("/") > 1:
        is_path = True
    else:
        # 'runs/mse' may be a folder or a hub id; where runs are kept it is meant as a run.
        is_path = typed.count("/") == 1 and any(Path(typed).parent.glob(f"*/{RECORD}"))
    folder = Path(spec).expanduser()
    if not is_path or folder.exists():
        return None
    parent = next(one for one in folder.parents if one.is_dir())
    wanted = folder.relative_to(parent).parts[0]
    near = difflib.get_close_matches(wanted, sorted(one.name for one in parent.iterdir()), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(str(parent / name) for name in near)}?" if near else "check the path"
    return f"there is no folder or file {folder}: {hint}"
