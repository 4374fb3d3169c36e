"""Cache: corpora, and vectors of any number of teachers, in one directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache_documents import (
    CACHE_MARKER,
    IMPORTED,
    CachedTeacher,
    check_marker,
    find_derived,
    note_model,
    noted_compared,
    noted_model,
    read_contract,
    read_origin,
    refuse_remote,
)
from embedcache.codecs import Vectors
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import is_described
from embedcache.errors import CacheFormatError, ContractMismatchError, InputError, MissingVectorsError
from embedcache.fsio import (
    inside,
    list_folder,
    make_directory,
    refuse_links,
    require_directory,
    write_json,
    write_sealed_json,
)
from embedcache.keys import key_array, list_of_texts
from embedcache.lazy import load
from embedcache.scan import Scan
from embedcache.sizes import first_of
from embedcache.store import FolderShards, LmdbShards, ShardStore
from embedcache.store.checked import CHECKED, CheckedFiles
from embedcache.store.containers import open_container
from embedcache.store.index import StoreIndex
from embedcache.store.waiting import WaitingRows, find_rows
from embedcache.teacher.resolve import SERVED_PREFIX
from embedcache.teacher.token_table import TokenTable, read_stored

if TYPE_CHECKING:
    from embedcache.building.result import BuildResult
    from embedcache.teacher.lazy import LazyTeacher

__all__ = ["Cache", "CachedTeacher"]

_CONTRACT_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"\w[\w.-]*")


class Cache:
    """A cache directory.

    Args:
        folder: the directory.

    Raises:
        MissingInputError: if it does not exist.
        CacheFormatError: if it is not a cache of this version, or has links in it.
    """

    derived_folder: Path
    """Folder of derived files; it can be deleted at any time."""

    result: BuildResult | None = None
    """Result of the build that returned this object; None where the cache was only opened."""

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder).expanduser()
        self.folder = require_directory(path, "cache")
        self._stores: dict[str, ShardStore] = {}
        self._waiting: dict[str, WaitingRows] = {}
        self.encoders: dict[object, LazyTeacher] = {}  # that encode has used, by what was given to it
        self.lock = RLock()  # threads may share a cache
        check_marker(self.folder)
        # Everything below these is checked as it is opened.
        for name in ("corpora", "teachers"):
            refuse_links(inside(self.folder, name))
        self.derived_folder, self._scratch = find_derived(self.folder)

    def __reduce__(self) -> tuple[type[Cache], tuple[Path]]:
        """Have another process open the folder: without open files, models and ``result``."""
        return Cache, (self.folder.absolute(),)

    def __repr__(self) -> str:
        """Return folder, corpora and teachers; of many, the first."""
        names = {"corpora": self.corpus_names(), "teachers": [teacher.name for teacher in self.teachers()]}
        shown = (f"{what}: {first_of(dict.fromkeys(found))}" for what, found in names.items())
        return f"Cache({str(self.folder)!r}, {'; '.join(shown)})"

    def __fspath__(self) -> str:
        """Return the folder: a cache stands where a cache's folder is taken."""
        return str(self.folder)

    @classmethod
    def create(cls, folder: str | Path) -> Cache:
        """Open the cache at ``folder``, creating it if the folder is empty or missing.

        Raises:
            CacheFormatError: if the folder holds other things.
            StorageError: if it cannot be written.
        """
        path = Path(folder).expanduser()
        make_directory(path)
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        if not names:
            write_sealed_json(path / "cache.json", CACHE_MARKER)
        elif "cache.json" not in names:
            refuse_remote(path)
            raise CacheFormatError(
                f"{path} holds {', '.join(names[:5])} and no cache.json: give an empty or new folder"
            )
        return cls(path)

    @property
    def corpora_folder(self) -> Path:
        """Folder of the corpora."""
        return self.folder / "corpora"

    def corpus_names(self) -> list[str]:
        """Return the names of all corpora, sorted; that they can be read is not checked."""
        folder = self.corpora_folder
        return [name for name in list_folder(folder) if _NAME.fullmatch(name) and is_described(folder / name)]

    def corpora(self) -> list[Corpus]:
        """Return all corpora, by name."""
        return [Corpus(self.corpora_folder / name) for name in self.corpus_names()]

    def corpus(self, name: str | None = None) -> Corpus:
        """Return the corpus called ``name``, or the only one there is.

        Raises:
            InputError: if there is no such corpus, or several and no name was given.
        """
        names = self.corpus_names()
        if name is None and len(names) == 1:
            name = names[0]
        if name is None:
            found = f"several corpora ({', '.join(names)}): name one" if names else "no corpus"
            raise InputError(f"the cache {self.folder} holds {found}")
        if name not in names:
            raise InputError(f"no corpus {name!r} in {self.folder}: it holds {', '.join(names) or 'none'}")
        return Corpus(self.corpora_folder / name)

    def teacher_folder(self, contract: Contract) -> Path:
        """Return the folder of everything that belongs to a contract.

        Raises:
            CacheFormatError: if a folder in it is a symbolic link.
        """
        folder = inside(self.folder, "teachers", contract.id)
        for name in ("names", "shards", "codebooks"):
            inside(folder, name)
        return folder

    def teachers(self) -> list[CachedTeacher]:
        """Return all teachers, by name.

        Raises:
            CorruptCacheError: if a teacher's folder is not named by its contract, or a file of it is damaged.
        """
        found = []
        for contract_id in filter(_CONTRACT_ID.fullmatch, list_folder(self.folder / "teachers")):
            folder = self.folder / "teachers" / contract_id
            if "contract.json" not in list_folder(folder):
                continue
            contract = read_contract(folder / "contract.json")
            files = list_folder(self.teacher_folder(contract) / "names")
            names = [file[:-5] for file in files if file.endswith(".json")]
            found += [
                CachedTeacher(name, contract, read_origin(folder / "names" / f"{name}.json"))
                for name in filter(_NAME.fullmatch, names)
            ]
        return sorted(found, key=lambda teacher: teacher.name)

    def teacher(self, name: str | None = None) -> CachedTeacher:
        """Return the teacher called ``name`` (or whose contract id starts so), or the only one there is.

        Logits and projections of the only teacher are ignored.

        Raises:
            InputError: if there is no such teacher, or several and no name was given.
        """
        teachers = self.teachers()
        names = ", ".join(teacher.name for teacher in teachers)
        if name is None:
            for some in (teachers, [one for one in teachers if one.contract.output == "embedding"]):
                if len({teacher.contract for teacher in some}) == 1:
                    return some[0]
            found = f"several teachers ({names}): name one" if teachers else "no teacher"
            raise InputError(f"the cache {self.folder} holds {found}")
        matches = [t for t in teachers if t.name == name] or [
            t for t in teachers if len(name) >= 6 and t.contract.id.startswith(name)
        ]
        if not matches:
            raise InputError(f"no teacher {name!r} in {self.folder}: it holds {names or 'none'}")
        if len({teacher.contract for teacher in matches}) > 1:
            raise InputError(
                f"two teachers are called {name!r} in {self.folder}: choose by contract id, "
                + " or ".join(teacher.contract.id[:12] for teacher in matches)
            )
        return matches[0]

    def refuse_other_contract(self, name: str, contract: Contract) -> None:
        """Refuse ``name`` for a teacher of ``contract`` if it is invalid or taken.

        Raises:
            InputError: if no teacher can be called so.
            ContractMismatchError: if it belongs to another contract; it names the fields that differ.
        """
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot name a teacher: use letters, digits, '.', '_' and '-'; give another name "
                "(--teacher-name)"
            )
        for teacher in self.teachers():
            if teacher.name == name and teacher.contract != contract:
                differences = teacher.contract.differences(contract)
                raise ContractMismatchError(
                    f"the cache holds {name!r} with another contract ({describe_differences(differences)}): "
                    "give the old settings, another name (--teacher-name), or remove the old one first "
                    f"('embedcache rm teacher {name}')",
                    differences,
                )

    def register_teacher(self, name: str, contract: Contract, origin: dict[str, str]) -> CachedTeacher:
        """Add a teacher under ``name``; harmless if it is there.

        Raises:
            InputError, ContractMismatchError: as ``refuse_other_contract``.
            StorageError: if the cache cannot be written.
        """
        self.refuse_other_contract(name, contract)
        folder = self.teacher_folder(contract)
        if not (folder / "contract.json").exists():
            write_json(folder / "contract.json", contract.to_json())
        if not (folder / "names" / f"{name}.json").exists():
            write_sealed_json(folder / "names" / f"{name}.json", origin)
        return CachedTeacher(name, contract, origin)

    def remember_model(self, contract: Contract, source: str) -> None:
        """Note where a teacher's model lies on this machine; never shared."""
        note_model(self.derived_folder, contract.id, source)

    def model_source(self, teacher: CachedTeacher) -> str:
        """Return the source of ``teacher``'s model: the noted place, else the one it was built from."""
        if (source := noted_model(self.derived_folder, teacher.contract.id)) is not None:
            return source
        revision = teacher.origin.get("revision")
        # The pusher of a teacher chose its server. Texts go only to one that this machine has built with.
        spec = teacher.origin.get("spec", teacher.name).removeprefix(SERVED_PREFIX)
        return f"{spec}@{revision}" if revision and "@" not in spec else spec

    def store(self, contract: Contract, codec: str | None = None, kind: str | None = None) -> ShardStore:
        """Return the store of a contract's vectors.

        Args:
            contract: the contract.
            codec: codec of new vectors; default: that of the shards, else ``float16``.
            kind: ``arrow`` or ``lmdb``; default: the kind that is there, else ``arrow``.

        Raises:
            InputError: if the vectors are stored in another kind than asked for, or in both.
            ContractMismatchError, CorruptCacheError: as ``ShardStore``.
        """
        folder, index = self.teacher_folder(contract), self._index_folder(contract)
        checked = self.checked_files(contract)
        container = open_container(folder, checked, kind)
        return ShardStore(
            container, contract, codec, codebooks=folder / "codebooks", index=StoreIndex(index, checked)
        )

    def container(self, contract: Contract) -> FolderShards | LmdbShards:
        """Return the container of a contract's shards; none is opened. Errors as ``store``."""
        return open_container(self.teacher_folder(contract), self.checked_files(contract))

    def checked_files(self, contract: Contract) -> CheckedFiles:
        """Return the note of files of a contract whose digest was taken on this machine."""
        return CheckedFiles(self._index_folder(contract) / CHECKED)

    def _index_folder(self, contract: Contract) -> Path:
        return inside(self.derived_folder, "index", contract.id)

    def unchecked(self, store: ShardStore) -> dict[str, int]:
        """Return the rows of imported shards that no deep examination has compared here, by shard name."""
        found = {one.name: len(one) for one in store.shards if IMPORTED in one.header.provenance}
        compared = noted_compared(self.folder, store.contract.id) if found else ()
        return {name: rows for name, rows in found.items() if name not in compared}

    def token_table(self, teacher: CachedTeacher) -> TokenTable:
        """Return a teacher's token embeddings; errors as ``read_stored``."""
        return read_stored(self.folder, teacher.name, teacher.contract, self.model_source(teacher))

    def lookup(self, texts: Iterable[str], teacher: str | None = None) -> Vectors:
        """Return the cached vectors of ``texts``, float32 of shape (n, d), in order.

        Args:
            texts: the texts, exactly as they were built.
            teacher: name or contract id; default: the only teacher.

        Raises:
            MissingVectorsError: if texts are not in the cache; it names them.
            InputError: if the teacher is not in the cache, or ``texts`` is a single string.
        """
        texts = list_of_texts(texts)
        is_there, vectors = self.find(texts, self.teacher(teacher).contract)
        if missing := np.flatnonzero(~is_there).tolist():
            shown = ", ".join(repr(texts[i][:60]) for i in missing[:3])
            raise MissingVectorsError(
                f"{len(missing)} of {len(texts)} texts are not in the cache (the first: {shown}); "
                "build them first, or call encode"
            )
        return vectors

    def find(self, texts: Sequence[str], contract: Contract) -> tuple[NDArray[np.bool_], Vectors]:
        """Return a mask of the texts with a vector, shape (n,), and their vectors, float32 (m, d)."""
        with self.lock:
            waiting = self.waiting(contract)
            waiting.refresh()  # first: another process may move rows from there into the store
            return find_rows(self.opened_store(contract), waiting, key_array(texts))

    def opened_store(self, contract: Contract) -> ShardStore:
        """Return the store of a contract, the same object as long as no other process adds to it."""
        store = self._stores.get(contract.id)
        if store is None or not store.is_current:
            store = self._stores[contract.id] = self.store(contract)
        return store

    def waiting(self, contract: Contract) -> WaitingRows:
        """Return the rows of a contract that wait to become a shard, as of the last ``refresh``."""
        if contract.id not in self._waiting:
            self._waiting[contract.id] = WaitingRows(self.derived_folder, contract)
        return self._waiting[contract.id]

    def encode(self, texts: Iterable[str], teacher: Any = None) -> Vectors:
        """Return vectors of ``texts``, float32 of shape (n, d), in order; encode what is missing.

        The teacher is loaded at the first missing text, and stays loaded. Texts that were missing join no
        corpus. Their vectors wait in ``derived/waiting`` until there are 1,024 of them, which become a shard;
        they stay until ``gc --unused``.

        Args:
            texts: the texts.
            teacher: name of a teacher in the cache, which is loaded as it was built; default: the only one.
                Or a teacher as ``embedcache.build`` takes it.

        Raises:
            InputError: if ``texts`` is a single string.
            TeacherError: if the teacher cannot be loaded. Other errors are those of ``embedcache.build``.
        """
        texts = list_of_texts(texts)
        if teacher is None or teacher in [one.name for one in self.teachers()]:
            with suppress(MissingVectorsError):
                return self.lookup(texts, teacher)
        vectors: Vectors = load("embedcache.building.encode:encode_texts")(self, texts, teacher)
        return vectors

    def scan(self, teacher: str | None = None, corpus: str | None = None, view: str | None = None) -> Scan:
        """Return the rows of a corpus with their vectors as a stream of Arrow batches, in order.

        polars, pandas, datasets and DuckDB read it; memory does not grow with the corpus.

        Args:
            teacher: name or contract id; default: the only teacher.
            corpus: name; default: the only corpus.
            view: view of the corpus whose texts are meant; default: the corpus's own.

        Returns:
            batches of ``text``, ``id``, ``label`` (where there are any) and ``vector`` (float32).

        Raises:
            InputError: if there is no such teacher, corpus or view.
            MissingVectorsError: while it is read, at a row without a vector.
        """
        texts = self.corpus(corpus)
        return Scan(texts.view(view) if view else texts, self.store(self.teacher(teacher).contract))

    def query(self, sql: str, **options: Any) -> Any:
        """Run one SELECT over the cache; see ``embedcache.query``."""
        return load("embedcache.querying:query")(self, sql, **options)

    def export(self, out: str | Path, **options: Any) -> Any:
        """Write rows and their vectors to files; see ``embedcache.export``."""
        return load("embedcache.exporting.export:export")(self, out, **options)
