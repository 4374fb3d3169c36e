"""A remote: content-addressed objects and manifests on some place. Sound files are never overwritten."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from embedcache.cache import REMOTE_MARKER, Cache
from embedcache.corpus.description import is_digest
from embedcache.errors import RemoteError
from embedcache.share.places import Location, Place, Stat, open_place
from embedcache.share.places.base import Data
from embedcache.share.remote.manifest import MOST_MANIFEST_BYTES, Manifest
from embedcache.share.remote.manifest_reader import ManifestReader, TooLargeError
from embedcache.share.remote.marker import MARKER_BYTES, check_marker, is_cut_off
from embedcache.share.remote.names import digest_before, manifests_named
from embedcache.share.retry import retrying
from embedcache.share.transfer import map_all

T = TypeVar("T")
U = TypeVar("U")

MARKER = REMOTE_MARKER
KEEPER = "claims/README"
KEEPER_BYTES = b"Who is sending what at the moment. Nothing here is ever read once nobody pushes.\n"
LOOKING_THREADS = 16
# An interrupted look-up leaves nothing behind, and might wait for minutes to be tried again.
_PATIENCE_SECONDS = 0.5
BLOCK_BYTES = 8 << 20
"""What one request asks for. Of 2 to 24 MiB this cost servers and this machine the least time by far."""

# What even a remote of thousands of pushes does not reach; more would fill the disk with copies of manifests.
MOST_MANIFESTS = 50_000
MOST_MANIFESTS_BYTES = 4 << 30

_MARKER_PAUSE_SECONDS = 1.0
OBJECT_FOLDERS = tuple(f"objects/{number:02x}" for number in range(256))
"""Where objects lie."""
# Buckets list so many with one request.
_PAGE_OBJECTS = 1000


def object_path(sha256: str) -> str:
    """Return where an object lies on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


class SharedObject(Protocol):
    """An object of a remote, named by its digest: a file of a cache, or the row index of a shard."""

    @property
    def sha256(self) -> str:
        """The digest."""
        ...

    @property
    def bytes(self) -> int:
        """Its size."""
        ...


@dataclass(frozen=True)
class Survey:
    """The manifests of a remote.

    Attributes:
        manifests: those that can be read, sorted by name.
        refused: the names of all others, and why they are refused.
    """

    manifests: tuple[Manifest, ...]
    refused: Mapping[str, str]

    def require_all(self, where: str, advice: Callable[[str], str]) -> None:
        """See that none is refused: what it lists would be missing without a word.

        Args:
            where: the remote.
            advice: says how to do without the manifest whose name begins so.

        Raises:
            RemoteError: if one is refused.
        """
        for name, why in self.refused.items():
            more = f" and {len(self.refused) - 1:,} more" if len(self.refused) > 1 else ""
            raise RemoteError(
                f"manifests/{name}.json of {where}{more} is refused ({why}): it is damaged, hostile or of a "
                f"newer embedcache; {advice(name[:12])} or delete it there with 'embedcache remote gc --drop'"
            )


