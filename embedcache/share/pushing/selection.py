"""The files of a cache that a push selects, with their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache, CachedTeacher
from embedcache.check.verify.shards import open_without_codebook
from embedcache.conversions import Conversions, converted_from
from embedcache.corpus.corpus import DESCRIPTION, Corpus
from embedcache.corpus.view_record import RECIPE
from embedcache.derived import PROJECTION, is_derived, read_projection
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import file_state, read_regular, sha256_file
from embedcache.share.choice import Choice
from embedcache.share.remote.manifest import CorpusLine, SharedFile, TeacherLine
from embedcache.store.base import TAKEN_AS
from embedcache.store.containers import FolderShards, LmdbShards
from embedcache.token_table import TokenTable, table_path

if TYPE_CHECKING:
    import pyarrow as pa

_VERIFY = "'embedcache verify' tells more, 'embedcache repair' mends it"


@dataclass(frozen=True)
class PushChoice(Choice):
    """What a push sends: teachers by name or by contract id, corpora by name. By default it is all."""


EVERYTHING = PushChoice()
"""All that a cache has."""


@dataclass(frozen=True)
class LocalObject:
    """An object to be sent: a file of a cache, or a row index made of one.

    Attributes:
        sha256: of its bytes.
        bytes: how many there are.
        open: returns the file's bytes, mapped where they are many; to be called from one thread at a time.
        where: where it lies, for messages.
        derive: makes the object of the file's bytes; default: it is the file.
        is_checked: tells whether the file's digest was taken here before, and it is that file still.
    """

    sha256: str
    bytes: int
    open: Callable[[], pa.Buffer]
    where: str
    derive: Callable[[pa.Buffer], pa.Buffer] | None = None
    is_checked: Callable[[], bool] = lambda: False

    def read(self, data: pa.Buffer) -> pa.Buffer:
        """Return the object, once its digest is found right; ``data`` is what :attr:`open` has returned.

        Raises:
            CorruptCacheError: if it is not: nothing of it may be sent.
        """
        if self.derive is not None:
            data = self.derive(data)
        if data.size != self.bytes or hashlib.sha256(data).hexdigest() != self.sha256:
            raise CorruptCacheError(
                f"{self.where} is damaged (its bytes are not those of its digest) and was not sent: {_VERIFY}"
            )
        return data


@dataclass(frozen=True)
class LocalFile:
    """A file of a cache that is to be shared.

    Attributes:
        file: what a manifest says of it.
        open: returns its bytes, mapped where they are many; to be called from one thread at a time.
        where: where it lies, for messages.
        codec: of a shard, how its vectors are stored; else empty.
        copy_of: of a shard that a pull has converted here, the name of the one it was made of; else empty.
        says_copy_of: of a shard that says it is a copy, without a note here, the one it names; else empty.
        is_taken: whether it is a shard of rows that were taken from a remote.
        is_checked: tells whether its digest was taken here before, and it is that file still.
    """

    file: SharedFile
    open: Callable[[], pa.Buffer]
    where: str
    codec: str = ""
    copy_of: str = ""
    says_copy_of: str = ""
    is_taken: bool = False
    is_checked: Callable[[], bool] = lambda: False

    @property
    def object(self) -> LocalObject:
        """The object that it is on a remote."""
        return LocalObject(
            self.file.sha256, self.file.bytes, self.open, self.where, is_checked=self.is_checked
        )


@dataclass(frozen=True)
class Selection:
    """What is to be shared.

    Attributes:
        files: the files, by path.
        teachers: their teachers, by name.
        corpora: their corpora, by name.
    """

    files: tuple[LocalFile, ...]
    teachers: tuple[TeacherLine, ...]
    corpora: tuple[CorpusLine, ...]

    def without(self, paths: Collection[str]) -> Selection:
        """Return the same without the files at ``paths``; the rows of teachers are counted anew."""
        files = tuple(local for local in self.files if local.file.path not in paths)
        rows = dict.fromkeys((line.contract for line in self.teachers), 0)
        for local in files:
            if local.file.entry.teacher:
                rows[local.file.entry.teacher] += local.file.rows
        lines = tuple(replace(line, rows=rows[line.contract]) for line in self.teachers)
        return replace(self, files=files, teachers=lines)

    @property
    def shared(self) -> tuple[SharedFile, ...]:
        """What a manifest says of the files."""
        return tuple(local.file for local in self.files)


def select_files(cache: Cache, choice: PushChoice = EVERYTHING, *, text_licence: str = "") -> Selection:
    """Return the files of ``cache`` that are to be shared; shards are opened, but not hashed.

    Args:
        cache: the cache.
        choice: what is shared; default: all.
        text_licence: the licence of the texts, where one is declared.

    Raises:
        InputError: if a name is not in the cache, or nothing is left to share.
        CorruptCacheError, CacheFormatError: if a file is damaged or of a newer version.
    """
    known = cache.teachers()
    asked = map(cache.teacher, choice.teachers) if choice.teachers else known
    chosen = {teacher.contract.id: teacher for teacher in asked}
    files: list[LocalFile] = []
    teacher_lines, corpus_lines = [], []
    for contract_id, teacher in sorted(chosen.items()):
        named = [same for same in known if same.contract.id == contract_id]
        teacher_files = list(_teacher_files(cache, teacher, named))
        files += teacher_files
        teacher_lines.append(_teacher_line(teacher, named, teacher_files))
    for name in sorted(set(choice.corpora or cache.corpus_names())) if choice.text else ():
        corpus = cache.corpus(name)
        files += _corpus_files(cache, corpus)
        views = tuple(view.name for view in corpus.views())
        corpus_lines.append(CorpusLine(name, corpus.info.digest, len(corpus), views, text_licence))
    if not files:
        raise InputError(
            f"nothing to share in {cache.folder}: build something first, with 'embedcache build'"
        )
    return Selection(
        tuple(sorted(files, key=lambda local: local.file.path)), tuple(teacher_lines), tuple(corpus_lines)
    )


def _teacher_line(
    teacher: CachedTeacher, named: Sequence[CachedTeacher], files: Sequence[LocalFile]
) -> TeacherLine:
    origin = teacher.origin
    model = origin.get("model_id") or origin.get("spec", "")
    return TeacherLine(
        teacher.contract.id,
        tuple(one.name for one in named),
        sum(local.file.rows for local in files),
        # A folder of this machine says nothing to others, and perhaps too much.
        _printable("" if Path(model).is_absolute() else model),
        _printable(origin.get("licence", "")),
    )


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:200]


def _teacher_files(
    cache: Cache, teacher: CachedTeacher, named: Sequence[CachedTeacher]
) -> Iterator[LocalFile]:
    contract = teacher.contract
    inside, folder = f"teachers/{contract.id}", cache.teacher_folder(contract)
    yield _document(cache, f"{inside}/contract.json")
    for one in named:
        yield _document(cache, f"{inside}/names/{one.name}.json")
    if is_derived(contract):
        read_projection(cache, teacher)
        yield _mapped(cache, f"{inside}/{PROJECTION}")
    table = table_path(cache.folder, contract)
    if table.exists():
        TokenTable.read(table, contract)
        yield _mapped(cache, f"{inside}/{table.name}")
    container, conversions = cache.container(contract), Conversions(cache)
    codebooks = set()
    for name in container.names():
        source = conversions.source_of(name)
        data = _opened_shard(container, name)
        shard = open_without_codebook(data, name, container.where(name))
        if shard.header.contract != contract:
            raise CorruptCacheError(
                f"shard {shard.where} belongs to another teacher: {_VERIFY}, which moves it to its own"
            )
        codebooks |= {shard.header.codebook} - {None}
        file = SharedFile(f"{inside}/shards/{name}.arrow", name, data.size, len(shard))
        yield LocalFile(
            file,
            _shard_opener(container, name),
            container.where(name),
            shard.header.codec,
            source,
            "" if source else converted_from(shard),
            is_taken=TAKEN_AS in shard.header.provenance,
            is_checked=partial(container.is_checked, name),
        )
    for name in sorted(map(str, codebooks)):
        path = folder / "codebooks" / f"{name}.npy"
        if not path.exists():
            raise CorruptCacheError(f"{path} is missing, and shards cannot be read without it: {_VERIFY}")
        yield _named(cache, f"{inside}/codebooks/{name}.npy", name)


def _corpus_files(cache: Cache, corpus: Corpus) -> Iterator[LocalFile]:
    for one in (corpus, *corpus.views()):
        inside = one.folder.relative_to(cache.folder).as_posix()
        if missing := one.missing_parts():
            raise CorruptCacheError(f"{missing[0]} is missing: {_VERIFY}")
        for part in one.parts:
            local = _named(cache, f"{inside}/{part.file_name}", part.sha256)
            yield replace(local, file=replace(local.file, rows=part.rows))
        yield _document(cache, f"{inside}/{DESCRIPTION}")
        if one is not corpus:
            yield _document(cache, f"{inside}/{RECIPE}")


def _document(cache: Cache, path: str) -> LocalFile:
    """Return a small file as it is now; should it be replaced meanwhile, this is what is shared."""
    import pyarrow as pa

    try:
        data = read_regular(cache.folder / path)
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{cache.folder / path} cannot be read ({error}): {_VERIFY}") from error
    file = SharedFile(path, hashlib.sha256(data).hexdigest(), len(data))
    return LocalFile(file, lambda: pa.py_buffer(data), str(cache.folder / path))


def _named(cache: Cache, path: str, sha256: str) -> LocalFile:
    """Return a file that is called by its digest."""
    place = cache.folder / path
    return LocalFile(SharedFile(path, sha256, place.stat().st_size), _opener(place), str(place))


def _mapped(cache: Cache, path: str) -> LocalFile:
    """Return a large file whose digest is not in its name, and is taken now."""
    place = cache.folder / path
    state = file_state(place)
    local = _named(cache, path, sha256_file(place))
    return replace(local, is_checked=lambda: file_state(place) == state)


def _opener(path: Path) -> Callable[[], pa.Buffer]:
    def read() -> pa.Buffer:
        import pyarrow as pa

        try:
            with pa.memory_map(str(path), "r") as source:
                return source.read_buffer()
        except (OSError, pa.ArrowException) as error:
            raise CorruptCacheError(f"{path} cannot be read ({error}): {_VERIFY}") from error

    return read


def _shard_opener(container: FolderShards | LmdbShards, name: str) -> Callable[[], pa.Buffer]:
    return lambda: _opened_shard(container, name)


def _opened_shard(container: FolderShards | LmdbShards, name: str) -> pa.Buffer:
    """Return the bytes of a shard.

    Raises:
        CorruptCacheError: if they cannot be had; one that is not listed any more is no damage.
    """
    try:
        return container.open(name)
    except CorruptCacheError as error:
        if name in container.names():
            raise
        raise CorruptCacheError(
            f"shard {container.where(name)} was replaced meanwhile, as 'embedcache compact' does: run the "
            "same command again"
        ) from error
