"""Quarantine of what comes from a remote: ``derived/incoming``, laid out as a cache.

Files are downloaded there, checked, compared with the teacher, and only then moved into the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from embedcache.cache import Cache, CachedTeacher, read_contract, read_origin
from embedcache.codecs import pq
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import read_record
from embedcache.errors import CorruptCacheError, EmbedCacheError, InputError, RemoteError
from embedcache.fsio import commit_new, copy_file, make_directory, refuse_links, sha256_file
from embedcache.inventory import Kind
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import projection_digest
from embedcache.share.files import corpus_paths, shared_shard
from embedcache.share.filesystem import DamagedError
from embedcache.share.manifest import SHARED, ManifestSet, SharedFile
from embedcache.share.remote import Remote
from embedcache.store import FolderShards, ShardStore
from embedcache.store.checked import CheckedFiles
from embedcache.store.index import StoreIndex
from embedcache.teacher.token_table import TokenTable
from embedcache.verify.rows import check_rows


class Incoming:
    """Files on their way from a remote into a cache.

    Args:
        cache: the cache.
        remote: where the files come from.
        listed: manifests of the remote, to name the pusher of a bad file.
        progress: receives what is done.
        folder: where they lie until they are admitted; default: ``derived/incoming``.

    Attributes:
        fetched: bytes of each file that was downloaded.
    """

    def __init__(
        self,
        cache: Cache,
        remote: Remote,
        listed: ManifestSet,
        progress: Progress = NO_PROGRESS,
        folder: Path | None = None,
    ) -> None:
        self.cache, self.remote, self.listed = cache, remote, listed
        self.progress = progress
        self.fetched: list[int] = []
        if folder is None:
            folder = cache.derived_folder / "incoming"
            refuse_links(folder, 5)  # as deep as any path in a cache
        self.folder = folder

    @contextmanager
    def locked(self, files: Iterable[SharedFile]) -> Iterator[Cache]:
        """Yield the quarantine as a cache, while other processes wait; anything but ``files`` is deleted.

        What a pull has downloaded that was interrupted is used by the next one.
        """
        keep = {"cache.json", *(file.path for file in files)}
        make_directory(self.folder)
        self.progress.phase("wait for another pull into this cache")
        with FileLock(self.folder.parent / "incoming.lock"):
            for path in sorted(self.folder.rglob("*"), reverse=True):
                if path.is_dir():
                    with suppress(OSError):
                        path.rmdir()
                elif path.relative_to(self.folder).as_posix() not in keep:
                    path.unlink()
            yield Cache.create(self.folder)
            shutil.rmtree(self.folder)

    def path(self, file: SharedFile) -> Path:
        """Return the place of a file in the quarantine."""
        return self.folder / file.path

    def fetch(self, phase: str, files: Sequence[SharedFile]) -> None:
        """Download files; a damaged or missing object ends it with an error that names manifest and pusher.

        Raises:
            RemoteError, StorageError: as :meth:`Remote.fetch`.
        """
        self.progress.phase(phase, sum(file.bytes for file in files), "bytes")
        for folder in {self.path(file).parent for file in files}:
            make_directory(folder)
        # The largest first, or the last one would leave the other threads idle.
        self.remote.in_threads(self.fetch_one, sorted(files, key=lambda file: -file.bytes))

    def fetch_one(self, file: SharedFile) -> None:
        """Download one file; errors as :meth:`fetch`."""
        path, here = self.path(file), self.cache.folder / file.path
        if _is_whole(path, file):
            self.progress.advance(file.bytes)
        elif file.entry.kind is not Kind.SHARD and _is_whole(here, file):
            # A codebook of shards that come, or a part that two versions of a corpus share.
            copy_file(here, path)
        else:
            try:
                self.remote.fetch(file.sha256, file.bytes, path, self.progress.advance)
            except DamagedError as error:
                raise self.refusal([file.sha256], str(error)) from error
            self.fetched.append(file.bytes)

    def refusal(self, digests: Sequence[str], why: str) -> RemoteError:
        """Return the error for objects that are refused; it names the manifests that list them."""
        pushed = self.listed.pushed_by(digests)
        return RemoteError(f"{why.rstrip('.')}. Pushed in {pushed}: --skip-manifest leaves it out.")

    @contextmanager
    def refusing(self, files: Sequence[SharedFile]) -> Iterator[None]:
        """Turn what is wrong with files into an error that names the first of them and its pusher."""
        try:
            yield
        except (EmbedCacheError, ValueError, OSError) as error:
            path = files[0].path if files else "what came"
            raise self.refusal([file.sha256 for file in files], f"{path} is refused ({error})") from error

    def check_corpora(self, files: Sequence[SharedFile], digests: Mapping[str, str]) -> None:
        """Check every row, key and view of the corpora among ``files``.

        Args:
            files: all files of each corpus and of each view.
            digests: the digest of each corpus, by name.

        Raises:
            RemoteError: if one is not what it says it is, or has other files than its description names.
        """
        groups: dict[str, list[SharedFile]] = {}
        for file in files:
            groups.setdefault(file.entry.folder, []).append(file)
        for place, group in groups.items():
            with self.refusing(group):
                corpus, view = Corpus(self.folder / place), group[0].entry.view
                named = {path.relative_to(self.folder).as_posix() for path in corpus_paths(corpus)}
                if {file.path for file in group} != named:
                    raise RemoteError("its files are not those that its description names")
                for name, wrong in check_rows(corpus):
                    raise RemoteError(f"{place}/{name}: {wrong}")
                if view:
                    record, of = read_record(corpus.folder), Corpus(self.corpus_folder(group[0].entry.corpus))
                    expected = (of.info.digest, corpus.info.digest, len(corpus))
                    if (record.of, record.digest, len(of)) != expected:
                        raise RemoteError("the view is of other rows")
                elif corpus.info.digest != digests[corpus.name]:
                    raise RemoteError("the corpus has another digest than its card")

    def corpus_folder(self, name: str) -> Path:
        """Return the folder of a corpus in the quarantine, or else in the cache."""
        folders = [base / "corpora" / name for base in (self.folder, self.cache.folder)]
        return next((one for one in folders if (one / "corpus.json").is_file()), folders[0])

    def open_store(self, contract: Contract, files: Sequence[SharedFile]) -> ShardStore:
        """Return the store of a teacher's shards in the quarantine, with all of that teacher's files checked.

        Raises:
            RemoteError: if a file is not what its manifest says it is.
        """
        folder = self.folder / "teachers" / contract.id
        mine = [file for file in files if file.entry.teacher == contract.id]
        names = {file.sha256 for file in mine}
        for path in folder.glob("shards/*"):
            # An interrupted pull of more has left it.
            if path.stem not in names:
                path.unlink()
        checked = CheckedFiles()
        # Their digests were taken as they came.
        checked.add(*(self.path(file) for file in mine if file.entry.kind is Kind.SHARD))
        for file in mine:
            with self.refusing([file]):
                _check_document(self.path(file), file, contract)
        with self.refusing([file for file in mine if file.rows]):
            store = ShardStore(
                FolderShards(folder / "shards", checked),
                contract,
                codebooks=folder / "codebooks",
                index=StoreIndex(self.folder / "derived" / "index" / contract.id, checked),
            )
        self.check_shards(store, mine)
        return store

    def check_shards(self, store: ShardStore, files: Sequence[SharedFile]) -> None:
        """Check that shards have the rows, the codec and the keys that their manifest lists.

        Raises:
            RemoteError: if one has others.
        """
        listed = {file.sha256: file for file in files}
        for shard in store.shards:
            if shared_shard(store.contract.id, shard) != listed.get(shard.name):
                why = f"shard {shard.name[:12]} has other rows, keys or another codec than its manifest lists"
                raise self.refusal([shard.name], why)

    def contract(self, contract_id: str) -> Contract:
        """Return the contract of a teacher that is in the quarantine or in the cache.

        Raises:
            RemoteError: if what came is none, or another one's.
        """
        place = f"teachers/{contract_id}/contract.json"
        staged = self.folder / place
        if not staged.is_file():
            return read_contract(self.cache.folder / place)
        try:
            return read_contract(staged)
        except CorruptCacheError as error:
            raise self.refusal([sha256_file(staged)], f"{place} is refused ({error})") from error

    def teacher(self, contract_id: str) -> CachedTeacher:
        """Return a teacher that is in the quarantine or in the cache, under one of its names."""
        for base in (self.cache.folder, self.folder):
            for path in sorted((base / "teachers" / contract_id / "names").glob("*.json")):
                return CachedTeacher(path.stem, self.contract(contract_id), read_origin(path))
        return CachedTeacher(contract_id[:12], self.contract(contract_id), {})

    def admit(self, files: Sequence[SharedFile]) -> None:
        """Move files into the cache, each after what it refers to; nothing in the cache is replaced.

        Raises:
            InputError, ContractMismatchError: if a build has taken one of the names meanwhile.
            StorageError: if the cache cannot be written.
        """
        for file in files:
            target, entry = self.cache.folder / file.path, file.entry
            if entry.kind is Kind.NAME:
                self.cache.refuse_other_contract(entry.stem, self.contract(entry.teacher))
            elif entry.corpus and target.is_file() and sha256_file(target) != file.sha256:
                raise InputError(f"{target} appeared during the pull. Run it again.")
        teachers = {file.entry.teacher for file in files if file.rows}
        containers = {one: self.cache.container(self.contract(one)) for one in teachers}
        for file in sorted(files, key=lambda one: (SHARED.index(one.entry.kind), one.path)):
            staged, target = self.path(file), self.cache.folder / file.path
            container = containers.get(file.entry.teacher)
            if container is None or not file.rows:
                make_directory(target.parent)
                commit_new(staged, target)
            elif isinstance(container, FolderShards):
                make_directory(container.folder)
                container.adopt(file.sha256, staged)
            else:
                container.add(file.sha256, FolderShards(staged.parent).open(file.sha256))
                staged.unlink()
        for container in containers.values():
            container.finish()


def _check_document(path: Path, file: SharedFile, contract: Contract) -> None:
    """Raise where a file of a teacher, other than a shard, is not what its place asks for."""
    kind = file.entry.kind
    if kind is Kind.CONTRACT and read_contract(path) != contract:
        raise ValueError("its contract is another one")
    if kind is Kind.NAME:
        read_origin(path)
    if kind is Kind.CODEBOOK:
        pq.load(path.parent, file.sha256)
    if kind is Kind.TABLE:
        TokenTable.read(path, contract)
    if kind is Kind.PROJECTION and projection_digest(contract) != file.sha256:
        raise ValueError("its projection is not the one that the contract names")


def _is_whole(path: Path, file: SharedFile) -> bool:
    is_there = path.is_file() and path.stat().st_size == file.bytes
    return is_there and sha256_file(path) == file.sha256
