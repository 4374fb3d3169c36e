"""Names that differ in case alone: a file system may take them for one, and two corpora for one folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from embedcache.errors import InputError
from embedcache.fsio import TEMPORARY_PREFIX


def refuse_same_names(folder: Path, paths: Iterable[str]) -> None:
    """See that the files of a pull come to lie where their names say.

    Args:
        folder: the cache; it need not be there yet.
        paths: where its files are to lie, relative to it.

    Raises:
        InputError: if two names differ in case alone, among ``paths`` or from what the cache has, and its
            file system takes them for one.
    """
    collision = _first_collision(folder, paths)
    if collision is None or not ignores_case(folder):
        return
    inside, name, other = collision
    place = folder / inside
    if inside == "corpora":
        remedy = "pull one of them under another name, with --corpus NAME --as OTHER"
    elif inside.endswith("/names"):
        remedy = "pull it under another name, with --teacher NAME --as OTHER"
    else:
        remedy = "pull into a cache on a file system that tells upper from lower case"
    raise InputError(
        f"{name!r} and {other!r} cannot both lie in {place}, whose file system does not tell upper from "
        f"lower case: {remedy}"
    )


def ignores_case(folder: Path) -> bool:
    """Return whether the file system that ``folder`` lies on, or will, takes ``a`` and ``A`` for one name."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    probe = there / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-Case"
    # Where nothing can be written the pull says so itself.
    with suppress(OSError):
        probe.touch(exist_ok=False)
        try:
            return probe.with_name(probe.name.lower()).exists()
        finally:
            probe.unlink()
    return False


def _first_collision(folder: Path, paths: Iterable[str]) -> tuple[str, str, str] | None:
    """Return the folder, the new name and the other name of the first two that differ in case alone."""
    children: dict[str, set[str]] = {}
    for path in paths:
        parts = PurePosixPath(path).parts
        for depth, name in enumerate(parts):
            children.setdefault("/".join(parts[:depth]), set()).add(name)
    for inside, names in sorted(children.items()):
        # Listed as they are spelled: to ask for one of them would find the other.
        spelled: dict[str, str] = {}
        with suppress(OSError):
            spelled = {path.name.casefold(): path.name for path in (folder / inside).iterdir()}
        for name in sorted(names):
            other = spelled.setdefault(name.casefold(), name)
            if other != name:
                return inside, name, other
    return None
