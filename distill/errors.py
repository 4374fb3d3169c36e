"""Every error distill raises on purpose; see ``embedcache.errors`` for the conventions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from embedcache.errors import for_caller

_TWICE = re.compile(r"^(\w+) \(\1\):")


class DistillError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line exits with.

    Args:
        message: one line: found, expected, remedy.
        key: dotted path of the setting at fault, as in ``training.lr``; it begins the line. A command line
            replaces it by the option that was typed.
    """

    exit_code = 2

    def __init__(self, message: str = "", key: str | None = None) -> None:
        super().__init__(message)
        self.key = key

    def __str__(self) -> str:
        message = super().__str__()
        whole = for_caller(message if self.key is None else f"{self.key}: {message}")
        return _TWICE.sub(r"\1:", whole)


class ConfigError(DistillError, ValueError):
    """A configuration that cannot be run.

    Attributes:
        problems: one error for each problem, where there are several.
    """

    problems: tuple[ConfigError, ...] = ()

    @classmethod
    def joined(cls, problems: Sequence[ConfigError]) -> ConfigError:
        """Return one error for all of ``problems``, of which there is at least one."""
        if len(problems) == 1:
            return problems[0]
        error = cls("several settings cannot be used")
        error.problems = tuple(problems)
        return error

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems)) or super().__str__()


class StudentError(DistillError, ValueError):
    """A student that cannot be built, or does not fit its teacher."""


class DataError(DistillError, ValueError):
    """Evaluation or training data that is missing or malformed."""


class ExportError(DistillError, ValueError):
    """A model that cannot be exported, or an export that does not give the same vectors."""


class MissingExtraError(DistillError, ImportError):
    """An optional dependency is needed; the message names the install line."""


class TrainingError(DistillError, ArithmeticError):
    """Training went wrong underneath: a loss that is not finite, say."""

    exit_code = 1


class CheckpointError(DistillError, ValueError):
    """A run that cannot be resumed: no checkpoint, a damaged one, or one of another run."""


class FetchError(DistillError, RuntimeError):
    """A file could not be fetched, or changed since its digest was taken."""

    exit_code = 1
