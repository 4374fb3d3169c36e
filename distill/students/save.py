"""What goes wrong while a model is being saved, in our own words."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from embedcache.errors import StorageError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error

# How Rust writers spell the system's error number at the end of their messages.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)\s*$")


def share(file: Path) -> None:
    """Let those read ``file`` who may read any new file of this user's: safetensors hides what it writes.

    Raises:
        OSError: if that cannot be done.
    """
    # The user's mask cannot be asked for without changing it.
    probe = file.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        probe.touch()
        file.chmod(probe.stat().st_mode & 0o777)
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def saving(target: Path) -> Iterator[None]:
    """Turn errors of the libraries that save a model to ``target`` into :class:`StorageError`.

    Raises:
        StorageError: if the disk is full, read-only or gone.
    """
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, target) from error
    except SafetensorError as error:
        # Safetensors hides the number of the system's error; nearly always the disk is full.
        raise StorageError(
            f"cannot write {target}: {error}; free some space and run the command again"
        ) from error
    except Exception as error:
        # What the tokenizer's Rust writer raises has no class of its own; anything else passes on.
        found = _SYSTEM_ERROR.search(str(error))
        if type(error) is not Exception or found is None:
            raise
        number = int(found.group(1))
        raise explain_os_error(OSError(number, os.strerror(number)), target) from error
