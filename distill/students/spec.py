"""Student specs, as ``--student`` takes them; imports no torch.

``--student KIND:ARGUMENT`` builds a student from its teacher; any other text is a folder, a hub id or an
alias. A kind is a callable that is registered here, or one outside the package: ``MODULE:FUNCTION`` or
``FILE.py:FUNCTION``, with the argument after another colon.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import distill.students.kinds  # noqa: F401 - registers the kinds
from distill.errors import StudentError
from distill.plugins import load_object
from distill.students.registry import KINDS, StudentKind, StudentSpec

ALIASES = {
    "bert-tiny": "nreimers/BERT-Tiny_L-2_H-128_A-2",
    "bert-mini": "nreimers/BERT-Mini_L-4_H-256_A-4",
    "bert-small": "nreimers/BERT-Small-L-4_H-512_A-8",
    "bert-base": "google-bert/bert-base-uncased",
    "tinybert-l4": "nreimers/TinyBERT_L-4_H-312_v2",
    "tinybert-l6": "nreimers/TinyBERT_L-6_H-768_v2",
    "minilm-l3": "nreimers/MiniLM-L3-H384-uncased",
    "minilm-l12": "microsoft/MiniLM-L12-H384-uncased",
}
"""Short names of models that papers take as students; those of teachers are accepted as well."""


def student_kinds() -> dict[str, StudentKind]:
    """Return the registered kinds by name."""
    return dict(KINDS)


def student_forms() -> str:
    """Return the forms of specs of students that are built from their teacher, for help texts."""
    return ", ".join(kind.form for kind in student_kinds().values())


def parse_spec(text: str) -> StudentSpec:
    """Parse a student spec.

    Raises:
        StudentError: if the kind is unknown, or a key is unknown, missing, repeated or has no valid value.
    """
    found = _find_kind(text)
    if found is None:
        return StudentSpec(text)
    kind, argument = found
    return StudentSpec(text, kind, argument, _parse_settings(text, argument, kind))


def is_from_teacher(text: str) -> bool:
    """Return whether a spec names a student that is built from its teacher, valid or not."""
    return ":" in text and not Path(text).expanduser().exists()


def _find_kind(text: str) -> tuple[StudentKind, str] | None:
    if not is_from_teacher(text):
        return None
    kinds = student_kinds()
    name, _, argument = text.partition(":")
    if name in kinds:
        return kinds[name], argument
    function, _, rest = argument.partition(":")
    if function.isidentifier() and (name.endswith(".py") or _is_module(name)):
        build = load_object(name, function, StudentError)
        return StudentKind(
            f"{name}:{function}", build, inspect.getdoc(build) or "", f"{name}:{function}"
        ), rest
    near = difflib.get_close_matches(name, kinds, n=1)
    hint = f"did you mean {near[0]}:{argument}?" if near else f"write one of {student_forms()}"
    raise StudentError(f"student {text!r}: no kind {name!r} (kinds: {', '.join(kinds)}); {hint}")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _parse_settings(text: str, argument: str, kind: StudentKind) -> dict[str, Any]:
    settings, values = kind.settings, dict[str, Any]()
    if not settings:
        return values
    for part in argument.split(",") if argument else ():
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in settings or not value or key in values:
            raise StudentError(
                f"student {text!r}: found {part!r}, expected KEY=VALUE with the keys {', '.join(settings)}, "
                f"each once, as in {kind.form}"
            )
        values[key] = _parse_value(text, key, value, settings[key].annotation)
    needed = [key for key, one in settings.items() if one.default is inspect.Parameter.empty]
    if missing := [key for key in needed if key not in values]:
        raise StudentError(f"student {text!r}: {', '.join(missing)} is missing; write it as in {kind.form}")
    return values


def _parse_value(text: str, key: str, value: str, annotation: Any) -> Any:
    kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    match kind.removesuffix(" | None"):
        case "int" if not (value.isascii() and value.isdigit() and int(value)):
            raise StudentError(f"student {text!r}: {key}={value}, expected a whole number of at least 1")
        case "int":
            return int(value)
        case "float":
            try:
                return float(value)
            except ValueError as error:
                raise StudentError(f"student {text!r}: {key}={value}, expected a number") from error
        case "bool" if value not in ("yes", "no"):
            raise StudentError(f"student {text!r}: {key}={value}, expected yes or no")
        case "bool":
            return value == "yes"
    return value
