"""Taking back a push, and garbage collection by age."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import InputError, RemoteError
from embedcache.share.location import READ_ONLY
from embedcache.share.manifest import Manifest, digest_in, is_manifest_name, names_beginning
from embedcache.share.push import DAY, LEAST_GRACE
from embedcache.share.remote import DROPPED, MANIFESTS, Remote, object_path

DEFAULT_GRACE_DAYS = 14.0


@dataclass(frozen=True)
class TidyResult:
    """What was deleted from a remote, or with ``dry_run`` would be.

    Attributes:
        remote: its URL.
        files: how many files.
        bytes: their size.
        manifests: digests of the manifests that were taken back.
        kept: unlisted objects that are still too young.
    """

    remote: str
    files: int
    bytes: int
    manifests: list[str]
    kept: int = 0

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


def collect(
    remote: str,
    *,
    grace_days: float = DEFAULT_GRACE_DAYS,
    dry_run: bool = False,
    clock: Callable[[], float] = time.time,
    on_progress: OnCheck | None = None,
) -> TidyResult:
    """Delete objects older than the grace period that no manifest and no young tombstone lists.

    Safe while others push: a push relies on an unlisted object only while it is younger than half of the
    least grace period.

    Args:
        remote: name or URL of the remote.
        grace_days: age in days up to which everything is kept, at least 1.
        dry_run: delete nothing.
        clock: the time in seconds since 1970.
        on_progress: called as the work goes on.

    Raises:
        InputError: if the grace period is too short, or the remote is read-only.
        RemoteError: if it cannot be reached, a manifest cannot be used, or the place tells no times.
    """
    grace = grace_days * DAY
    if not grace >= LEAST_GRACE:
        raise InputError(
            f"--grace {grace_days:g}d: expected at least 1d, or objects of running pushes would go."
        )
    target = _writable(remote)
    # Objects before manifests: a push that relies on an object which is old now has its manifest written.
    before = clock() - grace
    objects = target.objects()
    temporaries = target.temporaries()
    listed: set[str] = set()
    for manifest in target.stock().manifests.values():
        listed |= manifest.objects().keys()
    tombstones = {
        name: target.stat(f"{DROPPED}/{name}") for name in target.names_in(DROPPED) if is_manifest_name(name)
    }
    expired = [name for name, stat in tombstones.items() if stat is not None and stat.time <= before]
    for name in tombstones.keys() - set(expired):
        manifest_dropped = target.read_manifest(name, folder=DROPPED)
        listed |= manifest_dropped.objects().keys() if manifest_dropped is not None else set()
    unlisted = {sha256: stat for sha256, stat in objects.items() if sha256 not in listed}
    if any(stat.time == 0 for stat in unlisted.values()):
        raise RemoteError(
            f"{target.url}: the place tells no times of its files, so nothing can be collected."
        )
    old = {object_path(sha256): stat for sha256, stat in unlisted.items() if stat.time <= before}
    old |= {path: stat for path, stat in temporaries.items() if stat.time <= before}
    kept = len(unlisted) + len(temporaries) - len(old)
    if dry_run:
        return TidyResult(target.url, len(old), sum(stat.bytes for stat in old.values()), [], kept)
    meter = Meter(on_progress)
    meter.begin("delete", total_files=len(old))

    def delete(path: str) -> int:
        # A push may have written it again since it was listed.
        stat = target.stat(path)
        if stat is None or stat.time > before:
            return 0
        target.delete(path)
        meter.add(files=1)
        return 1

    deleted: list[int] = target.in_threads(delete, old)
    size = sum(stat.bytes for stat, done in zip(old.values(), deleted, strict=True) if done)
    for name in expired:
        target.delete(f"{DROPPED}/{name}")
    return TidyResult(target.url, sum(deleted), size, [], kept)


def drop(
    remote: str, manifests: Sequence[str], *, now: bool = False, on_progress: OnCheck | None = None
) -> TidyResult:
    """Take pushes back: what their manifests alone list is not on the remote any more.

    The objects stay until garbage collection, so that running pulls end well; with ``now`` they go at once.

    Args:
        remote: name or URL of the remote.
        manifests: beginnings of digests of manifests, six digits or more.
        now: delete the objects, for texts that should not have been shared. Nobody should push meanwhile.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a beginning names no manifest, or several, or the remote is read-only.
        RemoteError: if the remote cannot be reached.
    """
    target = _writable(remote)
    names = names_beginning(target.manifest_names(), manifests, target.url)
    dropped: list[Manifest] = []
    for name in names:
        try:
            manifest = target.read_manifest(name)
        except RemoteError:
            # One that cannot be used can be taken back all the same; its objects are unlisted then.
            manifest = None
        if manifest is not None:
            target.write(f"{DROPPED}/{name}", manifest.to_bytes())
            dropped.append(manifest)
        target.delete(f"{MANIFESTS}/{name}")
    files = size = 0
    if now:
        stock = target.stock()
        objects = {sha256: size for one in dropped for sha256, size in one.objects().items()}
        gone = {sha256: size for sha256, size in objects.items() if not stock.has(sha256)}
        meter = Meter(on_progress)
        meter.begin("delete", total_files=len(gone))
        target.in_threads(lambda sha256: target.delete(object_path(sha256)), gone)
        files, size = len(gone), sum(gone.values())
        for name in names:
            target.delete(f"{DROPPED}/{name}")
    return TidyResult(target.url, files, size, [digest_in(name) for name in names])


def _writable(remote: str) -> Remote:
    target = Remote(remote)
    if target.scheme in READ_ONLY:
        raise InputError(f"{target.url}: {target.scheme}:// remotes are read-only.")
    return target.open()
