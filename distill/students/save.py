"""File permissions and errors of the libraries that save models."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from embedcache.errors import StorageError
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.os_errors import explain_os_error


def make_readable(file: Path) -> None:
    """Give ``file`` the permissions of any new file: safetensors creates files only their owner can read.

    Raises:
        OSError: if that fails.
    """
    # The umask cannot be read without changing it.
    probe = file.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        probe.touch()
        file.chmod(probe.stat().st_mode & 0o777)
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def saving(target: Path) -> Iterator[None]:
    """Convert errors of the libraries that save a model to ``target`` into ``StorageError``.

    Raises:
        StorageError: if the disk is full, read-only or gone.
    """
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, target) from error
    except Exception as error:
        # The Rust writers of tensors and tokenizers hide the system's error number; the latter raises a bare
        # Exception.
        if not isinstance(error, SafetensorError) and type(error) is not Exception:
            raise
        raise StorageError(f"cannot write {target}: {error}; free some space and run again") from error
