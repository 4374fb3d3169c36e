"""Quarantine of files from a remote: ``derived/incoming``, laid out as a cache.

Files are downloaded there, checked, compared with the teacher, and only then moved into the cache.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from embedcache.cache import Cache
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.errors import (
    ContractMismatchError,
    EmbedCacheError,
    InputError,
    RemoteError,
    StorageError,
    UnreadableError,
)
from embedcache.fsio import commit_new, copy_file, make_directory, refuse_links, sha256_file
from embedcache.inventory import Kind
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import corpus_paths, shared_shard
from embedcache.share.manifest import LEAVE_OUT, SHARED, ManifestSet, SharedFile
from embedcache.share.remote import DamagedError, Remote
from embedcache.sizes import readable
from embedcache.store import FolderShards, ShardStore
from embedcache.store.base import ShardContainer
from embedcache.store.containers import ListedShards
from embedcache.verify.files import RULES
from embedcache.verify.rows import check_rows

_RESERVE_BYTES = 64 << 20


class Incoming:
    """Files on their way from a remote into a cache.

    Args:
        cache: the cache.
        remote: source of the files.
        listed: manifests of the remote, to name the pusher of a bad file.
        max_bytes: refuse to download more than this; None: any number.
        progress: receives what is done.
        folder: folder of files until they are admitted; default: ``derived/incoming``.

    Attributes:
        fetched: bytes downloaded, running downloads included.
    """

    def __init__(
        self,
        cache: Cache,
        remote: Remote,
        listed: ManifestSet,
        *,
        max_bytes: int | None = None,
        progress: Progress = NO_PROGRESS,
        folder: Path | None = None,
    ) -> None:
        self.cache, self.remote, self.listed = cache, remote, listed
        self.progress, self.fetched = progress, 0
        self.folder = folder or cache.derived_folder / "incoming"
        self._max_bytes = max_bytes

    @contextmanager
    def locked(self, files: Iterable[SharedFile]) -> Iterator[None]:
        """Hold the quarantine, while other processes wait; anything in it but ``files`` is deleted.

        Files that an interrupted pull has downloaded are used by the next one.
        """
        keep = {"cache.json", *(file.path for file in files)}
        refuse_links(self.folder, 5)  # as deep as any path in a cache
        make_directory(self.folder)
        self.progress.phase("wait for another pull into this cache")
        with FileLock(self.folder.parent / "incoming.lock"):
            for path in sorted(self.folder.rglob("*"), reverse=True):
                if path.is_dir():
                    with suppress(OSError):
                        path.rmdir()
                elif path.relative_to(self.folder).as_posix() not in keep:
                    path.unlink()
            Cache.create(self.folder)
            yield
            shutil.rmtree(self.folder)

    @property
    def staged(self) -> Cache:
        """The quarantine as a cache."""
        return Cache(self.folder)

    def path(self, file: SharedFile) -> Path:
        """Return the place of a file in the quarantine."""
        return self.folder / file.path

    def fetch(self, phase: str, files: Sequence[SharedFile]) -> None:
        """Bring files into the quarantine; those that the cache has, but for shards, are copied from it.

        Raises:
            InputError, RemoteError, StorageError: as ``download``.
        """
        for file in files:
            here = self.cache.folder / file.path
            if file.entry.kind is not Kind.SHARD and is_whole(file.sha256, file.bytes, here):
                copy_file(here, self.path(file))
        self.download(phase, [(file.sha256, file.bytes, self.path(file)) for file in files])

    def download(self, phase: str, objects: Sequence[tuple[str, int, Path]]) -> None:
        """Download objects that are missing or damaged at their targets.

        Args:
            phase: name of the phase of progress.
            objects: digest, bytes and target of each.

        Raises:
            InputError: if they are more than the limit; nothing is downloaded then.
            RemoteError: if one cannot be downloaded; a damaged or missing one is named with its pusher.
            StorageError: if the disk has no room, or cannot be written.
        """
        whole = self.remote.in_threads(lambda one: is_whole(*one), objects)
        missing = [one for one, is_here in zip(objects, whole, strict=True) if not is_here]
        size = sum(one[1] for one in missing)
        self._refuse_too_much(size)
        self.fetched += size
        self.progress.phase(phase, size, "bytes")
        for folder in {target.parent for _, _, target in missing}:
            make_directory(folder)
        # The largest first, so that all threads end at about the same time.
        self.remote.in_threads(self._download_one, sorted(missing, key=lambda one: -one[1]))

    def _download_one(self, one: tuple[str, int, Path]) -> None:
        try:
            self.remote.fetch(*one, self.progress.advance)
            with one[2].open("rb") as handle:  # here in threads: files are admitted one by one
                os.fsync(handle.fileno())
        except DamagedError as error:
            raise self.refusal([one[0]], str(error)) from error

    def _refuse_too_much(self, size: int) -> None:
        if self._max_bytes is not None and self.fetched + size > self._max_bytes:
            raise InputError(
                f"{readable(self.fetched + size)} would be fetched, max_bytes allows {self._max_bytes:,}. "
                "Raise it, or fetch less."
            )
        free = shutil.disk_usage(self.cache.folder).free
        if size and size + _RESERVE_BYTES > free:
            raise StorageError(
                f"{self.cache.folder}: {readable(size)} would be fetched, {free:,} bytes are free. Make room."
            )

    def refusal(self, digests: Iterable[str], why: object) -> RemoteError:
        """Return the error for objects that are refused; it names the manifests that list them."""
        pushed = self.listed.pushed_by(digests)
        remedy = "'embedcache remote verify --delete-damaged' and then a new push repair a damaged object"
        return RemoteError(f"{str(why).rstrip('.')}. Pushed in {pushed}. {LEAVE_OUT}; {remedy}.")

    @contextmanager
    def refusing(self, files: Sequence[SharedFile]) -> Iterator[None]:
        """Turn faults of files into an error that names the first of them and its pusher."""
        try:
            yield
        except (UnreadableError, StorageError):  # of this machine
            raise
        except (EmbedCacheError, ValueError, OSError) as error:
            path = files[0].path if files else "what came"
            raise self.refusal([file.sha256 for file in files], f"{path} is refused ({error})") from error

    def check_corpora(self, digests: Mapping[str, str], files: Sequence[SharedFile]) -> None:
        """Check every row, key and view of the corpora in the quarantine.

        Args:
            digests: the digest of each corpus, by name.
            files: all files of the corpora.

        Raises:
            RemoteError: if one is not what it says it is, or has other files than its description names.
        """
        for name in sorted({file.entry.corpus for file in files}):
            mine = [file for file in files if file.entry.corpus == name]
            with self.refusing(mine):
                corpus, named = self.staged.corpus(name), set[Path]()
                for texts in (corpus, *corpus.views()):
                    named.update(corpus_paths(texts))
                    for place, wrong in check_rows(texts):
                        raise RemoteError(f"{place}: {wrong}")
                if corpus.info.digest != digests[name]:
                    raise RemoteError("the corpus has another digest than its card")
                if named != {self.path(file) for file in mine}:
                    raise RemoteError("its files are not those that its description names")

    def check_documents(self, files: Iterable[SharedFile]) -> None:
        """Check files of teachers in the quarantine, but for shards.

        Raises:
            RemoteError: if a file does not fit its path.
            ContractMismatchError: if two contracts have one name; it names the fields.
        """
        for file in files:
            with self.refusing([file]):
                RULES[file.entry.kind][0](self.path(file), file.entry)
        self._refuse_clashes()

    def _refuse_clashes(self) -> None:
        owner = {teacher.name: teacher.contract for teacher in self.cache.teachers()}
        for teacher in self.staged.teachers():
            first, second = owner.setdefault(teacher.name, teacher.contract), teacher.contract
            if differences := first.differences(second):
                raise ContractMismatchError(
                    f"two contracts are called {teacher.name!r}, {first.id[:12]} and that of "
                    f"{self.remote.url}, {second.id[:12]} ({describe_differences(differences)}). Choose "
                    "one by its contract, or pull into another cache.",
                    differences,
                )

    def open_store(self, contract: Contract, shards: Sequence[SharedFile]) -> ShardStore:
        """Return the store of shards in the quarantine that came whole; their structure is checked.

        Raises:
            RemoteError: if one has another contract, codec, keys or number of rows than its manifest lists.
        """
        folder = self.folder / "teachers" / contract.id
        with self.refusing(shards):
            container = ListedShards(folder / "shards", (one.sha256 for one in shards), trusted=True)
            store = ShardStore(container, contract, codebooks=folder / "codebooks")
        listed = {shard.sha256: shard for shard in shards}
        for opened in store.shards:
            if shared_shard(contract.id, opened) != listed[opened.name]:
                why = "has other rows, keys or another codec than its manifest lists"
                raise self.refusal([opened.name], f"shard {opened.name[:12]} {why}")
        return store

    def admit(
        self, files: Iterable[SharedFile], containers: Mapping[str, ShardContainer]
    ) -> list[SharedFile]:
        """Move files into the cache, each after the files it refers to, and return those that it lacked.

        Nothing in the cache is replaced.

        Args:
            files: the files.
            containers: the cache's containers of each teacher's shards, by contract id.

        Raises:
            InputError, ContractMismatchError: if a build has taken the name of a corpus or teacher meanwhile.
            StorageError: if the cache cannot be written.
        """
        self._refuse_clashes()
        ordered = sorted(files, key=lambda one: (SHARED.index(one.entry.kind), one.path))
        for name in {file.entry.corpus for file in ordered} & {*self.cache.corpus_names()}:
            ours, theirs = (Corpus(one / "corpora" / name) for one in (self.cache.folder, self.folder))
            if ours.info.digest != theirs.info.digest:
                raise InputError(
                    f"corpus {name!r}: the cache has other rows under this name. Pull into another cache."
                )
        return [file for file in ordered if self._admit_one(file, containers)]

    def _admit_one(self, file: SharedFile, containers: Mapping[str, ShardContainer]) -> bool:
        staged, target = self.path(file), self.cache.folder / file.path
        if not file.rows:
            make_directory(target.parent)
            return commit_new(staged, target)
        container = containers[file.entry.teacher]
        if isinstance(container, FolderShards):
            make_directory(container.folder)
            container.adopt(file.sha256, staged)
        else:
            container.add(file.sha256, FolderShards(staged.parent).open(file.sha256))
        return True


def is_whole(sha256: str, size: int, path: Path) -> bool:
    """Return whether a file exists with the right size and digest."""
    return path.is_file() and path.stat().st_size == size and sha256_file(path) == sha256
