"""The cache: corpora and vectors of any number of teachers in one directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache import model_note
from embedcache.codecs import Vectors
from embedcache.contract import CONTRACT_VERSION, Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.errors import (
    CacheFormatError,
    ContractMismatchError,
    CorruptCacheError,
    InputError,
    MissingVectorsError,
)
from embedcache.fsio import (
    make_directory,
    parsed_json,
    read_regular,
    read_sealed_json,
    refuse_specials,
    require_directory,
    spelled_json,
    write_json,
    write_sealed_json,
)
from embedcache.keys import key_array
from embedcache.store import FolderShards, LmdbShards, ShardStore
from embedcache.store.containers.choose import open_container
from embedcache.store.digests import CHECKED, FileNotes
from embedcache.teacher.token_table import TokenTable, read_stored

if TYPE_CHECKING:
    from embedcache.build_report import BuildSummary

CACHE_VERSION = 2

_MEND_TEACHER = "'embedcache repair' writes it anew; vectors are kept"
_CONTRACT_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"\w[\w.-]*")
# Numbers of a contract that Arrow, and the machine, can still work with.
_LARGEST_NUMBER = (1 << 31) - 1


CACHE_MARKER = {"format": "embedcache", "version": CACHE_VERSION}
"""The content of ``cache.json``, beside its seal."""


REMOTE_MARKER = "embedcache-remote.json"
"""The file that makes a folder a remote, which is no cache."""


@dataclass(frozen=True)
class CachedTeacher:
    """A teacher that a cache holds vectors of.

    Attributes:
        name: the short name it is listed under in this cache.
        contract: what determines its vectors.
        origin: where its model came from: ``spec``, ``model_id``, ``revision``, ``licence``; informative.
    """

    name: str
    contract: Contract
    origin: dict[str, str]


class Cache:
    """A cache directory.

    Args:
        folder: the directory.

    Raises:
        MissingInputError: if it does not exist.
        CacheFormatError: if it is no cache, or was written by a newer version of embedcache.
    """

    last_build: BuildSummary | None = None
    """What the build that returned this object did; None where the cache was only opened."""

    def __init__(self, folder: str | Path) -> None:
        path = Path(folder).expanduser()
        if path.is_file():
            raise CacheFormatError(f"{path} is a file, and a cache is a folder: give the folder")
        self.folder = require_directory(path, "cache")
        self._looked_up: dict[str, ShardStore] = {}
        marker = self.folder / "cache.json"
        try:
            value = read_sealed_json(marker)
        except FileNotFoundError:
            refuse_remote(self.folder)
            raise CacheFormatError(
                f"{self.folder} is no cache: it has no cache.json; build one with "
                f"'embedcache build CORPUS --teacher NAME --cache {self.folder}'"
            ) from None
        except (OSError, ValueError) as error:
            raise CacheFormatError(
                f"{marker} is damaged ({error}): 'embedcache repair' writes it anew"
            ) from error
        version = value.get("version")
        if version != CACHE_VERSION:
            newer = isinstance(version, int) and version > CACHE_VERSION
            raise CacheFormatError(
                f"{self.folder} has format version {repr(version)[:40]}, this embedcache reads version "
                f"{CACHE_VERSION}: {'upgrade embedcache' if newer else 'build it again in a new folder'}"
            )
        if value != CACHE_MARKER:
            raise CacheFormatError(
                f"{marker} is not as embedcache writes it: 'embedcache repair' writes it anew"
            )
        refuse_specials(self.folder)

    @classmethod
    def create(cls, folder: str | Path) -> Cache:
        """Open the cache at ``folder``, creating it where there is nothing yet.

        Raises:
            CacheFormatError: if the folder holds other things.
            StorageError: if it cannot be written.
        """
        path = Path(folder).expanduser()
        if not (path / "cache.json").exists():
            make_directory(path)
            refuse_remote(path)
            others = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
            # Another builder may have made the cache since it was looked for.
            if others and not (path / "cache.json").exists():
                raise CacheFormatError(
                    f"{path} is no cache and not empty (it holds {', '.join(others[:5])}): "
                    "give an empty or new folder"
                )
            if not others:
                write_sealed_json(path / "cache.json", CACHE_MARKER)
        return cls(path)

    @property
    def corpora_folder(self) -> Path:
        """Where the corpora lie."""
        return self.folder / "corpora"

    @property
    def derived_folder(self) -> Path:
        """Where rebuildable files lie; it can be deleted at any time."""
        return self.folder / "derived"

    def corpus_names(self) -> list[str]:
        """Return the names of all corpora, sorted; that they can be read is not checked.

        Folders whose names no corpus can have are not corpora; ``embedcache verify`` tells of them.
        """
        names = (path.parent.name for path in self.corpora_folder.glob("*/corpus.json"))
        return sorted(name for name in names if _NAME.fullmatch(name))

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
            found = (
                f"several corpora ({', '.join(names)}): choose one with --corpus" if names else "no corpus"
            )
            raise InputError(f"the cache {self.folder} holds {found}")
        if name not in names:
            raise InputError(f"no corpus {name!r} in {self.folder}: it holds {', '.join(names) or 'none'}")
        return Corpus(self.corpora_folder / name)

    def teacher_folder(self, contract: Contract) -> Path:
        """Return the folder of everything that belongs to a contract."""
        return self.folder / "teachers" / contract.id

    def teachers(self) -> list[CachedTeacher]:
        """Return all teachers, by name.

        Files whose names no teacher can have name none; ``embedcache verify`` tells of them.

        Raises:
            CorruptCacheError: if a teacher's folder is not named by its contract, or a file of it is damaged.
        """
        found = []
        for path in sorted((self.folder / "teachers").glob("*/contract.json")):
            if not _CONTRACT_ID.fullmatch(path.parent.name):
                continue
            contract = read_contract(path)
            names = sorted((path.parent / "names").glob("*.json"))
            found += [
                CachedTeacher(name.stem, contract, read_origin(name))
                for name in names
                if _NAME.fullmatch(name.stem)
            ]
        return sorted(found, key=lambda teacher: teacher.name)

    def teacher(self, name: str | None = None) -> CachedTeacher:
        """Return the teacher called ``name`` (or whose contract id starts so), or the only one there is.

        Its own logits and projections beside it do not make it one of several.

        Raises:
            InputError: if there is no such teacher, or several and no name was given.
        """
        teachers = self.teachers()
        if name is None:
            for some in (teachers, [one for one in teachers if one.contract.output == "embedding"]):
                if len({teacher.contract for teacher in some}) == 1:
                    return some[0]
            names = ", ".join(teacher.name for teacher in teachers)
            found = f"several teachers ({names}): choose one with --teacher" if teachers else "no teacher"
            raise InputError(f"the cache {self.folder} holds {found}")
        matches = [t for t in teachers if t.name == name] or [
            t for t in teachers if len(name) >= 6 and t.contract.id.startswith(name)
        ]
        if not matches:
            names = ", ".join(teacher.name for teacher in teachers)
            raise InputError(f"no teacher {name!r} in {self.folder}: it holds {names or 'none'}")
        if len({teacher.contract for teacher in matches}) > 1:
            raise InputError(
                f"two teachers are called {name!r} in {self.folder}: choose by contract id, "
                + " or ".join(teacher.contract.id[:12] for teacher in matches)
            )
        return matches[0]

    def refuse_other_contract(self, name: str, contract: Contract) -> None:
        """Refuse ``name`` where it can be no teacher's, or is another's.

        Raises:
            InputError: if the name can be none.
            ContractMismatchError: if it belongs to another contract; it names the fields that differ.
        """
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot name a teacher: use letters, digits, '.', '_' and '-'; choose one with "
                "--teacher-name"
            )
        for teacher in self.teachers():
            if teacher.name == name and teacher.contract != contract:
                differences = teacher.contract.differences(contract)
                raise ContractMismatchError(
                    f"the cache holds {name!r} with another contract ({describe_differences(differences)}): "
                    "give the old settings, or keep both with --teacher-name OTHER",
                    differences,
                )

    def register_teacher(self, name: str, contract: Contract, origin: dict[str, str]) -> CachedTeacher:
        """Give ``contract`` a home in this cache under ``name``; harmless where it has one.

        Raises:
            InputError, ContractMismatchError: as :meth:`refuse_other_contract`.
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
        """Note where a teacher's model can be loaded from on this machine; never shared."""
        model_note.write(self.derived_folder, contract.id, source)

    def model_source(self, teacher: CachedTeacher) -> str:
        """Return what to load ``teacher``'s model from: the noted place, else what it was built as."""
        if (source := model_note.read(self.derived_folder, teacher.contract.id)) is not None:
            return source
        revision = teacher.origin.get("revision")
        spec = teacher.origin.get("spec", teacher.name)
        return f"{spec}@{revision}" if revision and "@" not in spec else spec

    def store(self, contract: Contract, codec: str | None = None, kind: str | None = None) -> ShardStore:
        """Return the store of a contract's vectors.

        Args:
            contract: the contract.
            codec: how new vectors are stored; default: as those that are there, else ``float16``.
            kind: ``arrow`` or ``lmdb``; default: the kind that is there, else ``arrow``.

        Raises:
            InputError: if the vectors are stored in another kind than asked for, or in both.
            ContractMismatchError, CorruptCacheError: as :class:`ShardStore`.
        """
        folder = self.teacher_folder(contract)
        index = self.derived_folder / "index" / contract.id
        notes = FileNotes(index / CHECKED)
        container = open_container(folder, notes, kind)
        return ShardStore(container, contract, codec, codebooks=folder / "codebooks", index=(index, notes))

    def container(self, contract: Contract) -> FolderShards | LmdbShards:
        """Return where the shards of a contract lie; none is opened. Errors as :meth:`store`."""
        notes = FileNotes(self.derived_folder / "index" / contract.id / CHECKED)
        return open_container(self.teacher_folder(contract), notes)

    def token_table(self, teacher: CachedTeacher) -> TokenTable:
        """Return a teacher's token embeddings; errors as :func:`read_stored`."""
        source = self.model_source(teacher)
        return read_stored(self.folder, teacher.name, teacher.contract, source)

    def lookup(self, texts: Sequence[str], teacher: str | None = None) -> Vectors:
        """Return the cached vectors of ``texts``, float32 of shape (n, d), in order.

        Args:
            texts: the texts, exactly as they were built.
            teacher: name or contract id; may be left out where the cache holds one teacher.

        Raises:
            MissingVectorsError: if texts are not in the cache; it names them.
            InputError: if the teacher is not in the cache.
        """
        store = self._current_store(self.teacher(teacher).contract)
        positions = store.locate(key_array(texts))
        missing = np.flatnonzero(positions < 0)
        if len(missing):
            shown = ", ".join(repr(texts[i][:60]) for i in missing[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise MissingVectorsError(
                f"{len(missing)} of {len(texts)} texts are not in the cache: {shown}{more}; build them first"
            )
        return store.vectors(positions)

    def _current_store(self, contract: Contract) -> ShardStore:
        """Return the store of a contract, opened again only where its shards are others than last time."""
        store = self._looked_up.get(contract.id)
        if store is None or not store.is_current:
            store = self._looked_up[contract.id] = self.store(contract)
        return store


def refuse_remote(folder: Path) -> None:
    """Raise :class:`CacheFormatError` for a folder that is a remote, saying what to do with one."""
    if (folder / REMOTE_MARKER).is_file():
        raise CacheFormatError(
            f"{folder} is a remote, not a cache: pull from it into a cache with "
            f"'embedcache pull {folder} --cache DIR', which checks every byte, or list what it has with "
            f"'embedcache remote ls {folder}'"
        )


def read_contract(path: Path) -> Contract:
    """Return the contract in ``contract.json`` of a teacher's folder.

    Raises:
        CorruptCacheError: if a byte of it is not as it was written, or it is another teacher's.
    """
    try:
        data = read_regular(path)
        contract = Contract.from_json(parsed_json(data))
        as_written = contract.id == path.parent.name and data == spelled_json(contract.to_json())
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({str(error)[:200]}): {_MEND_TEACHER}") from error
    if not as_written:
        raise CorruptCacheError(
            f"{path} does not match its folder's name: it was changed or copied into the wrong place; "
            f"{_MEND_TEACHER}"
        )
    if contract.version != CONTRACT_VERSION:
        raise CorruptCacheError(
            f"{path} has version {str(contract.version)[:20]}, this embedcache reads contracts of version "
            f"{CONTRACT_VERSION}: upgrade embedcache, or 'embedcache rm' the teacher"
        )
    numbers = (contract.dimension - 1, contract.max_length, contract.truncate_dim or 0)
    if not all(0 <= number < _LARGEST_NUMBER for number in numbers):
        raise CorruptCacheError(
            f"{path} tells of a teacher of {str(contract.dimension)[:20]} dimensions that sees "
            f"{str(contract.max_length)[:20]} tokens: it was not written by embedcache; delete its folder"
        )
    return contract


def read_origin(path: Path) -> dict[str, str]:
    """Return where a teacher came from, as one of its names' files says.

    Raises:
        CorruptCacheError: if the file is damaged.
    """
    try:
        origin = read_sealed_json(path)
        if not all(isinstance(text, str) for text in origin.values()):
            raise ValueError("it holds something else than text")
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{path} is damaged ({error}): {_MEND_TEACHER}") from error
    return origin
