"""Verify a remote: read every object, compare its sha256 with its name, list what is missing.

A damaged object stays damaged, for nothing is overwritten. Once it is deleted, the next push from a cache
that has it sends it again.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import RemoteError
from embedcache.share.collect import Deletion, delete_files
from embedcache.share.places import Stat
from embedcache.share.remote.claims import GONE_SECONDS, AtWorkError, Claims
from embedcache.share.remote.lines import WrongLine, wrong_lines
from embedcache.share.remote.manifest import Manifest
from embedcache.share.remote.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.remotes import location_of
from embedcache.share.retry import retrying
from embedcache.share.transfer import JOBS, Stopped, run_all

DAMAGED, MISSING = "damaged", "missing"

# An object that changes while it is read is read again, so often.
_TRIES = 3
_WAIT_SECONDS = 5.0
# A killed process counts as gone by then; others may go on for ever.
_MOST_WAIT_SECONDS = GONE_SECONDS + 300.0


@dataclass(frozen=True)
class Fault:
    """An object of a remote that is damaged or missing.

    Attributes:
        path: where it lies, or should.
        bytes: its size; of one that is missing, as manifests have it; None where nobody tells.
        fault: ``damaged`` or ``missing``.
        files: what manifests list it as, sorted: paths in a cache; empty where none lists it.
        deleted: whether it was deleted.
    """

    path: str
    bytes: int | None
    fault: str
    files: tuple[str, ...]
    deleted: bool


@dataclass(frozen=True)
class RemoteCheck:
    """What a check of a remote has found.

    Attributes:
        remote: where.
        faults: what is damaged or missing, sorted by path.
        objects: how many were read.
        bytes: their size.
        changing: objects that changed whenever they were read, as while somebody writes them.
        refused: manifests that cannot be read, and why; what they list may be missing.
        kept: why nothing was deleted that was to be; empty where nothing was, or it was.
        misplaced: files that are called like objects of other folders, sorted: nobody looks for them there.
        seconds: how long it took.
        wrong: what manifests say of sound objects that is not so, or that others contradict.
    """

    remote: str
    faults: tuple[Fault, ...]
    objects: int
    bytes: int
    changing: int
    refused: Mapping[str, str]
    kept: str
    misplaced: tuple[str, ...]
    seconds: float
    wrong: tuple[WrongLine, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether all is sound and listed rightly, except deleted objects that no manifest lists."""
        faults_are_gone = all(fault.deleted and not fault.files for fault in self.faults)
        return faults_are_gone and not self.refused and not self.wrong

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return {**asdict(self), "sound": self.is_sound}


def check_remote(
    remote: str, *, delete_damaged: bool = False, jobs: int = JOBS, on_progress: OnCheck | None = None
) -> RemoteCheck:
    """Read every object of ``remote``, a name or a URL, and compare its digest with its name.

    Others may push and pull meanwhile. Before damaged objects are deleted, the check waits for a limited time
    until no other process is at work there, and reads them once more.

    Args:
        remote: the remote.
        delete_damaged: whether to delete damaged objects; otherwise nothing is changed.
        jobs: objects that are read at once.
        on_progress: called as the work goes on.

    Raises:
        RemoteError: if the remote cannot be reached or read, or nothing can be deleted there.
    """
    started = time.perf_counter()
    source = Remote(location_of(remote))
    if delete_damaged and source.place.read_only:
        raise RemoteError(f"{source.where} can only be read: nothing can be deleted there")
    meter = Meter(on_progress)
    meter.begin("read the remote")
    source.require()
    # Before the objects: a manifest is written after them.
    survey = source.survey()
    sizes = _sizes(survey.manifests)
    reader = _Reader(source, sizes, meter)
    objects, misplaced = source.objects_and_misplaced()
    reader.read(objects, jobs)
    kept = ""
    if delete_damaged and reader.damaged:
        kept = _delete(reader, jobs, meter)
        # Others may have pushed since, and list damaged objects.
        survey = source.survey()
    faults = {digest: (DAMAGED, size) for digest, size in reader.damaged.items()}
    missing = _missing(source, sizes.keys() - objects.keys())
    faults |= {digest: (MISSING, sizes[digest]) for digest in missing}
    files = _files(survey.manifests, faults)
    return RemoteCheck(
        source.where,
        tuple(
            Fault(
                object_path(digest),
                size,
                fault,
                tuple(sorted(files[digest])),
                delete_damaged and not kept and fault == DAMAGED,
            )
            for digest, (fault, size) in sorted(faults.items())
        ),
        len(objects),
        sum(reader.sizes_of(objects).values()),
        len(reader.changing),
        survey.refused,
        kept,
        tuple(sorted(misplaced)),
        time.perf_counter() - started,
        tuple(wrong_lines(survey.manifests, reader.sound)),
    )


