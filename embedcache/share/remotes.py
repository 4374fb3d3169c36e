"""Remotes by name, kept per user: ``team`` for ``s3://bucket/teachers``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import click

from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import commit, read_sealed_json, sealed, spelled_json, temporary_sibling
from embedcache.share.places import Location, parse_location

CONFIG_VARIABLE = "EMBEDCACHE_CONFIG"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRIVATE = 0o600


def config_file() -> Path:
    """Return where the remotes are kept: ``$EMBEDCACHE_CONFIG``, or the user's folder of settings."""
    given = os.environ.get(CONFIG_VARIABLE)
    return Path(given).expanduser() if given else Path(click.get_app_dir("embedcache")) / "remotes.json"


def list_remotes() -> dict[str, str]:
    """Return the remotes that have a name: name -> URL.

    Raises:
        CorruptCacheError: if the file they are kept in is damaged.
    """
    path = config_file()
    try:
        value = read_sealed_json(path)
        remotes = value["remotes"]
        if not isinstance(remotes, dict) or not all(isinstance(url, str) for url in remotes.values()):
            raise ValueError("it holds no names of remotes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as error:
        raise CorruptCacheError(
            f"{path} is damaged ({error}): delete it, and name your remotes again with 'embedcache remote "
            "add'"
        ) from error
    return dict(sorted(remotes.items()))


def add_remote(name: str, url: str) -> str:
    """Call the remote at ``url`` ``name``; return the URL as it is kept.

    Raises:
        InputError: if the name can be none or is another remote's, or the URL cannot be used.
        StorageError: if it cannot be kept.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} cannot name a remote: use up to 64 letters, digits, '.', '_' and '-'"
        )
    kept = parse_location(url).url
    known = list_remotes()
    # Earlier versions spelled some URLs in another way.
    if name in known and parse_location(known[name]).url != kept:
        raise InputError(
            f"{name!r} is {known[name]} already: choose another name, or 'embedcache remote remove {name}' "
            "first"
        )
    _write({**known, name: kept})
    return kept


def remove_remote(name: str) -> None:
    """Forget the name of a remote; what lies there stays.

    Raises:
        InputError: if there is no such name.
        StorageError: if that cannot be kept.
    """
    known = list_remotes()
    if name not in known:
        raise InputError(f"no remote {name[:80]!r}: there are {', '.join(known) or 'none'}")
    _write({other: url for other, url in known.items() if other != name})


def location_of(remote: str) -> Location:
    """Return where ``remote``, a name or a URL, is. A name wins over a folder; write ``./name`` for that.

    Raises:
        InputError: if it is a word that names no remote and no folder, or a URL that cannot be used.
    """
    known = list_remotes()
    if remote in known:
        return parse_location(known[remote])
    if _NAME.fullmatch(remote) and not Path(remote).is_dir():
        raise InputError(
            f"no remote {remote!r} (there are {', '.join(known) or 'none'}) and no folder of that name: add "
            f"it with 'embedcache remote add {remote} URL', or write ./{remote} for a new folder"
        )
    return parse_location(remote)


def _write(remotes: Mapping[str, str]) -> None:
    path = config_file()
    with temporary_sibling(path) as temporary:
        temporary.touch(_PRIVATE)
        temporary.write_bytes(spelled_json(sealed({"version": 1, "remotes": dict(remotes)})))
        commit(temporary, path)
