"""Configuration of the transfer of vectors from a remote."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from distill.config.base import PositiveInt, StrictConfig, setting
from embedcache.sizes import parse_size


def _read_size(size: object) -> object:
    if not isinstance(size, str):
        return size
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{error}, as in --cache-limit 20GB") from None


class StreamConfig(StrictConfig):
    """Transfer of vectors from a remote; not for a cache of this machine."""

    mirror: str | None = setting(
        None,
        "folder of what comes from a remote; default: one in the user's cache folder",
        affects="place",
        option="--mirror",
        metavar="DIR",
    )
    limit: Annotated[PositiveInt | None, BeforeValidator(_read_size)] = setting(
        None,
        "bytes of a remote's shards to keep at a time, as in 20GB: rows come in windows; default: all",
        option="--cache-limit",
        metavar="SIZE",
    )
    require_signature: str | None = setting(
        None,
        "file of ed25519 keys: use only pushes signed by one of them",
        affects="place",
        option="--require-signature",
        metavar="KEYFILE",
    )
