"""Push: survey a remote, send the objects that it lacks, then publish a manifest of the additions.

Nothing is locked. An object that no manifest lists yet is relied on only while it is young, and the manifest
follows long before garbage collection would take it: see docs/design/0011-sharing.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError
from embedcache.filesystems import Stat
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.card import write_card
from embedcache.share.files import Bundle, Selection, local_corpora, local_teachers
from embedcache.share.manifest import (
    MANIFESTS,
    MOST_MANIFEST_BYTES,
    Manifest,
    SharedCorpus,
    SharedFile,
    SharedTeacher,
    digest_in,
    first_problem,
    manifest_name,
    read_manifests,
)
from embedcache.share.remote import GRACE, Remote, object_path
from embedcache.share.sign import private_key, sign_manifest, signed_by

TRUSTED = GRACE / 2
"""Seconds that an object which no manifest lists is relied on."""
_SURVEYS = 3


@dataclass(frozen=True)
class PushResult:
    """Result of a push; with ``dry_run`` its plan.

    Attributes:
        remote: its URL.
        manifest: digest of the manifest that was written; empty where nothing was new.
        files: files that it lists.
        sent: objects that were sent.
        sent_bytes: their size.
        present: objects that were there already.
    """

    remote: str
    manifest: str
    files: int
    sent: int
    sent_bytes: int
    present: int


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
    """Send the files of a cache that a remote lacks.

    Args:
        cache: the cache's folder.
        remote: name or URL of the remote; it is made where there is nothing.
        selection: files to send; default: everything.
        by: name of the pusher, for the card.
        message: purpose of the push, for the card.
        licence: licence of the texts, for the card.
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
    if chosen.where is not None:
        raise InputError("where chooses a part for a pull; a push sends whole corpora.")
    key = None if sign is None else private_key(sign)
    target = Remote(remote, to_write=True)
    target.refuse_nested(opened.folder)
    # Read before anything is written to the remote.
    bundles = [*local_teachers(opened, chosen), *local_corpora(opened, chosen)]
    sources = {sha256: source for bundle in bundles for sha256, source in bundle.sources.items()}
    if not dry_run:
        target.create()
    sent: dict[str, int] = {}

    def is_safe(sha256: str, found: Stat | None) -> bool:
        """Return whether an object is whole, and garbage collection will leave it."""
        if found is None or found.bytes != sources[sha256][0]:
            return False
        # Nothing is deleted from the hub.
        return target.hub is not None or sha256 in listed.objects or clock() - found.time < TRUSTED

    def send(sha256: str) -> None:
        # Another push may have sent it since the survey.
        if not is_safe(sha256, target.stat(object_path(sha256))):
            size, read = sources[sha256]
            target.put(sha256, bytes(read()))
            progress.advance(size)
            sent[sha256] = size

    for _ in range(_SURVEYS):
        # Objects first: one that is deleted after that was old and unlisted, and is sent again.
        objects, listed = target.find("objects"), read_manifests(target, opened)
        # A signature vouches for all files of its owner, also for those pushed unsigned before.
        counted = list(listed.manifests)
        if key is not None:
            counted = signed_by(target, counted, [key.public_key().public_bytes_raw()])
        known = {file for name in counted for file in listed.manifests[name].files}
        manifest = _manifest(bundles, known, clock(), by, message, licence)
        lacking = {one: sources[one][0] for one in sources if not is_safe(one, objects.get(object_path(one)))}
        if dry_run or not lacking:
            break
        progress.phase("push", sum(lacking.values()), "bytes")

        # Pushes that start together send in different orders, so each finds much of what the others sent.
        target.in_threads(send, random.sample(sorted(lacking), len(lacking)))
        target.flush()
    else:
        raise RemoteError(
            f"{target.url}: {len(lacking):,} objects are missing, or old, after they were sent. Compare the "
            "clocks of this machine and of the remote, and push again."
        )
    name = ""
    if manifest.files and not dry_run:
        name = manifest_name(manifest.to_bytes(), manifest.when)
        if key is not None:
            sign_manifest(target, name, key)
        # Nothing may fail after the manifest.
        write_card(target, [*listed.manifests.values(), manifest])
        target.write(f"{MANIFESTS}/{name}", manifest.to_bytes())
    sent = lacking if dry_run else sent
    files, size, present = len(manifest.files), sum(sent.values()), len(sources) - len(sent)
    return PushResult(target.url, digest_in(name), files, len(sent), size, present)


def _manifest(
    bundles: Iterable[Bundle],
    known: Container[SharedFile],
    now: float,
    by: str,
    message: str,
    licence: str,
) -> Manifest:
    """Return the manifest of unknown files, and of all documents that they need.

    Raises:
        InputError: if it is too large.
    """
    files: dict[str, SharedFile] = {}
    teachers, corpora = list[SharedTeacher](), list[SharedCorpus]()
    for bundle in bundles:
        # Entries as a whole: one that another manifest lists with other rows or keys does not count.
        shards = [file for file in bundle.shards if file not in known]
        if shards or any(file not in known for file in bundle.documents):
            # Listed again, so that new files can be read even if an older manifest is taken back.
            files |= {file.path: file for file in (*bundle.documents, *shards)}
            if isinstance(bundle.card, SharedCorpus):
                corpora.append(bundle.card)
            else:
                rows = sum(file.rows for file in shards)
                teachers.append(bundle.card.model_copy(update={"rows": rows}))
    when = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        manifest = Manifest(
            files=[files[path] for path in sorted(files)],
            teachers=teachers,
            corpora=corpora,
            by=by,
            message=message,
            licence=licence,
            when=when,
        )
    except ValidationError as error:
        raise InputError(f"the push cannot be described: {first_problem(error)}.") from error
    if len(manifest.to_bytes()) > MOST_MANIFEST_BYTES:
        raise InputError(
            f"{len(files):,} new files are more than a manifest can list: push one corpus or teacher at a "
            "time."
        )
    return manifest
