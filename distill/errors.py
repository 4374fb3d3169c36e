"""Every error distill raises on purpose; see :mod:`embedcache.errors` for the conventions."""

from __future__ import annotations


class DistillError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line exits with."""

    exit_code = 2


class ConfigError(DistillError, ValueError):
    """A configuration that cannot be run; the message lists every problem with its dotted path."""


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
    """A run that cannot be gone on with: no checkpoint, a damaged one, or one of another run."""


class FetchError(DistillError, RuntimeError):
    """Something that could not be fetched, or is not what it was when its digest was taken."""

    exit_code = 1
