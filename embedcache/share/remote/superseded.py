"""Manifests that others replace: without them a remote still lists the same files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from embedcache.errors import MissingExtraError
from embedcache.share.remote.manifest import Manifest, SharedFile
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import signed_by


@dataclass(frozen=True)
class _Said:
    """What a manifest declares.

    Attributes:
        files: its files, with the row indexes of shards.
        licences: of models and texts, as far as declared.
        keys: who has signed it; None where that cannot be told here.
    """

    files: frozenset[SharedFile]
    licences: frozenset[tuple[str, str]]
    keys: frozenset[bytes] | None


def superseded(remote: Remote, manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the ids of replaced manifests, each with the id of the one that replaces it.

    A manifest replaces another if it lists all its files, declares all its licences, and is signed by every
    key that has signed it. Without ``cryptography`` signatures cannot be checked: then no signed manifest is
    replaced.

    Args:
        remote: where they lie.
        manifests: all of them.

    Raises:
        RemoteError: if signatures cannot be read.
    """
    keys = remote.in_threads(lambda manifest: _keys(remote, manifest), manifests)
    statements = {
        manifest.id: _Said(frozenset(manifest.files), frozenset(_licences(manifest)), signers)
        for manifest, signers in zip(manifests, keys, strict=True)
    }
    kept: list[Manifest] = []
    replaced: dict[str, str] = {}
    # The largest first, and of equals the latest: whatever stands for a manifest comes before it.
    for manifest in sorted(manifests, key=lambda each: (len(each.files), each.when, each.id), reverse=True):
        said = statements[manifest.id]
        instead = next((other for other in kept if _stands_for(statements[other.id], said)), None)
        if instead is None:
            kept.append(manifest)
        else:
            replaced[manifest.id] = instead.id
    return replaced


def _stands_for(other: _Said, said: _Said) -> bool:
    if not (said.files <= other.files and said.licences <= other.licences):
        return False
    return said.keys is not None and (not said.keys or (other.keys is not None and said.keys <= other.keys))


def _licences(manifest: Manifest) -> Iterable[tuple[str, str]]:
    yield from ((one.contract, one.licence) for one in manifest.teachers if one.licence)
    yield from ((one.digest, one.licence) for one in manifest.corpora if one.licence)


def _keys(remote: Remote, manifest: Manifest) -> frozenset[bytes] | None:
    if not remote.files_in(f"signatures/{manifest.id}"):
        return frozenset()
    try:
        return frozenset(key.raw for key in signed_by(remote, manifest.id))
    except MissingExtraError:
        return None
