"""Push: survey a remote, send the objects that it lacks, then publish a manifest of what was added.

Nothing is locked. An object that no manifest lists yet is relied on only while it is young, and the manifest
follows long before garbage collection would take it: see docs/design/0011-sharing.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import LocalTeacher, Selection, local_corpora, local_teachers
from embedcache.share.manifest import (
    MOST_FILES,
    Manifest,
    ManifestSet,
    SharedCorpus,
    SharedFile,
    SharedTeacher,
    digest_in,
    manifest_name,
)
from embedcache.share.remote import MANIFESTS, Remote, object_path
from embedcache.share.sign import private_key, sign_manifest, signed_by
from embedcache.share.transfer import Stat
from embedcache.store.base import ShardContainer
from embedcache.store.shard import Shard

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DAY = 86_400.0
LEAST_GRACE = DAY
"""Seconds that an object no manifest lists is kept at least."""
_TRUSTED = LEAST_GRACE / 2
_SLICE = LEAST_GRACE / 4

_Corpora = list[tuple[SharedCorpus, list[SharedFile]]]
_Sources = dict[str, tuple[int, Callable[[], "memoryview | Path"]]]
"""Objects of a cache: sha256 -> size, and a function that gives the bytes."""


@dataclass(frozen=True)
class PushResult:
    """Result of a push, or with ``dry_run`` what it would send.

    Attributes:
        remote: its URL.
        manifests: digests of the manifests that were written; none where nothing was new.
        files: files that those list.
        sent: objects that were sent.
        sent_bytes: their size.
        present: objects that were there already.
    """

    remote: str
    manifests: list[str]
    files: int
    sent: int
    sent_bytes: int
    present: int


@dataclass
class _News:
    """Files of a cache that no manifest lists, and all documents that they need.

    Attributes:
        files: files other than shards: all those of a teacher or corpus that has anything new.
        shards: shards.
        teachers, corpora: the card.
    """

    files: list[SharedFile] = field(default_factory=list)
    shards: list[SharedFile] = field(default_factory=list)
    teachers: list[LocalTeacher] = field(default_factory=list)
    corpora: list[SharedCorpus] = field(default_factory=list)


def push(
    cache: str | Path,
    remote: str,
    selection: Selection | None = None,
    *,
    by: str = "",
    message: str = "",
    licence: str = "",
    sign: str | Path | None = None,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress = NO_PROGRESS,
) -> PushResult:
    """Send what a cache has and a remote lacks.

    Args:
        cache: the cache's folder.
        remote: name or URL of the remote; it is made where there is nothing.
        selection: what to send; default: everything.
        by, message, licence: for the card: who pushes, what for, licence of the texts.
        sign: file of a private ed25519 key to sign with; the manifest then lists what this key has not
            signed yet.
        dry_run: send nothing.
        clock: the time in seconds since 1970.
        progress: receives what is done.

    Raises:
        InputError: if the remote cannot be pushed to, or something asked for is not in the cache.
        CorruptCacheError: if something to be sent is damaged.
        RemoteError: if the remote cannot be reached, or a manifest there cannot be used.
    """
    opened, chosen = Cache(cache), selection or Selection()
    if chosen.is_part:
        raise InputError("rows and where choose a part for a pull; a push sends whole corpora.")
    key = None if sign is None else private_key(sign)
    target = Remote(remote)
    target.refuse_nested(opened.folder)
    # Read before anything is written to the remote.
    teachers, corpora = local_teachers(opened, chosen), local_corpora(opened, chosen)
    sources = _sources(opened, teachers, corpora)
    if not dry_run:
        target.create(opened)
    manifests, total, files = list[str](), dict[str, int](), 0
    while True:
        surveyed = clock()
        # Objects first: what is deleted after that was old and unlisted, and is sent again.
        objects = target.objects()
        listed = target.manifests(opened)
        # A signature vouches for all that its owner has, also for what was pushed without it before.
        news = _news(listed if key is None else _signed(target, listed, key), teachers, corpora)
        if (count := len(news.files) + len(news.shards)) > MOST_FILES:
            raise InputError(
                f"{count:,} new files, expected at most {MOST_FILES:,} in a push: push one corpus or teacher "
                "at a time, with --corpus or --teacher"
            )
        lacking = {
            sha256: size
            for sha256, (size, _) in sources.items()
            if not _is_safe(objects.get(sha256), size, sha256 in listed.objects, surveyed)
        }
        if dry_run:
            total, files = lacking, len(news.files) + len(news.shards)
            break
        progress.phase("push", sum(lacking.values()), "bytes")
        done = _send(target, sources, lacking, news, listed, surveyed, clock, progress)
        total |= {sha256: size for sha256, size in done.items() if size}
        left = lacking.keys() - done.keys()
        added = [*news.files, *(one for one in news.shards if not {one.sha256, one.keys} & left)]
        if added:
            manifest = _manifest(news, added, by, message, licence, surveyed)
            name = manifest_name(manifest.to_bytes(), manifest.when)
            if key is not None:
                sign_manifest(target, name, key)
            target.write(f"{MANIFESTS}/{name}", manifest.to_bytes())
            manifests.append(digest_in(name))
            files += len(added)
        # Garbage collection may have been about to delete what was old and is written again: look once more.
        if not left and not lacking.keys() & objects.keys():
            break
    size, present = sum(total.values()), len(sources.keys() - total.keys())
    return PushResult(target.url, manifests, files, len(total), size, present)


def _sources(cache: Cache, teachers: list[LocalTeacher], corpora: _Corpora) -> _Sources:
    sources: _Sources = {}
    for one in teachers:
        container = cache.container(one.teacher.contract)
        for file, shard in one.shards:
            sources[file.sha256] = (file.bytes, partial(_shard_bytes, container, shard))
            sources[file.keys] = (file.key_bytes, partial(_key_bytes, shard))
    for files in (*(one.files for one in teachers), *(files for _, files in corpora)):
        sources |= {file.sha256: (file.bytes, partial(Path, cache.folder, file.path)) for file in files}
    return sources


def _shard_bytes(container: ShardContainer, shard: Shard) -> memoryview:
    return memoryview(container.open(shard.name))


def _key_bytes(shard: Shard) -> memoryview:
    return memoryview(shard.keys.tobytes())


def _signed(remote: Remote, listed: ManifestSet, key: Ed25519PrivateKey) -> ManifestSet:
    signed = signed_by(remote, listed.manifests, [key.public_key().public_bytes_raw()])
    return ManifestSet({name: one for name, one in listed.manifests.items() if signed[name]})


def _is_safe(found: Stat | None, size: int, is_listed: bool, now: float) -> bool:
    """Return whether an object need not be sent: it is whole, and garbage collection will leave it."""
    return found is not None and found.bytes == size and (is_listed or now - found.time < _TRUSTED)


def _news(listed: ManifestSet, teachers: list[LocalTeacher], corpora: _Corpora) -> _News:
    # Entries as a whole: one that another manifest lists with other rows or keys does not count.
    known, news = {file for one in listed.manifests.values() for file in one.files}, _News()
    for one in teachers:
        shards = [file for file, _ in one.shards if file not in known]
        if shards or not known.issuperset(one.files):
            # Listed again, so that what is new can be read though an older manifest is taken back.
            news.files += one.files
            news.shards += shards
            news.teachers.append(one)
    for card, files in corpora:
        if not known.issuperset(files):
            news.files += files
            news.corpora.append(card)
    return news


def _send(
    remote: Remote,
    sources: _Sources,
    lacking: Collection[str],
    news: _News,
    listed: ManifestSet,
    surveyed: float,
    clock: Callable[[], float],
    progress: Progress,
) -> dict[str, int]:
    """Send objects, documents and texts first, until the slice of time is over; return bytes sent by object.

    Those sent by another push since the survey count 0; those left for the next slice are not in it.
    """
    shards = {digest for file in news.shards for digest in (file.sha256, file.keys)}

    def send(sha256: str) -> int | None:
        if sha256 in shards and clock() - surveyed > _SLICE:
            return None
        size, source = sources[sha256]
        # Another push may have sent it since the survey.
        if _is_safe(remote.stat(object_path(sha256)), size, sha256 in listed.objects, clock()):
            return 0
        remote.put(sha256, source())
        progress.advance(size)
        return size

    # Pushes that start together send in different orders, so each finds much of what the others sent.
    order = sorted(lacking, key=lambda sha256: (sha256 in shards, random.random()))  # noqa: S311
    sizes = zip(order, remote.in_threads(send, order), strict=True)
    return {sha256: size for sha256, size in sizes if size is not None}


def _manifest(
    news: _News, files: list[SharedFile], by: str, message: str, licence: str, now: float
) -> Manifest:
    teachers = []
    for one in news.teachers:
        contract_id, origin = one.teacher.contract.id, one.teacher.origin
        teachers.append(
            SharedTeacher(
                contract=contract_id,
                names=one.names,
                rows=sum(file.rows for file in files if file.entry.teacher == contract_id),
                model=origin.get("model_id", origin.get("spec", "")),
                licence=origin.get("licence", ""),
            )
        )
    return Manifest(
        files=sorted({file.path: file for file in files}.values(), key=lambda file: file.path),
        teachers=teachers,
        corpora=news.corpora,
        by=by,
        message=message,
        licence=licence,
        when=datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
