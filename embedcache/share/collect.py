"""Delete superfluous files of a remote: replaced manifests, objects that nobody finds, temporary files.

Nothing is deleted while anybody pushes, nor what is young. Manifests are deleted first, so that whoever reads
the remote meanwhile never sees one whose files are gone; what a stopped run leaves is deleted by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import InputError, RemoteError
from embedcache.share.places import Stat, final_name
from embedcache.share.remote.claims import FOLDER, GONE_SECONDS, Claims
from embedcache.share.remote.manifest import Manifest
from embedcache.share.remote.names import digest_before, manifests_named
from embedcache.share.remote.news import rests_of
from embedcache.share.remote.remote import MARKER, OBJECT_FOLDERS, Remote, Survey, object_path
from embedcache.share.remote.superseded import superseded
from embedcache.share.remotes import location_of
from embedcache.share.retry import retrying
from embedcache.share.transfer import JOBS, run_all
from embedcache.transfer_defaults import GRACE_HOURS

KEPT_FOLDER = "README"
KEPT_FOLDER_BYTES = b"This keeps the folder: some storages make a file of one whose last file was deleted.\n"


@dataclass(frozen=True)
class Deletion:
    """A superfluous file of a remote: it is to be deleted, or was.

    Attributes:
        path: on the remote.
        bytes: its size; None where the place does not tell.
        why: the reason.
    """

    path: str
    bytes: int | None
    why: str


@dataclass(frozen=True)
class Kept:
    """What stays of a push that is taken back: files of earlier pushes that it alone lists by now.

    Attributes:
        dropped: id of its manifest.
        manifest: id of the manifest that lists them from then on.
        files: how many there are.
        was_signed: whether there are signatures of the push: they vouch for these files no more.
    """

    dropped: str
    manifest: str
    files: int
    was_signed: bool


@dataclass(frozen=True)
class CollectResult:
    """What can be deleted from a remote.

    Attributes:
        remote: where.
        found: the files, in the order in which they are deleted.
        young: superfluous files that stay because they are young or of unknown age.
        deleted: whether those of ``found`` were deleted.
        seconds: how long it took.
        unreadable: manifests that cannot be read, and why; all objects and cards stay then, for these
            manifests may list them.
        kept: what stays of pushes that are taken back.
        unsure: ids of manifests that are taken back and do not say which of their files were news: what
            earlier pushes had declared goes, too, where no other manifest lists it.
    """

    remote: str
    found: tuple[Deletion, ...]
    young: int
    deleted: bool
    seconds: float
    unreadable: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[Kept, ...] = ()
    unsure: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class _Found:
    """What is superfluous on a remote.

    Attributes:
        deletions: what is to be deleted.
        young: how many superfluous files stay.
        unreadable: manifests that cannot be read, and why.
        rests: manifests that are taken back, and those to be written of what stays of them.
        unsure: ids of manifests that are taken back and do not say what was news.
    """

    deletions: tuple[Deletion, ...]
    young: int
    unreadable: Mapping[str, str]
    rests: tuple[tuple[Manifest, Manifest], ...]
    unsure: tuple[str, ...]


def collect_remote(
    remote: str,
    *,
    hours: float = GRACE_HOURS,
    drop: Collection[str] = (),
    delete: bool = False,
    jobs: int = JOBS,
    on_progress: OnCheck | None = None,
) -> CollectResult:
    """Find superfluous files of ``remote``, a name or a URL, and delete them if told to.

    Args:
        remote: the remote.
        hours: keep what was written within so many hours.
        drop: delete these manifests too, whatever they list and however young: their names, or six digits or
            more that only one begins with. What was news in them and only they list can no longer be pulled.
        delete: whether to delete; otherwise nothing is changed.
        jobs: deletions at once.
        on_progress: called as the work goes on.

    Raises:
        InputError: if one of ``drop`` is no manifest, or several.
        RemoteError: if the remote cannot be reached or written, somebody is at work there, or nothing is
            dropped and a manifest cannot be read: what it lists cannot be told then.
    """
    started = time.perf_counter()
    source = Remote(location_of(remote))
    meter = Meter(on_progress)
    meter.begin("read the remote")
    source.require()
    if not delete:
        found = _find(source, drop, time.time(), hours)
        return _result(source, found, False, time.perf_counter() - started)
    if source.place.read_only:
        raise RemoteError(f"{source.where} can only be read: nothing can be deleted there")

    def on_wait(others: int) -> None:
        meter.begin(f"see whether others are at work there ({others:,}, by a clock that is ahead)")

    with Claims(source).collecting(on_wait) as claims:
        meter.begin("read the remote")
        found = _find(source, drop, claims.clock(), hours)
        # First, so that no moment comes at which nothing lists these files.
        for _, rest in found.rests:
            _write_rest(source, rest, claims)
        delete_files(source, found.deletions, claims, jobs, meter)
    return _result(source, found, True, time.perf_counter() - started)


def _result(remote: Remote, found: _Found, deleted: bool, seconds: float) -> CollectResult:
    signatures = {deletion.path.split("/")[1] for deletion in found.deletions if _is_signature(deletion)}
    kept = tuple(
        Kept(dropped.id, rest.id, len(rest.files), dropped.id in signatures) for dropped, rest in found.rests
    )
    return CollectResult(
        remote.where, found.deletions, found.young, deleted, seconds, found.unreadable, kept, found.unsure
    )


def _find(remote: Remote, drop: Collection[str], now: float, hours: float) -> _Found:
    """Return what is to be deleted, and what has to be written before."""
    before = now - hours * 3600
    stats = {f"manifests/{name}": stat for name, stat in remote.files_in("manifests").items()}
    ids = remote.manifest_ids(unlimited=True) if drop else []
    dropped = list(dict.fromkeys(_dropped(digits, ids, remote.where) for digits in drop))
    survey = remote.survey(skip=dropped, unlimited=True)
    if survey.refused and not dropped:
        name, why = next(iter(survey.refused.items()))
        raise RemoteError(
            f"manifests/{name}.json of {remote.where} cannot be read ({why}): what it lists cannot be told, "
            "and nothing was deleted; upgrade embedcache if a newer one wrote it, or take it back with "
            f"--drop {name[:12]}"
        )
    staying = survey.manifests
    going = dict.fromkeys(dropped, "taken back")
    replaced = superseded(remote, staying)
    paths = {name: f"manifests/{name}.json" for name in replaced}
    stats |= remote.dated({path: stats[path] for path in paths.values() if path in stats})
    going |= {
        name: f"{other[:12]} stands for it"
        for name, other in replaced.items()
        if _is_old(stats.get(paths[name]), before)
    }
    deletions = list(_manifests(remote, going, stats))
    remaining = [manifest for manifest in staying if manifest.id not in going]
    readable = list(_readable(remote, dropped))
    rests = tuple(rests_of(readable, remaining))
    remaining += [rest for _, rest in rests]
    # Files of a dropped manifest are deleted however young they are.
    at_once = _listed(readable)
    objects, misplaced = remote.objects_and_misplaced()
    unneeded = {path: (stat, "lies where nobody looks for it") for path, stat in misplaced.items()}
    if not survey.refused:
        # A manifest that cannot be read may list any object.
        unlisted = _unlisted(remote, objects, _listed(remaining))
        unneeded |= {path: (stat, "no manifest lists it") for path, stat in unlisted}
    times = remote.dated({path: stat for path, (stat, _) in unneeded.items() if path not in at_once})
    old = {
        path: (stat, why)
        for path, (stat, why) in unneeded.items()
        if path in at_once or _is_old(times[path], before)
    }
    deletions += [Deletion(path, stat.bytes, why) for path, (stat, why) in sorted(old.items())]
    begun = dict(_begun(remote, survey, dropped))
    # A push that waits goes on giving signs of life, and one with --alone gives none.
    since = min(before, now - GONE_SECONDS)
    # They hold what it listed, and who signed it.
    at_once |= {f"manifests/{manifest}.json" for manifest in dropped}
    of_dropped = tuple(f"signatures/{manifest}/" for manifest in dropped)
    left = {
        path: stat
        for path, stat in begun.items()
        if _target(path) in at_once or path.startswith(of_dropped) or _is_old(stat, since)
    }
    deletions += [Deletion(path, stat.bytes, "left of a write") for path, stat in sorted(left.items())]
    return _Found(
        tuple(deletions),
        len(unneeded) - len(old) + len(begun) - len(left),
        survey.refused,
        rests,
        tuple(manifest.id for manifest in readable if manifest.news is None),
    )


def _dropped(digits: str, ids: Collection[str], where: str) -> str:
    """Return the only one of the manifests ``ids`` whose name begins with some digits.

    Raises:
        InputError: if none does, or several do.
    """
    named = manifests_named(digits, ids, where)
    if len(named) > 1:
        raise InputError(
            f"{len(named):,} manifests of {where} begin with {digits!r}, expected exactly one for --drop: "
            "give more digits, as 'embedcache remote ls' shows them"
        )
    return named[0]


def _readable(remote: Remote, names: Iterable[str]) -> Iterator[Manifest]:
    """Yield those manifests that can be read; to be dropped, a manifest need not be readable."""
    for name in names:
        with suppress(RemoteError):
            yield from remote.survey(only=[name], unlimited=True).manifests


def _is_old(stat: Stat | None, before: float) -> bool:
    return stat is not None and stat.changed is not None and stat.changed < before


def _manifests(remote: Remote, going: Mapping[str, str], stats: Mapping[str, Stat]) -> Iterator[Deletion]:
    for name, why in going.items():
        path = f"manifests/{name}.json"
        yield Deletion(path, stats[path].bytes if path in stats else None, why)
        folder = f"signatures/{name}"
        for file, stat in sorted(remote.files_in(folder).items()):
            if file != KEPT_FOLDER:
                yield Deletion(f"{folder}/{file}", stat.bytes, "signs a manifest that goes")


def _is_signature(deletion: Deletion) -> bool:
    return deletion.path.startswith("signatures/")


def _listed(manifests: Iterable[Manifest]) -> set[str]:
    """Return the paths of all that manifests need."""
    paths = set()
    for manifest in manifests:
        paths.add(f"cards/{manifest.card}.md")
        for file in manifest.files:
            paths.add(object_path(file.sha256))
            if file.index is not None:
                paths.add(object_path(file.index.sha256))
    return paths


def _unlisted(
    remote: Remote, objects: Mapping[str, Stat], listed: Collection[str]
) -> Iterator[tuple[str, Stat]]:
    """Yield cards and objects that are not ``listed``; files of other names are not embedcache's."""
    for digest, stat in objects.items():
        if object_path(digest) not in listed:
            yield object_path(digest), stat
    for name, stat in remote.files_in("cards").items():
        if digest_before(name, ".md") and f"cards/{name}" not in listed:
            yield f"cards/{name}", stat


