"""Every error embedcache raises on purpose.

Each subclasses ``EmbedCacheError`` and the builtin a caller would expect, and its message says what was
found, what was expected and what to do. The command line prints the message alone and exits with
``exit_code``: 2 where the user can mend the input, 1 where something failed underneath.
"""

from __future__ import annotations


class EmbedCacheError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line exits with."""

    exit_code = 2

    # FileNotFoundError would print as "[Errno ...]", and KeyError as the repr of the message.
    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0]) if self.args else ""


class InputError(EmbedCacheError, ValueError):
    """A corpus, a file or an argument that cannot be used as it is."""


class MissingInputError(InputError, FileNotFoundError):
    """A file, folder or column that was named but is missing."""


class EmptySourceError(InputError):
    """A file without a row."""


class TeacherError(EmbedCacheError, ValueError):
    """A teacher that cannot be found, loaded or understood."""


class ServedTeacherError(TeacherError):
    """A server that cannot be reached, refuses a request or gives an answer that cannot be used."""

    exit_code = 1


class PoolingNeededError(TeacherError):
    """A model folder that does not say how its token vectors become a sentence vector."""


class MissingExtraError(EmbedCacheError, ImportError):
    """An optional dependency is needed; the message names the install line."""


class ContractMismatchError(EmbedCacheError, ValueError):
    """Two teacher contracts that should be the same differ; ``differences`` maps field -> (found, wanted)."""

    def __init__(self, message: str, differences: dict[str, tuple[object, object]]) -> None:
        super().__init__(message, differences)  # both, so that it can be pickled
        self.differences = differences


class NonFiniteVectorError(EmbedCacheError, ArithmeticError):
    """The teacher returned NaN or infinity for a row; nothing of that row's shard was stored."""

    exit_code = 1


class MissingVectorsError(EmbedCacheError, KeyError):
    """Texts were looked up that the cache holds no vector for."""


class CorruptCacheError(EmbedCacheError, ValueError):
    """A file of the cache contradicts its name or its header."""

    exit_code = 1


class CacheFormatError(EmbedCacheError, ValueError):
    """The folder is not a cache, or was written by another version of embedcache."""


class WorkerError(EmbedCacheError, RuntimeError):
    """Processes that share a build ended before it was done."""

    exit_code = 1


class StorageError(EmbedCacheError, OSError):
    """The cache folder cannot be written: read-only, full or gone."""

    exit_code = 1


class UnreadableError(EmbedCacheError, OSError):
    """A file of the cache cannot be read: permission, too many open files, I/O. It may well be sound."""

    exit_code = 1


class RemoteError(EmbedCacheError, OSError):
    """A remote cannot be reached, or its files are damaged or unexpected."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