class _Reader:
    """Reads objects of a remote.

    Attributes:
        damaged: digests of those whose bytes had another when last read, and their sizes.
        changing: digests of those that changed whenever they were read.
        sound: digests of those whose bytes are right, and their sizes.
    """

    def __init__(self, remote: Remote, sizes: Mapping[str, int], meter: Meter) -> None:
        self.remote, self._sizes, self._meter = remote, sizes, meter
        self.damaged: dict[str, int | None] = {}
        self.changing: set[str] = set()
        self.sound: dict[str, int] = {}

    def read(self, objects: Mapping[str, Stat], jobs: int) -> None:
        """Read objects, given by digest."""
        sizes = self.sizes_of(objects)
        self._meter.begin("check", total_files=len(objects), total_bytes=sum(sizes.values()))

        def act(digest: str) -> None:
            self._judge(digest, objects[digest])
            self._meter.add(files=1)

        ordered = sorted(objects, key=lambda digest: -sizes[digest])
        run_all(act, ordered, jobs=jobs, stop=self.remote.stop)

    def sizes_of(self, objects: Mapping[str, Stat]) -> dict[str, int]:
        """Return how many bytes objects have, by manifests where the place does not tell."""
        return {digest: stat.bytes or self._sizes.get(digest, 0) for digest, stat in objects.items()}

    def _judge(self, digest: str, seen: Stat) -> None:
        path = object_path(digest)
        for _ in range(_TRIES):
            if self._is_right(digest, seen.bytes):
                return
            now = self.remote.stat(path)
            if now is None:
                # It was deleted meanwhile.
                return
            if now == seen:
                self.damaged[digest] = now.bytes
                return
            seen = now
        self.changing.add(digest)

    def _is_right(self, digest: str, size: int | None) -> bool:
        """Return whether an object's bytes are right, or it is gone; it is not read beyond its size."""
        # What manifests say may be a lie; an object is not damaged by that.
        most = self._sizes.get(digest) if size is None else size
        path = object_path(digest)

        def act() -> bool:
            taken, count = hashlib.sha256(), 0
            try:
                for block in self.remote.place.blocks(path, BLOCK_BYTES):
                    if self.remote.stop.is_set():
                        raise Stopped
                    count += len(block)
                    self._meter.add(size=len(block))
                    if most is not None and count > most:
                        return False
                    taken.update(block)
            except OSError:
                self._meter.add(size=-count)
                raise
            if taken.hexdigest() == digest:
                self.sound[digest] = count
            return digest in self.sound

        try:
            return retrying(f"read {path}", self.remote.where, act, self.remote.stop)
        except FileNotFoundError:
            return True


def _sizes(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the objects that manifests list, row indexes among them: digest -> size."""
    sizes: dict[str, int] = {}
    for manifest in manifests:
        for file in manifest.files:
            for listed in (file, file.index) if file.index is not None else (file,):
                sizes[listed.sha256] = max(listed.bytes, sizes.get(listed.sha256, 0))
    return sizes


def _files(manifests: Iterable[Manifest], digests: Collection[str]) -> dict[str, set[str]]:
    """Return under which names manifests list objects."""
    names: dict[str, set[str]] = {digest: set() for digest in digests}
    for manifest in manifests:
        for file in manifest.files:
            if file.sha256 in names:
                names[file.sha256].add(file.path)
            if file.index is not None and file.index.sha256 in names:
                names[file.index.sha256].add(f"row index of {file.path}")
    return names


def _missing(remote: Remote, absent: Collection[str]) -> set[str]:
    """Return those of ``absent`` that manifests still list: a push may have been taken back meanwhile."""
    if not absent:
        return set()
    listed = _sizes(remote.survey().manifests)
    asked = sorted(listed.keys() & set(absent))
    stats = remote.in_threads(lambda digest: remote.stat(object_path(digest)), asked)
    return {digest for digest, stat in zip(asked, stats, strict=True) if stat is None}


def _delete(reader: _Reader, jobs: int, meter: Meter) -> str:
    """Delete objects that are still damaged once no other process is at work on the remote.

    Returns:
        Why nothing was deleted, where others were at work all the time; empty otherwise.
    """
    last = time.monotonic() + _MOST_WAIT_SECONDS
    while (error := _delete_alone(reader, jobs, meter)) is not None:
        if time.monotonic() > last:
            return str(error)
        # The check may have taken hours, and most pushes end soon.
        meter.begin(f"wait until nobody else is at work there ({error.others:,} now)")
        time.sleep(_WAIT_SECONDS * (0.5 + random.random()))  # noqa: S311 - no secret
    return ""


def _delete_alone(reader: _Reader, jobs: int, meter: Meter) -> AtWorkError | None:
    """Delete what is still damaged; where others are at work, do nothing and return the error to tell."""
    remote = reader.remote
    try:
        with Claims(remote).collecting() as claims:
            again = {digest: remote.stat(object_path(digest)) for digest in reader.damaged}
            reader.damaged.clear()
            reader.read({digest: stat for digest, stat in again.items() if stat is not None}, jobs)
            deletions = [
                Deletion(object_path(digest), size, DAMAGED)
                for digest, size in sorted(reader.damaged.items())
            ]
            delete_files(remote, deletions, claims, jobs, meter)
    except AtWorkError as error:
        return error
    return None
