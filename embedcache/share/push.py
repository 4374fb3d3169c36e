"""Push: survey a remote, send the objects that it lacks, then publish a manifest of what was added.

Nothing is locked. An object that no manifest lists yet is relied on only while it is young, and the manifest
follows long before garbage collection would take it: see docs/design/0011-sharing.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import LocalTeacher, Selection, local_corpora, local_teachers, shared_shard
from embedcache.share.manifest import (
    Manifest,
    SharedCorpus,
    SharedFile,
    SharedTeacher,
    Stock,
    digest_in,
    manifest_name,
)
from embedcache.share.remote import MANIFESTS, Remote, object_path
from embedcache.share.sign import private_key, sign_manifest, signed_by
from embedcache.share.transfer import Stat
from embedcache.store.shard import Shard

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DAY = 86_400.0
LEAST_GRACE = DAY
"""Seconds that an object no manifest lists is kept at least."""
_TRUSTED = LEAST_GRACE / 2
_SLICE = LEAST_GRACE / 4
_MOST_SHARDS = 100_000

Source = Callable[[], "memoryview | Path"]


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
        seconds: how long it took.
    """

    remote: str
    manifests: list[str]
    files: int
    sent: int
    sent_bytes: int
    present: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


@dataclass
class _Plan:
    """Work that is left after one survey of the remote.

    Attributes:
        files: files to list, other than shards: all those of a teacher or corpus that has anything new.
        shards: shards to list.
        sources: sha256 -> size, and what gives the bytes, of all objects that a manifest lists or will list.
        teachers, corpora: the card.
    """

    files: list[SharedFile] = field(default_factory=list)
    shards: list[SharedFile] = field(default_factory=list)
    sources: dict[str, tuple[int, Source]] = field(default_factory=dict)
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
    started = time.perf_counter()
    opened, chosen = Cache(cache), selection or Selection()
    if chosen.is_part:
        raise InputError("rows and where choose a part for a pull; a push sends whole corpora.")
    key = None if sign is None else private_key(sign)
    target = Remote(remote)
    target.refuse_nested(opened.folder)
    # Read before anything is written to the remote.
    teachers, corpora = local_teachers(opened, chosen), local_corpora(opened, chosen)
    if not dry_run:
        target.create(opened)
    manifests = list[str]()
    sent = sent_bytes = files = present = 0
    while True:
        surveyed = clock()
        # Objects first: what is deleted after that was old and unlisted, and is sent again.
        objects = target.objects()
        stock = target.stock(opened)
        # A signature vouches for all that its owner has, also for what was pushed without it before.
        signed_stock = stock if key is None else _signed_stock(target, stock, key)
        plan = _plan(opened, signed_stock, teachers, corpora)
        lacking = {
            sha256: size
            for sha256, (size, _) in plan.sources.items()
            if not _is_safe(objects.get(sha256), size, stock.has(sha256), surveyed)
        }
        present = len(plan.sources) - len(lacking) - sent
        if dry_run:
            return PushResult(
                target.url,
                [],
                len(plan.files) + len(plan.shards),
                len(lacking),
                sum(lacking.values()),
                present,
                time.perf_counter() - started,
            )
        progress.phase("push", sum(lacking.values()), "bytes")
        done = _send(target, plan, stock, lacking, surveyed, clock, progress)
        sent += sum(1 for size in done.values() if size)
        sent_bytes += sum(done.values())
        left = lacking.keys() - done.keys()
        listed = [*plan.files, *(one for one in plan.shards if not {one.sha256, one.keys} & left)]
        if listed:
            manifest = _manifest(plan, listed, by, message, licence, surveyed)
            name = manifest_name(manifest.to_bytes(), manifest.when)
            if key is not None:
                sign_manifest(target, name, key)
            target.write(f"{MANIFESTS}/{name}", manifest.to_bytes())
            manifests.append(digest_in(name))
            files += len(listed)
        # Garbage collection may have been about to delete what was old and is written again: look once more.
        if not left and len(plan.shards) < _MOST_SHARDS and not lacking.keys() & objects.keys():
            break
    return PushResult(
        target.url, manifests, files, sent, sent_bytes, max(0, present), time.perf_counter() - started
    )


def _signed_stock(remote: Remote, stock: Stock, key: Ed25519PrivateKey) -> Stock:
    signed = signed_by(remote, stock.manifests, [key.public_key().public_bytes_raw()])
    return Stock({name: one for name, one in stock.manifests.items() if signed[name]})


