"""Deleting from a remote what nobody needs: what others have replaced, what nobody lists, what was begun.

Nothing is deleted while anybody pushes, nor what is young. Manifests go first, so that whoever reads the
remote meanwhile never sees one whose files are gone; what a stop leaves behind goes the next time.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import InputError, RemoteError
from embedcache.share.places import Stat, final_name
from embedcache.share.remote.claims import FOLDER, GONE_SECONDS, Claims
from embedcache.share.remote.manifest import Manifest
from embedcache.share.remote.remote import MARKER, Remote, Survey, object_path
from embedcache.share.remote.superseded import superseded
from embedcache.share.remotes import location_of
from embedcache.share.transfer import JOBS, run_all

GRACE_HOURS = 168.0
"""What was written within so many hours stays: a push may have been stopped that is taken up again."""

KEPT_FOLDER = "README"
KEPT_FOLDER_BYTES = b"This keeps the folder: some storages make a file of one whose last file was deleted.\n"

OBJECT_FOLDERS = tuple(f"objects/{number:02x}" for number in range(256))
"""Where objects lie."""

_DIGITS = re.compile(r"[0-9a-f]{6,64}")
_CARD = re.compile(r"([0-9a-f]{64})\.md")
_OBJECT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Superfluous:
    """A file on a remote that nobody needs.

    Attributes:
        path: on the remote.
        bytes: its size; None where the place does not tell.
        why: what makes it superfluous.
    """

    path: str
    bytes: int | None
    why: str


@dataclass(frozen=True)
class CollectResult:
    """What of a remote nobody needs.

    Attributes:
        remote: where.
        found: the files, in the order in which they are deleted.
        young: files that nobody needs either, and that stay because they are young or of an age unknown.
        deleted: whether those of ``found`` were deleted.
        seconds: how long it took.
    """

    remote: str
    found: tuple[Superfluous, ...]
    young: int
    deleted: bool
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


def collect_remote(
    remote: str,
    *,
    hours: float = GRACE_HOURS,
    drop: Collection[str] = (),
    delete: bool = False,
    jobs: int = JOBS,
    on_progress: OnCheck | None = None,
) -> CollectResult:
    """Find, and delete if told to, what nobody needs of ``remote``, a name or a URL.

    Args:
        remote: the remote.
        hours: leave alone what was written within so many hours.
        drop: take back these manifests too, whatever they list and however young: their names, or six digits
            or more that only one begins with. Pulls find no more what they alone list.
        delete: whether to delete; otherwise nothing there is touched.
        jobs: deletions at once.
        on_progress: called as the work goes on.

    Raises:
        InputError: if one of ``drop`` is no manifest, or several.
        RemoteError: if the remote cannot be reached or written, somebody is at work there, or a manifest
            cannot be read: what it lists cannot be told then.
    """
    started = time.perf_counter()
    source = Remote(location_of(remote), stop=threading.Event())
    meter = Meter(on_progress)
    meter.begin("read the remote")
    source.require()
    if not delete:
        found, young = _find(source, drop, time.time(), hours)
        return CollectResult(source.where, found, young, False, time.perf_counter() - started)
    if source.place.read_only:
        raise RemoteError(f"{source.where} can only be read: nothing can be deleted there")
    with Claims(source).collecting() as claims:
        found, young = _find(source, drop, claims.clock(), hours)
        delete_files(source, found, claims, jobs, meter)
    return CollectResult(source.where, found, young, True, time.perf_counter() - started)


def _find(
    remote: Remote, drop: Collection[str], now: float, hours: float
) -> tuple[tuple[Superfluous, ...], int]:
    """Return what is superfluous, and how many files more are but were written within so many hours."""
    before = now - hours * 3600
    there = remote.files_in("manifests")
    dropped = [_dropped(begin, remote) for begin in drop]
    survey = remote.survey()
    for name, why in survey.refused.items():
        if name not in dropped:
            raise RemoteError(
                f"manifests/{name}.json of {remote.where} cannot be read ({why}): what it lists cannot be "
                "told, and nothing was deleted; upgrade embedcache if a newer one wrote it, or take it back "
                f"with --drop {name[:12]}"
            )
    staying = [one for one in survey.manifests if one.id not in dropped]
    going = dict.fromkeys(dropped, "taken back")
    going |= {
        name: f"{other[:12]} stands for it"
        for name, other in superseded(remote, staying).items()
        if _is_old(there.get(f"{name}.json"), before)
    }
    found = list(_manifests(remote, going, there))
    remaining = [one for one in staying if one.id not in going]
    # Of what was taken back nothing stays for its age: somebody wants it gone.
    at_once = {path for one in survey.manifests if one.id in dropped for path in _listed([one])}
    unlisted = dict(_unlisted(remote, _listed(remaining)))
    old = {path: stat for path, stat in unlisted.items() if path in at_once or _is_old(stat, before)}
    found += [Superfluous(path, stat.bytes, "no manifest lists it") for path, stat in sorted(old.items())]
    begun = dict(_begun(remote, survey))
    # Whoever waits to push goes on giving signs of life, and who pushes --alone is not seen at all.
    since = min(before, now - GONE_SECONDS)
    # They would tell what it listed, and who signed it.
    at_once |= {f"manifests/{one}.json" for one in dropped}
    of_dropped = tuple(f"signatures/{one}/" for one in dropped)
    left = {
        path: stat
        for path, stat in begun.items()
        if _target(path) in at_once or path.startswith(of_dropped) or _is_old(stat, since)
    }
    found += [Superfluous(path, stat.bytes, "left of a write") for path, stat in sorted(left.items())]
    return tuple(found), len(unlisted) - len(old) + len(begun) - len(left)


def _dropped(begin: str, remote: Remote) -> str:
    """Return the only manifest whose name begins with some digits."""
    if not _DIGITS.fullmatch(begin):
        raise InputError(
            f"--drop {begin[:64]!r}: expected six or more hexadecimal digits that a manifest's name begins "
            "with, as 'embedcache remote ls' shows them"
        )
    ids = [one for one in remote.manifest_ids() if one.startswith(begin)]
    if not ids:
        raise InputError(
            f"--drop {begin!r}: no manifest of {remote.where} begins so; it may have been taken back before, "
            "or be another remote's: 'embedcache remote ls' shows those that are there"
        )
    if len(ids) > 1:
        raise InputError(
            f"--drop {begin!r}: {len(ids):,} manifests of {remote.where} begin so, expected one; give more "
            "digits, as 'embedcache remote ls' shows them"
        )
    return ids[0]


def _is_old(stat: Stat | None, before: float) -> bool:
    return stat is not None and stat.changed is not None and stat.changed < before


def _manifests(remote: Remote, going: Mapping[str, str], there: Mapping[str, Stat]) -> Iterator[Superfluous]:
    for name, why in going.items():
        path = f"{name}.json"
        yield Superfluous(f"manifests/{path}", there[path].bytes if path in there else None, why)
        folder = f"signatures/{name}"
        for file, stat in sorted(remote.files_in(folder).items()):
            if file != KEPT_FOLDER:
                yield Superfluous(f"{folder}/{file}", stat.bytes, "signs a manifest that goes")


def _listed(manifests: Iterable[Manifest]) -> set[str]:
    """Return the paths of all that manifests need."""
    found = set()
    for manifest in manifests:
        found.add(f"cards/{manifest.card}.md")
        for file in manifest.files:
            found.add(object_path(file.sha256))
            if file.index is not None:
                found.add(object_path(file.index.sha256))
    return found


def _unlisted(remote: Remote, listed: Collection[str]) -> Iterator[tuple[str, Stat]]:
    """Yield cards and objects that are not ``listed``; files of other names are none of ours."""
    listings = remote.in_threads(remote.files_in, OBJECT_FOLDERS)
    for folder, files in zip(OBJECT_FOLDERS, listings, strict=True):
        for name, stat in files.items():
            if _OBJECT.fullmatch(name) and f"{folder}/{name}" not in listed:
                yield f"{folder}/{name}", stat
    for name, stat in remote.files_in("cards").items():
        if _CARD.fullmatch(name) and f"cards/{name}" not in listed:
            yield f"cards/{name}", stat


def _begun(remote: Remote, survey: Survey) -> Iterator[tuple[str, Stat]]:
    """Yield the temporary files of writes, whether these are under way or were stopped."""
    ids = [*(one.id for one in survey.manifests), *survey.refused]
    folders = (*OBJECT_FOLDERS, "cards", "manifests", FOLDER, *(f"signatures/{one}" for one in sorted(ids)))
    listings = remote.in_threads(remote.temporary_in, folders)
    for folder, files in zip(folders, listings, strict=True):
        for name, stat in files.items():
            yield f"{folder}/{name}", stat
    # Beside the folders other things may lie, and be written.
    for name, stat in remote.temporary_in("").items():
        if final_name(name) == MARKER:
            yield name, stat


def _target(path: str) -> str:
    """Return the path that a temporary file was to have."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{final_name(name)}"


def delete_files(
    remote: Remote, found: Collection[Superfluous], claims: Claims, jobs: int, meter: Meter
) -> None:
    """Delete files of a remote, manifests first, and leave no folder empty.

    Raises:
        RemoteError: if this process stood still, so that others may be at work by now.
    """
    meter.begin("delete", total_files=len(found), total_bytes=sum(one.bytes or 0 for one in found))
    going: dict[str, set[str]] = {}
    for one in found:
        folder, _, name = one.path.rpartition("/")
        going.setdefault(folder, set()).add(name)
    for folder, names in going.items():
        if (there := remote.files_in(folder).keys()) and there <= names:
            remote.write(f"{folder}/{KEPT_FOLDER}", KEPT_FOLDER_BYTES)

    def act(one: Superfluous) -> None:
        if claims.overslept:
            raise RemoteError(
                "this process stood still, and others may push by now: stopped; run the same command again"
            )
        remote.remove(one.path)
        meter.add(files=1, size=one.bytes or 0)

    for is_manifest in (True, False):
        batch = [one for one in found if one.path.startswith("manifests/") is is_manifest]
        run_all(act, batch, jobs=jobs, stop=remote.stop)
