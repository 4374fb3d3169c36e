"""Shared files of a cache, and the selection of them for a push or a pull."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus, CorpusRef
from embedcache.corpus.description import DESCRIPTION, RECIPE
from embedcache.errors import InputError
from embedcache.fsio import read_regular, sha256_file
from embedcache.inventory import Kind
from embedcache.projection import PROJECTION
from embedcache.share.manifest import NAMED_BY_DIGEST, SharedCorpus, SharedFile, SharedTeacher
from embedcache.store import ShardStore
from embedcache.store.checked import CheckedFiles
from embedcache.store.containers import open_container
from embedcache.store.shard import Shard
from embedcache.teacher.token_table import table_path


@dataclass(frozen=True)
class Selection:
    """Selection of teachers, corpora and rows for a push or a pull.

    Attributes:
        teachers: names, or beginnings of contract ids; none: all.
        corpora: ``NAME`` or ``NAME@DIGEST``; none: all.
        text: True if corpora are included.
        where: of a pull, an SQL condition that chooses rows of the one corpus.
        vectors: of a pull, True if shards are included.
    """

    teachers: Sequence[str] = ()
    corpora: Sequence[str] = ()
    text: bool = True
    where: str | None = None
    vectors: bool = True

    def __post_init__(self) -> None:
        """Refuse what does not go together.

        Raises:
            InputError: if corpora are named and left out, or a part of several is asked for.
        """
        if self.where is not None and len(self.corpora) != 1:
            raise InputError("where takes a part of one corpus: name it.")
        if self.corpora and not self.text:
            raise InputError("a corpus is chosen and texts are left out: leave one of them out.")
        for corpus in self.corpora:
            CorpusRef.parse(corpus)

    def takes_teacher(self, names: Sequence[str], contract_id: str) -> bool:
        """Return whether a teacher is chosen."""
        return not self.teachers or any(
            one in names or (len(one) >= 6 and contract_id.startswith(one)) for one in self.teachers
        )

    def takes_corpus(self, name: str, digest: str) -> bool:
        """Return whether a corpus is chosen."""
        choices = [CorpusRef.parse(one) for one in self.corpora]
        return self.text and (
            not choices or any(one.name == name and digest.startswith(one.digest) for one in choices)
        )


@dataclass
class Bundle:
    """Files of a teacher or of a corpus in a cache, which a manifest lists together.

    Attributes:
        card: its entry on the card; without rows for a teacher.
        documents: files listed in every manifest that adds to this bundle.
        shards: shards of a teacher.
        sources: the bytes of its objects, key lists of shards included: sha256 -> size, and a function that
            reads them.
    """

    card: SharedTeacher | SharedCorpus
    documents: list[SharedFile] = field(default_factory=list)
    shards: list[SharedFile] = field(default_factory=list)
    sources: dict[str, tuple[int, Callable[[], Any]]] = field(default_factory=dict)

    def add(self, cache: Cache, path: Path) -> None:
        """Add a document.

        Raises:
            InputError: if it is missing.
        """
        if not path.is_file():
            raise InputError(f"{path} is missing: run 'embedcache repair', then push again.")
        name, size = path.relative_to(cache.folder).as_posix(), path.stat().st_size
        # Checked when it is sent.
        sha256 = path.stem if path.suffix in (".arrow", ".npy") else sha256_file(path)
        self.documents.append(SharedFile(path=name, sha256=sha256, bytes=size))
        self.sources[sha256] = (size, partial(read_regular, path, size))


def local_teachers(cache: Cache, selection: Selection) -> list[Bundle]:
    """Return the chosen teachers of a cache, with their shards opened and checked.

    Raises:
        InputError: if a requested name is missing.
        CorruptCacheError: if a file of them is damaged.
    """
    by_contract: dict[str, list[CachedTeacher]] = {}
    for teacher in cache.teachers():
        by_contract.setdefault(teacher.contract.id, []).append(teacher)
    for asked in selection.teachers:
        cache.teacher(asked)
    return [
        _local_teacher(cache, group)
        for contract_id, group in by_contract.items()
        if selection.takes_teacher([one.name for one in group], contract_id)
    ]


def _local_teacher(cache: Cache, group: list[CachedTeacher]) -> Bundle:
    contract, origin = group[0].contract, group[0].origin
    folder = cache.teacher_folder(contract)
    names = [one.name for one in group]
    model, licence = origin.get("model_id", origin.get("spec", "")), origin.get("licence", "")
    bundle = Bundle(SharedTeacher(contract=contract.id, names=names, rows=0, model=model, licence=licence))
    store = cache.store(contract)
    codebooks = {digest for shard in store.shards if (digest := shard.header.codebook)}
    optional = (table_path(cache.folder, contract), folder / PROJECTION)
    for path in (
        folder / "contract.json",
        *(folder / "names" / f"{name}.json" for name in names),
        *(folder / "codebooks" / f"{digest}.npy" for digest in sorted(codebooks)),
        *(path for path in optional if path.is_file()),
    ):
        bundle.add(cache, path)
    for shard in store.shards:
        file = shared_shard(contract.id, shard)
        bundle.shards.append(file)
        bundle.sources[file.sha256] = (file.bytes, partial(store.container.open, shard.name))
        bundle.sources[file.keys] = (file.key_bytes, partial(_read_keys, store, shard.name))
    return bundle


def _read_keys(store: ShardStore, name: str) -> bytes:
    """Return the key list of a shard, which is opened only for it: Linux maps 65,530 files into a process."""
    return store.shard(name).keys.tobytes()


def local_corpora(cache: Cache, selection: Selection) -> list[Bundle]:
    """Return the chosen corpora of a cache with their current views.

    Raises:
        InputError: if a requested name is missing.
        CorruptCacheError: if a description is damaged or a part is missing.
    """
    for asked in selection.corpora:
        cache.corpus(CorpusRef.parse(asked).name)
    found = []
    for corpus in cache.corpora() if selection.text else []:
        if selection.takes_corpus(corpus.name, corpus.info.digest):
            views, name, digest = corpus.views(), corpus.name, corpus.info.digest
            names = [view.name for view in views]
            bundle = Bundle(SharedCorpus(name=name, digest=digest, rows=len(corpus), views=names))
            for path in (path for one in (corpus, *views) for path in corpus_paths(one)):
                bundle.add(cache, path)
            found.append(bundle)
    return found


def corpus_paths(corpus: Corpus) -> Iterator[Path]:
    """Yield the files of a corpus or of a view: its parts, then its description, and last a view's recipe."""
    yield from (corpus.folder / part.file_name for part in corpus.parts)
    yield corpus.folder / DESCRIPTION
    if (corpus.folder / RECIPE).is_file():
        yield corpus.folder / RECIPE