def _is_safe(found: Stat | None, size: int, is_listed: bool, now: float) -> bool:
    """Return whether an object need not be sent: it is whole, and garbage collection will leave it."""
    return found is not None and found.bytes == size and (is_listed or now - found.time < _TRUSTED)


def _plan(
    cache: Cache,
    stock: Stock,
    teachers: list[LocalTeacher],
    corpora: list[tuple[SharedCorpus, list[SharedFile]]],
) -> _Plan:
    plan = _Plan()

    def add(file: SharedFile, source: Source) -> None:
        plan.sources[file.sha256] = (file.bytes, source)

    for one in teachers:
        contract_id = one.teacher.contract.id
        container = cache.container(one.teacher.contract)
        is_new = any(stock.file(file.path, file.sha256) is None for file in one.files)
        for shard in one.shards:
            path = f"teachers/{contract_id}/shards/{shard.name}.arrow"
            listed = stock.file(path, shard.name)
            if listed and (listed.bytes, listed.rows, listed.codec) != _facts(shard):
                # Another manifest lies about it; pulls refuse that one.
                listed = None
            file = listed or shared_shard(contract_id, shard)
            if listed is None and len(plan.shards) < _MOST_SHARDS:
                plan.shards.append(file)
                is_new = True
            elif listed is None:
                continue
            add(file, lambda name=shard.name, held=container: memoryview(held.open(name)))  # type: ignore[misc]
            plan.sources[file.keys] = (file.key_bytes, lambda shard=shard: memoryview(shard.keys.tobytes()))  # type: ignore[misc]
        for file in one.files:
            add(file, lambda path=cache.folder / file.path: path)  # type: ignore[misc]
        if is_new:
            # Listed again, so that what is new can be read though an older manifest is taken back.
            plan.files += one.files
            plan.teachers.append(one)
    for card, files in corpora:
        for file in files:
            add(file, lambda path=cache.folder / file.path: path)  # type: ignore[misc]
        if any(stock.file(file.path, file.sha256) is None for file in files):
            plan.files += files
            plan.corpora.append(card)
    return plan


def _facts(shard: Shard) -> tuple[int, int, str]:
    return shard.bytes, len(shard), shard.header.codec


def _send(
    remote: Remote,
    plan: _Plan,
    stock: Stock,
    lacking: dict[str, int],
    surveyed: float,
    clock: Callable[[], float],
    progress: Progress,
) -> dict[str, int]:
    """Send objects, documents and texts first, until the slice of time is over; return bytes sent by object.

    Those sent by another push since the survey count 0; those left for the next slice are not in it.
    """
    shards = {digest for file in plan.shards for digest in (file.sha256, file.keys)}

    def send(sha256: str) -> int | None:
        if sha256 in shards and clock() - surveyed > _SLICE:
            return None
        size, source = plan.sources[sha256]
        # Another push may have sent it since the survey.
        if not _is_safe(remote.stat(object_path(sha256)), size, stock.has(sha256), clock()):
            remote.put(sha256, source())
            progress.advance(size)
            return size
        return 0

    # Pushes that start together send in different orders, so each finds much of what the others sent.
    order = sorted(lacking, key=lambda sha256: (sha256 in shards, random.random()))  # noqa: S311
    sizes = zip(order, remote.in_threads(send, order), strict=True)
    return {sha256: size for sha256, size in sizes if size is not None}


def _manifest(
    plan: _Plan, files: list[SharedFile], by: str, message: str, licence: str, now: float
) -> Manifest:
    rows: dict[str, int] = {}
    for file in files:
        rows[file.entry.teacher] = rows.get(file.entry.teacher, 0) + file.rows
    teachers = [
        SharedTeacher(
            contract=one.teacher.contract.id,
            names=one.names,
            rows=rows.get(one.teacher.contract.id, 0),
            model=one.teacher.origin.get("model_id", one.teacher.origin.get("spec", "")),
            licence=one.teacher.origin.get("licence", ""),
        )
        for one in plan.teachers
    ]
    return Manifest(
        files=sorted({file.path: file for file in files}.values(), key=lambda file: file.path),
        teachers=teachers,
        corpora=plan.corpora,
        by=by,
        message=message,
        licence=licence,
        when=datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
