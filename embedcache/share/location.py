"""Locations of remotes: the names that a user gives them, their URLs, and the filesystems of those.

Credentials come from the environment, never from the URL.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

from embedcache.cache_documents import REMOTE_MARKER
from embedcache.errors import InputError
from embedcache.filesystems import BUCKETS, SCHEMES
from embedcache.fsio import make_directory, write_json

CONFIG_VARIABLE = "EMBEDCACHE_CONFIG"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLACE = r"[\w.-]+(?::\d{1,5})?(?:/[^/?#]+)*"


def checked_url(text: str) -> str:
    """Return the URL of a remote in one spelling; a folder becomes its absolute path.

    Raises:
        InputError: if its scheme is unknown, it names no bucket, server or folder, or it holds credentials.
    """
    scheme, colon, rest = text.partition("://")
    scheme, rest = scheme.lower(), rest.rstrip("/")
    if not colon:
        if not text.strip() or "\0" in text or text.partition(":")[0] in ("file", *SCHEMES):
            raise InputError(
                f"{text[:80]!r} is not a remote: give a folder, or a URL such as s3://BUCKET/FOLDER."
            )
        return str(Path(text).expanduser().absolute())
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise InputError(f"unknown kind of remote {scheme[:20]!r}: expected a folder or one of {known}.")
    plain = unquote(rest)
    user = "(?:[^/@:?#]+@)?" if scheme == "sftp" else ""
    option = r"(?:\?anonymous=true)?" if scheme in BUCKETS else ""
    is_path = not {"", ".", ".."} & set(plain.split("/")[1:])
    if not (re.fullmatch(user + _PLACE + option, rest) and is_path and plain.isprintable()):
        # URLs are stored and shown, so this message does not repeat what may be a password.
        raise InputError(
            f"a {scheme}:// URL that names no remote: expected {scheme}://PLACE/FOLDER, without a password, "
            "'..' or options but ?anonymous=true of a bucket. Credentials come from the environment."
        )
    # Stored percent-encoded, decoded when it is opened.
    return f"{scheme}://{rest}"


def url_of(remote: str) -> str:
    """Return the URL of ``remote``: a name, a URL or a folder. A name takes precedence.

    Raises:
        InputError: if it is none of them, or it could be a name and the file of names cannot be read.
    """
    if _NAME.fullmatch(remote):
        known = list_remotes()
        if remote in known:
            return known[remote]
        if not Path(remote).is_dir():
            raise InputError(
                f"no remote {remote!r} (known: {', '.join(known) or 'none'}) and no such folder. Add it with "
                f"'embedcache remote add {remote} URL', or write ./{remote} for a new folder."
            )
    return checked_url(remote)


def is_remote(place: str) -> bool:
    """Return whether ``place`` is a URL, a remote's name or the folder of one. A name takes precedence."""
    if "://" in place or (_NAME.fullmatch(place) and place in list_remotes()):
        return True
    folder = Path(place).expanduser()
    return (folder / REMOTE_MARKER).is_file() and not (folder / "cache.json").exists()


def list_remotes() -> dict[str, str]:
    """Return the remotes that have a name: name -> URL.

    Raises:
        InputError: if the file of names cannot be read.
    """
    path = _config_file()
    try:
        remotes = json.loads(path.read_bytes())["remotes"]
        return {name: checked_url(url) for name, url in sorted(remotes.items())}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: the names of remotes cannot be read ({error}). Delete it.") from error


def add_remote(name: str, url: str) -> str:
    """Name the remote at ``url``; return the URL as it is kept.

    Raises:
        InputError: if the name is not allowed or is another remote's, or the URL cannot be used.
        StorageError: if the file of names cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name[:80]!r}: a remote's name has up to 64 letters, digits, '.', '_' and '-'.")
    kept, known = checked_url(url), list_remotes()
    if known.get(name, kept) != kept:
        raise InputError(
            f"{name!r} is {known[name]}: choose another name, or forget it with "
            f"'embedcache remote add {name} --remove'."
        )
    _write({**known, name: kept})
    return kept


def remove_remote(name: str) -> None:
    """Forget the name of a remote; the remote itself stays.

    Raises:
        InputError: if there is no such name.
        StorageError: if the file of names cannot be written.
    """
    known = list_remotes()
    if known.pop(name, None) is None:
        raise InputError(f"no remote {name[:80]!r} (known: {', '.join(known) or 'none'}).")
    _write(known)


def _config_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.environ.get(CONFIG_VARIABLE) or f"{base}/embedcache/remotes.json").expanduser()


def _write(remotes: dict[str, str]) -> None:
    make_directory(_config_file().parent)
    write_json(_config_file(), {"remotes": remotes})