def shared_shard(contract_id: str, shard: Shard) -> SharedFile:
    """Return the entry of a shard in a manifest."""
    return SharedFile(
        path=f"teachers/{contract_id}/shards/{shard.name}.arrow",
        sha256=shard.name,
        bytes=shard.bytes,
        rows=len(shard),
        codec=shard.header.codec,
        keys=hashlib.sha256(shard.keys.tobytes()).hexdigest(),
    )


def missing_files(cache: Cache, files: Iterable[SharedFile]) -> list[SharedFile]:
    """Return the files of a remote that a cache lacks; an existing name or table stays as it is."""
    shards: dict[str, set[str]] = {}
    missing = []
    for file in files:
        entry, path = file.entry, cache.folder / file.path
        if entry.kind is Kind.SHARD:
            if entry.teacher not in shards:
                shards[entry.teacher] = shards_here(cache, entry.teacher)
            if file.sha256 not in shards[entry.teacher]:
                missing.append(file)
        elif not path.is_file() or (entry.kind in NAMED_BY_DIGEST and path.stat().st_size != file.bytes):
            missing.append(file)
    return missing


def shards_here(cache: Cache, contract_id: str) -> set[str]:
    """Return the names of the shards of a teacher in a cache, whichever container holds them."""
    folder = cache.folder / "teachers" / contract_id
    return set(open_container(folder, CheckedFiles()).names()) if folder.is_dir() else set()
