"""Manifests that others replace: without them a remote still lists the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from embedcache.errors import MissingExtraError
from embedcache.share.remote.manifest import Manifest, SharedFile
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import signed_by


@dataclass(frozen=True)
class _Statement:
    """What a manifest declares.

    Attributes:
        manifest: the manifest.
        licences: of models and texts, as far as declared.
        keys: who has signed it; None where that cannot be told here.
    """

    manifest: Manifest
    licences: frozenset[tuple[str, str]]
    keys: frozenset[bytes] | None

    @cached_property
    def files(self) -> frozenset[SharedFile]:
        """Its files, with the row indexes of shards; built for a manifest that others are compared with."""
        return frozenset(self.manifest.files)

    @cached_property
    def news(self) -> frozenset[SharedFile]:
        """Those files that it says were news, and that taking it back therefore deletes."""
        return frozenset(() if self.manifest.news is None else self.manifest.new_files)


def superseded(remote: Remote, manifests: Sequence[Manifest]) -> dict[str, str]:
    """Return the ids of replaced manifests, each with the id of the one that replaces it.

    A manifest replaces another if it lists all its files and says of none that it was news, declares all its
    licences, and is signed by every key that has signed it. Of two pushes that brought the same file at once
    each says that it was news: then neither replaces the other, and the file stays if one is taken back.
    Without ``cryptography`` signatures cannot be checked: then no signed manifest is replaced.

    Args:
        remote: where they lie.
        manifests: all of them.

    Raises:
        RemoteError: if signatures cannot be read.
    """
    keys = remote.in_threads(lambda manifest: _keys(remote, manifest), manifests)
    statements = {
        manifest.id: _Statement(manifest, frozenset(_licences(manifest)), signers)
        for manifest, signers in zip(manifests, keys, strict=True)
    }
    # Whatever stands for a manifest lists its rarest file: it is compared with those few alone.
    counts = Counter(file for manifest in manifests for file in manifest.files)
    rarest = {manifest.id: min(manifest.files, key=counts.__getitem__) for manifest in manifests}
    kept_with: dict[SharedFile, list[Manifest]] = {file: [] for file in rarest.values()}
    replaced: dict[str, str] = {}
    # The largest first, and of equals the latest: whatever stands for a manifest comes before it.
    for manifest in sorted(manifests, key=lambda each: (len(each.files), each.when, each.id), reverse=True):
        statement = statements[manifest.id]
        others = kept_with[rarest[manifest.id]]
        instead = next((other for other in others if _stands_for(statements[other.id], statement)), None)
        if instead is not None:
            replaced[manifest.id] = instead.id
            continue
        for file in manifest.files:
            if file in kept_with:
                kept_with[file].append(manifest)
    return replaced


def _stands_for(other: _Statement, statement: _Statement) -> bool:
    """Return whether one manifest says all that another one says."""
    if statement.keys is None or not statement.licences <= other.licences:
        return False
    if statement.keys and (other.keys is None or not statement.keys <= other.keys):
        return False
    files = statement.manifest.files
    return other.files.issuperset(files) and other.news.isdisjoint(files)


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
