"""Marker of a cache: ``cache.json``, which says that a folder is one."""

from __future__ import annotations

from pathlib import Path

from embedcache.errors import CacheFormatError
from embedcache.fsio import read_sealed_json

CACHE_VERSION = 2
CACHE_MARKER = {"format": "embedcache", "version": CACHE_VERSION}
"""Content of ``cache.json``, beside its seal."""

REMOTE_MARKER = "embedcache-remote.json"
"""File that makes a folder a remote, which is no cache."""


def check_marker(folder: Path) -> None:
    """Raise :class:`CacheFormatError` unless ``folder`` is a cache of this version."""
    marker = folder / "cache.json"
    try:
        value = read_sealed_json(marker)
    except FileNotFoundError:
        refuse_remote(folder)
        raise CacheFormatError(
            f"{folder} is no cache: it has no cache.json; build one with "
            f"'embedcache build CORPUS --teacher NAME --cache {folder}'"
        ) from None
    except (OSError, ValueError) as error:
        raise CacheFormatError(
            f"{marker} is damaged ({error}): 'embedcache repair' writes it again"
        ) from error
    version = value.get("version")
    if version != CACHE_VERSION:
        newer = isinstance(version, int) and version > CACHE_VERSION
        raise CacheFormatError(
            f"{folder} has format version {repr(version)[:40]}, this embedcache reads version "
            f"{CACHE_VERSION}: {'upgrade embedcache' if newer else 'build it again in a new folder'}"
        )
    if value != CACHE_MARKER:
        raise CacheFormatError(
            f"{marker} is not as embedcache writes it: 'embedcache repair' writes it again"
        )


def refuse_remote(folder: Path) -> None:
    """Raise :class:`CacheFormatError` for a folder that is a remote."""
    if (folder / REMOTE_MARKER).is_file():
        raise CacheFormatError(
            f"{folder} is a remote, not a cache: pull from it into a cache with "
            f"'embedcache pull {folder} --cache DIR', or list it with 'embedcache remote ls {folder}'"
        )
