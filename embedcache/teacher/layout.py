"""Where things lie in a model folder: what modules.json says, and the folder of the transformer itself."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from embedcache.errors import TeacherError


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of ``modules.json``, or none where there is no such file.

    Raises:
        TeacherError: if the file is not a list of objects.
    """
    path = folder / "modules.json"
    if not path.exists():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TeacherError(f"{path} is not JSON ({error}); copy the model again") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise TeacherError(f"{path} is no list of modules; copy the model again")
    return modules


def transformer_subfolder(folder: Path) -> str:
    """Return where below ``folder`` the first module lies: ``""`` as a rule, ``0_Transformer`` in older ones.

    Raises:
        TeacherError: if modules.json is damaged or names a folder that is not there.
    """
    modules = read_modules(folder)
    path = modules[0].get("path", "") if modules else ""
    if not isinstance(path, str) or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise TeacherError(
            f"{folder / 'modules.json'}: {path!r} is no folder below it; expected a name such as "
            "'0_Transformer' or ''; copy the model again"
        )
    if not (folder / path).is_dir():
        raise TeacherError(f"{folder} has no folder {path!r}, which modules.json names; copy the model again")
    return "" if path == "." else path
