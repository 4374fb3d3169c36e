"""Names of remotes, kept per user: ``team`` for ``s3://bucket/teachers``."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from embedcache.cache import REMOTE_MARKER
from embedcache.errors import InputError
from embedcache.fsio import make_directory, write_json
from embedcache.share.location import checked_url

CONFIG_VARIABLE = "EMBEDCACHE_CONFIG"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def config_file() -> Path:
    """Return the file of names: ``$EMBEDCACHE_CONFIG``, or one in the user's settings folder."""
    if given := os.environ.get(CONFIG_VARIABLE):
        return Path(given).expanduser()
    default = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    base = os.environ.get("XDG_CONFIG_HOME") or default
    return Path(base).expanduser() / "embedcache" / "remotes.json"


def list_remotes() -> dict[str, str]:
    """Return the remotes that have a name: name -> URL.

    Raises:
        InputError: if the file of names cannot be read.
    """
    path = config_file()
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
        raise InputError(f"{name!r} is {known[name]}: choose another name, or remove it with --remove first.")
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


def _write(remotes: dict[str, str]) -> None:
    make_directory(config_file().parent)
    write_json(config_file(), {"remotes": remotes})


def url_of(remote: str) -> str:
    """Return the URL of ``remote``: a name, a URL or a folder. A name wins over a folder.

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
    """Return whether ``place`` is a URL, a remote's name or the folder of one. A name wins over a folder."""
    if "://" in place or (_NAME.fullmatch(place) and place in list_remotes()):
        return True
    folder = Path(place).expanduser()
    return (folder / REMOTE_MARKER).is_file() and not (folder / "cache.json").exists()
