"""Compare a cache with a remote: files that only one of them has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.progress import Meter, OnCheck
from embedcache.share.pulling.plan import open_if_there
from embedcache.share.pushing.copies import original_on_remote
from embedcache.share.pushing.namesakes import difference_notes
from embedcache.share.pushing.news import only_news
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import select_files
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.sizes import counted

TEACHER, CORPUS = "teacher", "corpus"


@dataclass(frozen=True)
class DifferenceLine:
    """The difference between cache and remote in one teacher or corpus.

    Attributes:
        kind: ``teacher`` or ``corpus``.
        name: what it is called; of a teacher without a name, how its contract's id begins.
        id: of a teacher, its contract's; empty for a corpus.
        remote_files, remote_rows, remote_bytes: what the remote has and the cache lacks.
        cache_files, cache_rows, cache_bytes: what the cache has and the remote lacks.
        both_files: what both have.
    """

    kind: str
    name: str
    id: str
    remote_files: int
    remote_rows: int
    remote_bytes: int
    cache_files: int
    cache_rows: int
    cache_bytes: int
    both_files: int


@dataclass(frozen=True)
class RemoteDifference:
    """The difference between a cache and a remote.

    Attributes:
        remote: where.
        lines: teachers and corpora, those included that do not differ.
        told: notes: corpora that share a line, shards of the cache that count in none.
    """

    remote: str
    lines: tuple[DifferenceLine, ...]
    told: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether both have the same files."""
        return not any(line.remote_files or line.cache_files for line in self.lines)

    def to_json(self) -> dict[str, object]:
        """Return the difference as a JSON object."""
        return {**asdict(self), "same": self.is_same}


def compare_with_remote(
    cache: Cache | str | Path,
    remote: str,
    *,
    skip_manifests: Collection[str] = (),
    on_progress: OnCheck | None = None,
) -> RemoteDifference:
    """Compare the files of ``cache`` and of ``remote``, a name or a URL, as a pull and a push would.

    Nothing is transferred but row indexes, where only those tell whether a push would leave a shard out.

    Args:
        cache: the cache or its folder; where there is none yet, it has nothing.
        remote: the remote.
        skip_manifests: leave out manifests whose names begin with these six digits or more.
        on_progress: called as row indexes are read.

    Raises:
        CacheFormatError: if the folder is no cache.
        CorruptCacheError: if a file of it is damaged.
        RemoteError: if the remote cannot be reached, or a manifest is refused.
        StorageError: if there is no room for row indexes.
    """
    opened = open_if_there(cache)
    source = Remote(location_of(remote))
    source.require()
    stock = _stock(source, opened, skip_manifests)
    counted_files, told = _compared(opened, source, stock, Meter(on_progress))
    cache_files = {(file.path, file.sha256): file for file in counted_files}
    remote_files = {(file.path, file.sha256): file for file in stock}
    teachers = [] if opened is None else opened.teachers()
    cache_names = {teacher.contract.id: teacher.name for teacher in reversed(teachers)}
    remote_names = {contract: min(names, default="") for contract, names in stock.teacher_names.items()}
    names_of = {**remote_names, **cache_names}
    here, there = _by_unit(cache_files), _by_unit(remote_files)
    return RemoteDifference(
        source.where,
        tuple(
            _line(*unit, names_of, here.get(unit, {}), there.get(unit, {}))
            for unit in sorted(here.keys() | there.keys())
        ),
        told,
    )


def _stock(source: Remote, cache: Cache | None, skip_manifests: Collection[str]) -> Stock:
    """Return the files of a remote.

    Raises:
        InputError: if there is no manifest to leave out.
        RemoteError: if the remote cannot be reached, or a manifest is refused.
    """
    survey = source.survey(cache, skip=skip_manifests)
    survey.require_all(source.where, lambda name: f"compare without it, with --skip-manifest {name},")
    return Stock(survey.manifests)


def _compared(
    cache: Cache | None, remote: Remote, stock: Stock, meter: Meter
) -> tuple[list[SharedFile], tuple[str, ...]]:
    """Return the files of a cache that count, and notes on the others."""
    if cache is None or not (cache.teachers() or cache.corpus_names()):
        return [], ()
    whole = select_files(cache)
    reduced, _ = only_news(whole, RemoteState(remote, cache), cache, meter)
    to_push = {local.file.path for local in reduced.files}
    files: list[SharedFile] = []
    left_out = 0
    for local in whole.files:
        if (original := original_on_remote(stock, local)) is not None:
            # A copy that a pull has converted stands for its original.
            files.append(original)
        elif local.file.path in to_push:
            files.append(local.file)
        else:
            left_out += 1
    told = difference_notes(remote.where, stock.manifests, whole.corpora)
    if left_out:
        one = left_out == 1
        told.append(
            f"{counted(left_out, 'shard')} here that {remote.where} has all vectors of already "
            f"{'is' if one else 'are'} not counted: no push sends {'it' if one else 'them'}"
        )
    return files, tuple(told)


_Files = Mapping[tuple[str, str], SharedFile]


def _unit(file: SharedFile) -> tuple[str, str]:
    """Return what a file is part of."""
    return (TEACHER, file.entry.teacher) if file.entry.teacher else (CORPUS, file.entry.corpus)


def _by_unit(files: _Files) -> dict[tuple[str, str], _Files]:
    units: dict[tuple[str, str], dict[tuple[str, str], SharedFile]] = {}
    for key, file in files.items():
        units.setdefault(_unit(file), {})[key] = file
    return dict(units)


def _line(kind: str, name: str, called: Mapping[str, str], here: _Files, there: _Files) -> DifferenceLine:
    remote, cache = (
        [file for key, file in ours.items() if key not in theirs]
        for ours, theirs in ((there, here), (here, there))
    )
    return DifferenceLine(
        kind,
        (called.get(name) or name[:12]) if kind == TEACHER else name,
        name if kind == TEACHER else "",
        len(remote),
        _rows(remote),
        _bytes(remote),
        len(cache),
        _rows(cache),
        _bytes(cache),
        len(here.keys() & there.keys()),
    )


def _rows(files: Iterable[SharedFile]) -> int:
    return sum(file.rows for file in files)


def _bytes(files: Iterable[SharedFile]) -> int:
    return sum(file.bytes for file in files)