class Remote:
    """The objects and manifests at a location.

    Args:
        location: where.
        place: the place there; default: it is opened.

    Attributes:
        stop: once set, what fails is not tried again.
        listed_so: says for errors which manifests list an object so; whoever reads them sets it.
    """

    def __init__(self, location: Location, place: Place | None = None) -> None:
        self.location = location
        self.place = open_place(location) if place is None else place
        self.stop = threading.Event()
        self.listed_so: Callable[[SharedObject], str] = lambda shared: ""
        self._is_there = False
        # What a manifest says never changes: it is called by its digest. One that is refused may be mended.
        self._read: dict[str, Manifest] = {}
        # How long a listing of all objects is: those of so many manifests, and what the last listing had.
        self._counted, self._last_listed = (0, 0), 0

    @property
    def where(self) -> str:
        """Its URL."""
        return self.location.url

    @property
    def id(self) -> str:
        """32 digits that stand for its location in a cache's derived files."""
        return hashlib.sha256(self.location.url.encode()).hexdigest()[:32]

    def is_there(self) -> bool:
        """Return whether there is a remote here; a "yes" is kept, and the place is not asked again.

        Raises:
            RemoteError: if it cannot be reached, or a newer version of embedcache made it.
        """
        if self._is_there:
            return True
        data = self.read(MARKER, most=1 << 16)
        if data is not None and is_cut_off(data):
            # Some servers show a file while it is being written: somebody may be making the remote.
            self.stop.wait(_MARKER_PAUSE_SECONDS)
            data = self.read(MARKER, most=1 << 16)
        if data is None:
            if self.files_in("") and self.read("cache.json", most=1 << 16) is not None:
                raise RemoteError(f"{self.where} is a cache, not a remote: give another folder to share by")
            return False
        check_marker(data, self.where)
        self._is_there = True
        return True

    def require(self) -> None:
        """Check that there is a remote.

        Raises:
            RemoteError: if there is none, or as :meth:`is_there`.
        """
        if not self.is_there():
            push = "" if self.place.read_only else ", or push something there with 'embedcache push'"
            mount = ", to the disk being mounted" if self.location.scheme == "file" else ""
            raise RemoteError(
                f"no remote at {self.where}: it has no {MARKER}; see to the spelling{mount}{push}"
            )

    def prepare(self) -> None:
        """Make this a remote where it is none yet.

        Raises:
            RemoteError: if it cannot be written, or as :meth:`is_there`.
        """
        if not self.is_there():
            # Arrow makes an object of a folder whose last one it has deleted, which some servers take for a
            # file that nothing can lie in.
            self.write(KEEPER, KEEPER_BYTES)
            self.write(MARKER, MARKER_BYTES)
            self._is_there = True

    def read(self, path: str, most: int) -> bytes | None:
        """Return a small file; None where there is none.

        Raises:
            RemoteError: if it cannot be read, or has more than ``most`` bytes.
        """

        def act() -> bytes:
            data = bytearray()
            for block in self.place.blocks(path, BLOCK_BYTES):
                data += block
                if len(data) > most:
                    raise TooLargeError(
                        f"{path} of {self.where} has more than {most:,} bytes, and is not read further: it "
                        "is damaged or hostile"
                    )
            return bytes(data)

        try:
            return retrying(f"read {path}", self.where, act, self.stop)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: Data) -> None:
        """Write a file, as a whole or not at all.

        Raises:
            RemoteError, StorageError: if it cannot be written.
        """
        retrying(f"write {path}", self.where, lambda: self.place.write(path, data), self.stop)

    def remove(self, path: str) -> None:
        """Delete a file, where there is one: a claim, a superfluous or a damaged file.

        Raises:
            RemoteError: if it cannot be deleted.
        """
        retrying(f"delete {path}", self.where, lambda: self.place.remove(path), self.stop)

    def files_in(self, folder: str) -> dict[str, Stat]:
        """Return the files directly in ``folder``, by name.

        Raises:
            RemoteError: if they cannot be listed.
        """
        return retrying(f"list {folder or 'files'}", self.where, lambda: self.place.list(folder), self.stop)

    def temporary_in(self, folder: str) -> dict[str, Stat]:
        """Return the temporary files in ``folder``, by name: being written, or left by a stopped write.

        Raises:
            RemoteError: if they cannot be listed.
        """
        what = f"list temporary files{folder and f' in {folder}'}"
        return retrying(what, self.where, lambda: self.place.temporary(folder), self.stop)

    def objects(self) -> dict[str, Stat]:
        """Return all objects, by digest; files of other names are left out.

        Raises:
            RemoteError: if they cannot be listed.
        """
        return self.objects_and_misplaced()[0]

    def objects_and_misplaced(self) -> tuple[dict[str, Stat], dict[str, Stat]]:
        """Return all objects, by digest, and files that are called like objects of other folders, by path.

        A misplaced file is read by nobody: an object is looked for in the folder of its first digits alone.

        Raises:
            RemoteError: if they cannot be listed.
        """
        objects: dict[str, Stat] = {}
        misplaced: dict[str, Stat] = {}
        listed = self._listed_at_once()
        for path, stat in (self._listed_in(OBJECT_FOLDERS) if listed is None else listed).items():
            folder, _, name = path.rpartition("/")
            if is_digest(name) and path == object_path(name):
                objects[name] = stat
            elif is_digest(name) and folder in OBJECT_FOLDERS:
                misplaced[path] = stat
        return objects, misplaced

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a file; None where it is missing.

        Raises:
            RemoteError: if it cannot be looked up.
        """
        return retrying(f"look up {path}", self.where, lambda: self.place.stat(path), self.stop)

    def dated(self, files: Mapping[str, Stat]) -> dict[str, Stat]:
        """Return files, by path, with the times that their listing has not told, as far as they can be had.

        Arrow reads no times of which a server leaves out the last zeros, as ``12:30:05.34Z``, and in listings
        of some servers every tenth is like that.

        Raises:
            RemoteError: if they cannot be looked up.
        """
        asked = [path for path, stat in files.items() if stat.changed is None]
        stats = zip(asked, self.in_threads(self.stat, asked), strict=True) if asked else ()
        return {**files, **{path: stat for path, stat in stats if stat is not None}}

    def present(self, objects: Iterable[SharedObject]) -> set[str]:
        """Return the digests of those ``objects`` that lie here with the size they should have.

        Raises:
            RemoteError: if they cannot be looked up.
        """
        sizes = {object_path(file.sha256): (file.sha256, file.bytes) for file in objects}
        # A look-up is a request for each, of what is missing two or three.
        listed = self._listed_at_once() if len(sizes) > self._pages() else None
        if listed is None and len(sizes) > len(OBJECT_FOLDERS):
            listed = self._listed_in(sorted({path.rpartition("/")[0] for path in sizes}))
        if listed is None:
            stats = zip(sizes, self.in_threads(self.stat, sizes), strict=True)
            listed = {path: stat for path, stat in stats if stat is not None}
        return {
            digest for path, (digest, size) in sizes.items() if path in listed and listed[path].bytes == size
        }

    def _listed_at_once(self) -> dict[str, Stat] | None:
        """Return all files below the folder of objects, by path; None where one listing does not tell."""

        def act(folder: str) -> dict[str, Stat] | None:
            return retrying("list objects", self.where, lambda: self.place.below(folder), self.stop)

        # In a thread: a long listing would not hear Ctrl-C.
        (listed,) = self.in_threads(act, ["objects"])
        self._last_listed = len(listed or ())
        return None if listed is None else {f"objects/{path}": stat for path, stat in listed.items()}

    def _listed_in(self, folders: Sequence[str]) -> dict[str, Stat]:
        """Return the files directly in folders, by path."""
        listings = zip(folders, self.in_threads(self.files_in, folders), strict=True)
        return {f"{folder}/{name}": stat for folder, files in listings for name, stat in files.items()}

    def _pages(self) -> int:
        """Return how many requests a listing of all objects takes, by manifests and the last one."""
        manifests, count = self._counted
        if manifests != len(self._read):
            # Most have a row index besides.
            count = 2 * len({file.sha256 for manifest in self._read.values() for file in manifest.files})
            self._counted = len(self._read), count
        return 1 + max(count, self._last_listed) // _PAGE_OBJECTS

    def manifest_ids(self, *, unlimited: bool = False) -> list[str]:
        """Return the names of all manifests, sorted.

        Args:
            unlimited: whether they may be more than :data:`MOST_MANIFESTS`.

        Raises:
            RemoteError: if they cannot be listed, or are too many.
        """
        return sorted(self._manifest_stats(unlimited=unlimited))

    def _manifest_stats(self, *, unlimited: bool) -> dict[str, Stat]:
        files = self.files_in("manifests")
        stats = {digest: stat for name, stat in files.items() if (digest := digest_before(name, ".json"))}
        if len(stats) > MOST_MANIFESTS and not unlimited:
            raise RemoteError(
                f"{self.where} has {len(stats):,} manifests, expected {MOST_MANIFESTS:,} at most: let "
                "'embedcache remote gc' delete those that others have replaced"
            )
        return stats

    def survey(
        self,
        cache: Cache | None = None,
        only: Collection[str] | None = None,
        skip: Collection[str] = (),
        *,
        unlimited: bool = False,
        check_size: Callable[[int], None] | None = None,
    ) -> Survey:
        """Return the manifests that can be read, and why others cannot.

        A manifest is read once; which of them are on the remote is looked up each time.

        Args:
            cache: keeps copies of what is read, for the next time.
            only: read these alone; default: all.
            skip: leave out those whose names begin with these six digits or more, read or not.
            unlimited: whether they may be more than :data:`MOST_MANIFESTS`, and larger together than
                :data:`MOST_MANIFESTS_BYTES`: otherwise nobody could delete any of them.
            check_size: called with the bytes of all that have no copy, before any is fetched as far as they
                are listed with sizes, and as they come; raises if they are too many.

        Raises:
            InputError: if there is nothing to leave out, or as ``check_size``.
            RemoteError: if the remote cannot be reached, or they are too many or too large together.
        """
        stats = self._manifest_stats(unlimited=unlimited)
        names = sorted(stats)
        left_out = {name for digits in skip for name in manifests_named(digits, names, self.where)}
        ids = [name for name in names if name not in left_out and (only is None or name in only)]
        fresh = [name for name in ids if name not in self._read]
        copies = None if cache is None else cache.derived_folder / "remotes" / self.id
        most_together = None if unlimited else MOST_MANIFESTS_BYTES
        reader = ManifestReader(self.where, self.read, copies, MOST_MANIFEST_BYTES, most_together, check_size)
        reader.expect({name: stats[name].bytes or 0 for name in fresh})
        reader.drop_copies(names)
        results = self.in_threads(reader.read, fresh)
        self._read.update((result.id, result) for result in results if isinstance(result, Manifest))
        refused = {
            name: result for name, result in zip(fresh, results, strict=True) if isinstance(result, str)
        }
        return Survey(tuple(self._read[name] for name in ids if name not in refused), refused)

    def in_threads(self, act: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """Return what ``act`` returns for each item, in order; several are at work at once.

        An interrupt sets ``stop``, so that nothing is tried again behind its back; an error of one does not,
        for whoever asks may go on without it.
        """
        ended = threading.Event()
        try:
            return map_all(act, items, jobs=LOOKING_THREADS, stop=ended, patience=_PATIENCE_SECONDS)
        except BaseException as error:
            if not isinstance(error, Exception):
                self.stop.set()
            raise
