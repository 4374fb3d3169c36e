"""Every error embedcache raises on purpose.

Each subclasses ``EmbedCacheError`` and the builtin a caller would expect, and its message says what was
found, what was expected and what to do. The command line prints the message alone and exits with
``exit_code``: 2 where the user can mend the input, 1 where something failed underneath. Messages are written
with the command line's options; a caller in Python reads the names of arguments instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

# Of the process, as threads make messages too.
_callers = ["Python"]
_COMMAND_OR_OPTION = re.compile(
    r"'(?:embedcache|distill) [^']*'|(?<![\w-])--([a-z][a-z0-9-]*)(?:=| (?=[\d/]|[A-Z][A-Z_,|]*\b))?"
)
_ARGUMENTS = {
    "teacher-name": "TeacherOptions.name",
    "prompt-name": "TeacherOptions.prompt_name",
    "teacher-arg": "TeacherOptions.arguments",
    "trust-remote-code": "TeacherOptions.trust_remote_code",
    "language": "ViewOptions.language",
    "translator": "ViewOptions.translators",
    "part": "EncodeOptions.part",
    "embed-views": "ViewOptions.embed",
    "skip-manifest": "skip_manifests",
}


@contextmanager
def naming_options() -> Iterator[None]:
    """Let messages name options of the command line, as long as the block lasts."""
    _callers.append("command line")
    try:
        yield
    finally:
        _callers.pop()


def for_caller(message: str) -> str:
    """Return a message with its options named as the caller gives them.

    >>> for_caller("two teachers: give --teacher NAME, or run 'embedcache rm teacher NAME --cache C'")
    "two teachers: give teacher=NAME, or run 'embedcache rm teacher NAME --cache C'"
    """
    return message if _callers[-1] != "Python" else _COMMAND_OR_OPTION.sub(_argument, message)


def _argument(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    name = _ARGUMENTS.get(found[1], found[1].replace("-", "_"))
    if name in ("overwrite", "append", "again", "token_embeddings"):
        return f"{name}=True"
    return name if found[0].endswith(found[1]) else f"{name}="


class EmbedCacheError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the command line exits with."""

    exit_code = 2

    # FileNotFoundError would print as "[Errno ...]", and KeyError as the repr of the message.
    def __str__(self) -> str:
        """Return the message alone, for the caller."""
        return for_caller(str(self.args[0])) if self.args else ""


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
