"""The content of a claim: the objects that a process is sending."""

from __future__ import annotations

from embedcache.corpus.description import is_digest

_DIGEST_BYTES = len('"",') + 64


def claimed_digests(data: bytes) -> frozenset[str] | None:
    """Return the digests that the content of a claim lists; None where it is not that of a claim.

    It is not read as JSON: 32 MiB of something else could become gigabytes.
    """
    if data == b"[]":
        return frozenset()
    count, rest = divmod(len(data) - 1, _DIGEST_BYTES)
    if rest or data.count(b'","') != count - 1 or not (data.startswith(b'["') and data.endswith(b'"]')):
        return None
    digests = frozenset(data[2:-2].decode("latin-1").split('","'))
    return digests if all(map(is_digest, digests)) else None
