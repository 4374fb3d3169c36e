"""Export of rows of a corpus with their vectors, to a file or folder that appears when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.exporting import automodel, tables
from embedcache.exporting.rows import rows_to_export
from embedcache.folders import folder_that_appears
from embedcache.fsio import commit, commit_new, temporary_sibling
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import open_cache

PARQUET, NPY, LANCE, AUTOMODEL = "parquet", "npy", "lance", "automodel"

_WRITERS = {PARQUET: tables.write_parquet, NPY: tables.write_npy, LANCE: tables.write_lance}
# Only a folder that holds nothing else is taken for an earlier export.
_NAMES = {
    PARQUET: frozenset[str](),
    NPY: frozenset({tables.VECTORS_FILE, tables.ROWS_FILE}),
    LANCE: tables.LANCE_NAMES,
    AUTOMODEL: automodel.NAMES,
}
FORMATS = tuple(_NAMES)
"""Names of the formats."""
_ENDINGS = {".parquet": PARQUET, ".lance": LANCE, "": NPY}


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        path: the file or folder.
        corpus, teacher: names.
        rows: rows written; for ``automodel`` distinct documents.
        missing: rows left out because they have no vector.
        bytes: size on disk.
    """

    path: Path
    corpus: str
    teacher: str
    rows: int
    missing: int
    bytes: int


def export(
    cache: Cache | str | Path,
    path: str | Path,
    *,
    to: str | None = None,
    corpus: str | None = None,
    view: str | None = None,
    teacher: str | None = None,
    queries: str | None = None,
    query_teacher: str | None = None,
    where: str | None = None,
    skip_missing: bool = False,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ExportResult:
    """Write rows of a corpus and their vectors to ``path``, which appears when it is complete.

    - ``parquet``: a file of ``row``, ``text``, ``id``, ``label`` and ``vector``, which is float32.
    - ``npy``: a folder of ``vectors.npy``, float32 of shape (n, d), and ``rows.parquet``, the other columns.
    - ``lance``: a Lance dataset of the columns of ``parquet``.
    - ``automodel``: a folder of ``queries.npy``, ``docs.npy``, ``index.json`` and ``manifest.json``, as the
      retrieval distillation of NVIDIA NeMo Automodel reads it: a row for each distinct text, float16 if all
      vectors are stored so, else float32.

    Args:
        cache: the cache or its folder.
        path: file or folder to write.
        to: ``parquet``, ``npy``, ``lance`` or ``automodel``; default: by the ending of ``path``:
            ``NAME.parquet``, ``NAME.lance``, and ``npy`` without an ending.
        corpus: name of the corpus; default: the only one.
        view: write this view of it, with the vectors of its texts; default: the corpus's own texts.
        teacher: name or contract id of the teacher; default: the only one.
        queries: corpus of the queries of ``automodel``; default: the rows that are its documents.
        query_teacher: teacher of the queries, if they have another prompt; default: ``teacher``.
        where: condition on rows of the corpus, as for ``embedcache.querying.select_rows``.
        skip_missing: leave out rows without a vector instead of raising.
        overwrite: replace an earlier export.
        progress: receiver of progress.

    Raises:
        InputError: if an argument is wrong, ``path`` exists, or no row is left.
        MissingVectorsError: if rows have no vector and ``skip_missing`` is off.
        MissingExtraError: if ``to`` is ``lance`` and the package ``pylance`` is not installed.
        StorageError: if ``path`` cannot be written; it is then as it was before.
        CorruptCacheError: if a file of the cache is damaged.
    """
    target, opened = Path(path).expanduser(), open_cache(cache)
    kind = _format(target, to)
    if kind != AUTOMODEL and (queries or query_teacher):
        raise InputError(
            f"queries and query_teacher are for to='{AUTOMODEL}', found {kind!r}: leave them out"
        )
    _check_target(target, kind, overwrite=overwrite)
    parts = [rows_to_export(opened, corpus, view, teacher, where, skip_missing=skip_missing)]
    if queries or query_teacher:
        source = (corpus, view, query_teacher, where)
        if queries:
            source = (queries, None, query_teacher or teacher, None)
        parts.append(rows_to_export(opened, *source, skip_missing=skip_missing))
    if kind == AUTOMODEL:
        parts = [part.distinct() for part in parts]
    progress.phase("export", sum(map(len, parts)))
    with _target_that_appears(target, kind, overwrite=overwrite) as draft:
        if kind == AUTOMODEL:
            automodel.write_automodel(parts[0], parts[-1], draft, progress)
        else:
            _WRITERS[kind](parts[0], draft, progress)
    rows, missing = parts[0], sum(part.missing for part in parts)
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    # The queries can be a hard link to the documents.
    size = sum({state.st_ino: state.st_size for state in (file.stat() for file in files)}.values())
    return ExportResult(target, rows.corpus.name, rows.teacher.name, len(rows), missing, size)


@contextmanager
def _target_that_appears(target: Path, kind: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the file or folder to write, which becomes ``target`` at the end."""
    if kind == PARQUET:
        with temporary_sibling(target) as temporary:
            yield temporary
            place(temporary, target, overwrite=overwrite)
    else:
        with folder_that_appears(target, overwrite=overwrite) as folder:
            yield folder


def place(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Make a finished file appear as ``target``.

    Raises:
        InputError: if ``target`` exists and ``overwrite`` is off.
    """
    if overwrite:
        commit(temporary, target)
    elif not commit_new(temporary, target):
        raise _exists(target)


def _format(target: Path, to: str | None) -> str:
    """Return the format of an export, by name or by the ending of its path."""
    kind = to or _ENDINGS.get(target.suffix.lower())
    if kind is None:
        raise InputError(
            f"{target.name!r}: expected NAME.parquet, NAME.lance or a folder's name without an ending. Give "
            "another path, or the format"
        )
    if kind not in FORMATS:
        raise InputError(f"to={kind!r}: expected one of {', '.join(FORMATS)}")
    return kind


def _check_target(target: Path, kind: str, *, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise _exists(target)
    names = {file.name for file in target.iterdir()} if target.is_dir() else set()
    if target.is_dir() == (kind == PARQUET) or not names <= _NAMES[kind]:
        raise InputError(
            f"{target} is not an earlier export to {kind} and is not replaced: give another path"
        )


def _exists(target: Path) -> InputError:
    return InputError(f"{target} exists: give another path, or replace it with --overwrite")
