"""Names of files on a remote: digests with an ending, and manifests by their first digits."""

from __future__ import annotations

from collections.abc import Collection

from embedcache.corpus.description import begins_digest, is_digest
from embedcache.errors import InputError


def digest_before(name: str, ending: str) -> str:
    """Return the sha256 that a file is named by, before its ending; empty where it has another name."""
    digest = name.removesuffix(ending)
    return digest if name.endswith(ending) and is_digest(digest) else ""


def manifests_named(digits: str, ids: Collection[str], where: str) -> list[str]:
    """Return those of the manifests ``ids`` whose names begin with ``digits``.

    Args:
        digits: six or more.
        ids: names of manifests.
        where: the remote that has them, for messages.

    Raises:
        InputError: if these are no six digits, or no name begins with them.
    """
    if not begins_digest(digits):
        raise InputError(
            f"{digits[:64]!r} names no manifest: expected six or more hexadecimal digits that its name "
            "begins with, as 'embedcache remote ls' shows them"
        )
    named = [name for name in ids if name.startswith(digits)]
    if not named:
        raise InputError(
            f"no manifest of {where} begins with {digits!r}: it may have been deleted, or be another "
            "remote's; 'embedcache remote ls' shows those that are there"
        )
    return named
