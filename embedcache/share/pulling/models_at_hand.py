"""Whether a teacher's model is on this machine, so that vectors can be compared with it."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

from embedcache import model_note
from embedcache.cache import Cache, CachedTeacher
from embedcache.check.live import Computing
from embedcache.teacher.aliases import ALIASES


def missing_model_note(cache: Cache, teacher: CachedTeacher, computing: Computing, again: str) -> str | None:
    """Return a note if a teacher's model is not on this machine, else None.

    Args:
        cache: the cache that has the teacher.
        teacher: the teacher.
        computing: how to run it.
        again: what compares once the model is here, for the note.
    """
    # A folder counts if this machine has noted it, not if it is named by what came with the teacher.
    noted = computing.teacher_model or model_note.read(cache.derived_folder, teacher.contract.id)
    spec = noted or cache.model_source(teacher)
    if is_at_hand(spec) or (noted is not None and Path(noted).expanduser().is_dir()):
        return None
    return (
        f"the model {str(spec)[:80]!r} is not on this machine; {again} with --teacher-model FOLDER compares "
        "once you have it"
    )


def is_at_hand(spec: str | Path) -> bool:
    """Return whether the model that an alias or a hub id means is on this machine; nothing is downloaded."""
    text = str(spec)
    base, _, revision = text.partition("@")
    alias = ALIASES.get(base)
    if alias is not None and alias.module and not revision and importlib.util.find_spec(alias.module):
        return True
    model_id = base if alias is None else alias.model_id
    if model_id.count("/") != 1 or model_id.startswith((".", "/", "~")):
        return False
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):
        return isinstance(try_to_load_from_cache(model_id, "config.json", revision=revision or None), str)
    return False
