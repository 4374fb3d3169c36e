"""Google Cloud Storage: the address of its server, credentials, and what its client's errors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError
from embedcache.share.retry import RefusedError, RemediedError

if TYPE_CHECKING:
    from pyarrow.fs import GcsFileSystem

# In the order in which Arrow's client, which reads the first by itself, lets them win.
_EMULATORS = ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST")
# The client tries again for so long, and the caller tries again several times: together not too long.
_RETRY_SECONDS = 5
# With a limit of 0 not even the first attempt is made.
_ONCE_SECONDS = 1
_STATUS = re.compile(
    r"google::cloud::Status\((?P<code>[A-Z_]+): (?:.*?with a last message of )?(?P<said>.*?)"
    r"(?: error_info=\{.*)?\)(?:\. Detail: .*)?$",
    re.DOTALL,
)
_NO_TOKEN = re.compile(r"Could not create a OAuth2 access token.*The underlying error message was: ")
_CLOSED = "closed file"
_GIVE = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the file of a key, or run 'gcloud auth application-default login'"
)
_PUBLIC = "a bucket that is open to all is read with gs://BUCKET/FOLDER?anonymous=true"


def google_files(*, anonymous: bool, once: bool = False) -> GcsFileSystem:
    """Return the file system of Google Cloud Storage, or of the emulator that the environment names.

    Args:
        anonymous: whether to look for no credentials; none are needed for an emulator.
        once: whether nothing that fails is tried again.

    Raises:
        InputError: if the emulator's address cannot be used.
    """
    from pyarrow.fs import GcsFileSystem

    limit = timedelta(seconds=_ONCE_SECONDS if once else _RETRY_SECONDS)
    for name in _EMULATORS:
        if address := os.environ.get(name):
            scheme, host = _address(name, address)
            return GcsFileSystem(
                anonymous=True, scheme=scheme, endpoint_override=host, retry_time_limit=limit
            )
    # Arrow uses plain HTTP for anonymous access: https is forced.
    return GcsFileSystem(anonymous=anonymous, scheme="https", retry_time_limit=limit)


def _address(name: str, address: str) -> tuple[str, str]:
    """Return scheme and host of an emulator's address, which may come without a scheme."""
    scheme, _, host = address.strip().rpartition("://")
    host = host.rstrip("/")
    if scheme not in ("", "http", "https") or not host or {"@", "/", "?"} & set(host):
        # The address is not shown: there may be a password in it.
        raise InputError(f"{name} is no address of an emulator: expected http://HOST:PORT")
    return scheme or "http", host


class GoogleErrors:
    """Turns errors of Google's client into an ``OSError`` with what the server said, and a remedy.

    Each place has its own, which remembers whether the server has ever answered.
    """

    def __init__(self) -> None:
        self._answered = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch over what the block asks of the client.

        Raises:
            FileNotFoundError: if what was asked for is not there.
            RefusedError: if trying again does not help.
            RemediedError: if no access token was given, though there are credentials or one was given before.
            OSError: for all other errors.
        """
        from pyarrow import ArrowException

        try:
            yield
        except FileNotFoundError:
            raise
        except (ArrowException, OSError, ValueError) as error:
            status = _STATUS.search(str(error))
            if status is None:
                # Arrow calls a file closed when the connection failed before the first byte.
                if isinstance(error, OSError) or _CLOSED not in str(error):
                    raise
                raise OSError(f"the connection failed: {error}") from error
            raise _meant(status["code"], " ".join(status["said"].split()), self._answered) from error
        else:
            self._answered = True


def _meant(code: str, said: str, answered: bool) -> OSError:
    token = _NO_TOKEN.sub("", said)
    if token != said:
        has_file = _has_credentials()
        # A machine in Google's cloud gets tokens from a server, without a file of credentials.
        if has_file or answered:
            what = f"no access token was given{' for the credentials' if has_file else ''}: {token}"
            # An error of the network may pass.
            kind = RemediedError if code == "UNAVAILABLE" else RefusedError
            return kind(what, f"see to the connection and to the credentials: {_GIVE}")
        what = f"no credentials for Google Cloud Storage were found: {token}"
        return RefusedError(what, f"{_GIVE}; {_PUBLIC}")
    what = f"{code}: {said}" if said else code
    if code == "DEADLINE_EXCEEDED" and not answered:
        # The client has waited for two minutes by then, and has no setting for that.
        return RefusedError(what, "the server does not answer: see to the connection")
    if code == "UNAUTHENTICATED":
        return RefusedError(what, f"give credentials that allow this: {_GIVE}")
    if code == "PERMISSION_DENIED":
        return RefusedError(what, "see to the permissions, the credentials and the spelling of the URL")
    if code == "INVALID_ARGUMENT":
        return RefusedError(what, "see to the spelling of the URL")
    return OSError(what)


def _has_credentials() -> bool:
    """Return whether there is a file of credentials where Google's clients look for one."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return True
    try:
        return Path("~/.config/gcloud/application_default_credentials.json").expanduser().is_file()
    except (OSError, RuntimeError):
        # There is no home folder.
        return False
