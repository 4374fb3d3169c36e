"""Remotes by name, kept per user: ``team`` for ``s3://bucket/teachers``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import (
    commit,
    make_directory,
    read_sealed_json,
    sealed,
    spelled_json,
    temporary_sibling,
)
from embedcache.locked_folder import locked_folder
from embedcache.share.places import Location, parse_location

CONFIG_VARIABLE = "EMBEDCACHE_CONFIG"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRIVATE = 0o600


def config_file() -> Path:
    """Return where the remotes are kept: ``$EMBEDCACHE_CONFIG``, or the user's folder of settings."""
    given = os.environ.get(CONFIG_VARIABLE)
    return Path(given).expanduser() if given else _settings_folder() / "embedcache" / "remotes.json"


def list_remotes() -> dict[str, str]:
    """Return the remotes that have a name: name -> URL.

    Raises:
        InputError: if the file they are kept in cannot be read.
        CorruptCacheError: if it is damaged.
    """
    path = config_file()
    try:
        value = read_sealed_json(path)
        remotes = value["remotes"]
        if not isinstance(remotes, dict) or not all(isinstance(url, str) for url in remotes.values()):
            raise ValueError("it holds no names of remotes")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, KeyError) as error:
        if not path.is_file() or path.is_symlink():
            raise _unreadable(path, "it is a folder, a link or a device") from error
        raise CorruptCacheError(
            f"{path} is damaged ({error}): delete it, and name your remotes again with 'embedcache remote "
            "add'"
        ) from error
    return dict(sorted(remotes.items()))


def add_remote(name: str, url: str) -> str:
    """Call the remote at ``url`` ``name``; return the URL as it is kept.

    Raises:
        InputError: if the name is not allowed or is another remote's, the URL cannot be used, or the names
            cannot be read.
        CorruptCacheError: if the file of names is damaged.
        StorageError: if it cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} cannot name a remote: use up to 64 letters, digits, '.', '_' and '-'"
        )
    kept = parse_location(url).url
    with _locked():
        known = list_remotes()
        # Earlier versions spelled some URLs in another way.
        if name in known and parse_location(known[name]).url != kept:
            raise InputError(
                f"{name!r} is {known[name]} already: choose another name, or 'embedcache remote remove "
                f"{name}' first"
            )
        _write({**known, name: kept})
    return kept


def remove_remote(name: str) -> None:
    """Forget the name of a remote; what lies there stays.

    Raises:
        InputError: if there is no such name, or the names cannot be read.
        CorruptCacheError: if the file of names is damaged.
        StorageError: if it cannot be written.
    """
    with _locked():
        known = list_remotes()
        if name not in known:
            raise InputError(f"no remote {name[:80]!r}: there are {', '.join(known) or 'none'}")
        _write({other: url for other, url in known.items() if other != name})


def location_of(remote: str) -> Location:
    """Return where ``remote``, a name or a URL, is. A name wins over a folder; write ``./name`` for that.

    What has a slash in it, or is a folder, is a path.

    The file of names is read only for what could be a name: URLs and paths work without it.

    Raises:
        InputError: if it has no slash and names no remote and no folder, a URL that cannot be used, or a name
            while the names cannot be read.
        CorruptCacheError: if it could be a name, and the file of names is damaged.
    """
    if not _NAME.fullmatch(remote):
        location = parse_location(remote)
        if location.scheme == "file" and not {"/", os.sep} & set(remote) and not Path(location.path).is_dir():
            known = ", ".join(list_remotes()) or "none"
            raise InputError(
                f"no remote {remote[:80]!r} (there are {known}) and no folder of that name: see to the "
                f"spelling, or write ./{remote[:80]} for a new folder"
            )
        return location
    remotes = list_remotes()
    if remote in remotes:
        return parse_location(remotes[remote])
    if not Path(remote).is_dir():
        known = ", ".join(remotes) or "none"
        raise InputError(
            f"no remote {remote!r} (there are {known}) and no folder of that name: add it with 'embedcache "
            f"remote add {remote} URL', or write ./{remote} for a new folder"
        )
    return parse_location(remote)


def _settings_folder() -> Path:
    """Return the folder that programs of this user keep their settings in."""
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or "~"
    elif sys.platform == "darwin":
        base = "~/Library/Application Support"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser()


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} cannot be read ({reason}), and the names of remotes are kept there: make it a file that you "
        f"can read, or give another with ${CONFIG_VARIABLE}; URLs and paths work without it"
    )


@contextmanager
def _locked() -> Iterator[None]:
    """Let nobody else change the names between the block's reading and writing."""
    folder = make_directory(config_file().parent)
    with locked_folder(folder, or_unlocked=True):
        yield


def _write(remotes: Mapping[str, str]) -> None:
    path = config_file()
    with temporary_sibling(path) as temporary:
        temporary.touch(_PRIVATE)
        temporary.write_bytes(spelled_json(sealed({"version": 1, "remotes": dict(remotes)})))
        commit(temporary, path)