def _begun(remote: Remote, survey: Survey, dropped: Collection[str]) -> Iterator[tuple[str, Stat]]:
    """Yield the temporary files of writes that are under way or were stopped."""
    ids = sorted([*(manifest.id for manifest in survey.manifests), *survey.refused, *dropped])
    signatures = (f"signatures/{manifest}" for manifest in ids)
    folders = (*OBJECT_FOLDERS, "cards", "manifests", FOLDER, *signatures)
    listings = remote.in_threads(remote.temporary_in, folders)
    for folder, files in zip(folders, listings, strict=True):
        for name, stat in files.items():
            yield f"{folder}/{name}", stat
    # In the remote's own folder lie other things, too, and are written by others.
    for name, stat in remote.temporary_in("").items():
        if final_name(name) == MARKER:
            yield name, stat


def _target(path: str) -> str:
    """Return the path that a temporary file was to have."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{final_name(name)}"


def _write_rest(remote: Remote, rest: Manifest, claims: Claims) -> None:
    """Write the manifest of what stays of a push that is taken back."""
    # What could not be read back must not be written.
    Manifest.from_bytes(rest.data, rest.id)
    path = f"manifests/{rest.id}.json"
    _change(f"write {path}", lambda: remote.place.write(path, rest.data), remote, claims)


def _change(doing: str, act: Callable[[], None], remote: Remote, claims: Claims) -> None:
    """Change something on a remote, as the only process at work there; errors as :func:`delete_files`."""

    def once() -> None:
        # Before each try: between two of them a beat may fail, or this machine may sleep.
        if claims.overslept:
            raise RemoteError(
                "this process stood still, and others may push by now: stopped; run the same command again"
            )
        act()

    retrying(doing, remote.where, once, remote.stop)


def delete_files(
    remote: Remote, deletions: Collection[Deletion], claims: Claims, jobs: int, meter: Meter
) -> None:
    """Delete files of a remote, manifests first, and leave no folder empty.

    Args:
        remote: the remote.
        deletions: the files.
        claims: of this process, which is the only one at work there.
        jobs: deletions at once.
        meter: counts them.

    Raises:
        RemoteError: if this process stood still, so that others may be at work by now, or the remote cannot
            be written.
    """
    size = sum(deletion.bytes or 0 for deletion in deletions)
    meter.begin("delete", total_files=len(deletions), total_bytes=size)
    names_in: dict[str, set[str]] = {}
    for deletion in deletions:
        folder, _, name = deletion.path.rpartition("/")
        names_in.setdefault(folder, set()).add(name)
    for folder, names in names_in.items():
        if (present := remote.files_in(folder).keys()) and present <= names:
            remote.write(f"{folder}/{KEPT_FOLDER}", KEPT_FOLDER_BYTES)

    def act(deletion: Deletion) -> None:
        path = deletion.path
        _change(f"delete {path}", lambda: remote.place.remove(path), remote, claims)
        meter.add(files=1, size=deletion.bytes or 0)

    for is_manifest in (True, False):
        batch = [each for each in deletions if each.path.startswith("manifests/") is is_manifest]
        run_all(act, batch, jobs=jobs, stop=remote.stop)
