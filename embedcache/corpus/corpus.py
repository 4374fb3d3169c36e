"""A stored corpus: an ordered, named list of rows, kept inside the cache so that targets always match.

``corpora/<name>/corpus.json`` describes it and is written last; ``part-00000.arrow`` … hold the rows.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import (
    TEMPORARY_PREFIX,
    canonical_json,
    commit,
    explain_os_error,
    fsync_directory,
    make_directory,
    temporary_sibling,
    write_json,
)
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, key_array

if TYPE_CHECKING:
    import pyarrow as pa

CORPUS_VERSION = 1
PART_ROWS = 65536
ORIGINAL = "original"


def check_name(name: str) -> str:
    """Return ``name`` if it can name a corpus, else raise :class:`InputError`."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"{name!r} cannot name a corpus: use up to 100 letters, digits, '.', '_' and '-'; "
            "choose one with --name"
        )
    return name


@dataclass(frozen=True)
class CorpusInfo:
    """What ``corpus.json`` says.

    Attributes:
        name: the corpus's name.
        rows: number of rows.
        digest: sha256 over every row's text, id and label, in order: the corpus's identity.
        views: names of the stored views.
        has_ids: whether rows carry ids.
        has_labels: whether rows carry labels.
        skipped: reason -> number of source rows that were left out.
    """

    name: str
    rows: int
    digest: str
    views: tuple[str, ...]
    has_ids: bool
    has_labels: bool
    skipped: dict[str, int]

    def to_json(self) -> dict[str, object]:
        """Return the content of ``corpus.json``."""
        return {
            "version": CORPUS_VERSION,
            "name": self.name,
            "rows": self.rows,
            "digest": self.digest,
            "views": list(self.views),
            "has_ids": self.has_ids,
            "has_labels": self.has_labels,
            "skipped": self.skipped,
        }


class Corpus:
    """A corpus inside a cache.

    Args:
        folder: ``corpora/<name>`` of a cache.

    Raises:
        CorruptCacheError: if its description is damaged or parts are missing.
        CacheFormatError: if a newer version of embedcache wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "corpus.json"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value["version"] > CORPUS_VERSION:
                raise CacheFormatError(
                    f"{path} has format version {value['version']}, this embedcache reads up to "
                    f"{CORPUS_VERSION}: upgrade embedcache"
                )
            self.info = CorpusInfo(
                name=str(value["name"]),
                rows=int(value["rows"]),
                digest=str(value["digest"]),
                views=tuple(value["views"]),
                has_ids=bool(value["has_ids"]),
                has_labels=bool(value["has_labels"]),
                skipped={str(k): int(v) for k, v in value["skipped"].items()},
            )
        except CacheFormatError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptCacheError(
                f"corpus description {path} is damaged ({type(error).__name__}: {error}): "
                "delete the folder and build the corpus again; its vectors are kept"
            ) from error

    @property
    def name(self) -> str:
        """The corpus's name."""
        return self.info.name

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.info.rows

    @cached_property
    def _parts(self) -> list[pa.RecordBatch]:
        import pyarrow as pa

        parts = []
        for number in range((self.info.rows + PART_ROWS - 1) // PART_ROWS):
            path = self.folder / _part_name(number)
            expected = min(PART_ROWS, self.info.rows - number * PART_ROWS)
            try:
                part = pa.ipc.open_file(pa.memory_map(str(path), "r")).get_batch(0)
                # Reads every text once; offsets that lead outside the file would end the process instead.
                part.validate(full=True)
                self._check_columns(part)
                if part.num_rows != expected:
                    raise ValueError(f"{part.num_rows} rows, expected {expected}")
            except (pa.ArrowException, OSError, ValueError) as error:
                raise CorruptCacheError(
                    f"corpus part {path} is damaged ({error}): delete the folder {self.folder} and build the "
                    "corpus again; its vectors are kept"
                ) from error
            parts.append(part)
        return parts

    def _check_columns(self, part: pa.RecordBatch) -> None:
        import pyarrow as pa

        wanted = {"row": pa.int64(), "key": pa.binary(KEY_BYTES), ORIGINAL: pa.large_string()}
        if self.info.has_ids:
            wanted["id"] = pa.string()
        found = dict(zip(part.schema.names, part.schema.types, strict=True))
        has_labels = found.pop("label", None) is not None
        if found != wanted or has_labels != self.info.has_labels:
            raise ValueError(f"columns {part.schema.names}, not of the names and types expected")
        if any(column.null_count for column in part.columns):
            raise ValueError("gaps in its columns")

    def keys(self) -> KeyArray:
        """Return the key of every row's original text, dtype ``V16``, shape (rows,)."""
        columns = [part.column("key") for part in self._parts]
        arrays = [
            np.frombuffer(c.buffers()[1], dtype=KEY_DTYPE, count=len(c), offset=c.offset * KEY_BYTES)
            for c in columns
        ]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=KEY_DTYPE)

    def texts(self, rows: NDArray[np.int64] | None = None) -> list[str]:
        """Return the original texts of ``rows`` (default: all), in the order asked."""
        return self._values(ORIGINAL, rows)

    def labels(self, rows: NDArray[np.int64] | None = None) -> list[Any]:
        """Return the labels of ``rows`` (default: all).

        Raises:
            InputError: if the corpus was built without labels.
        """
        if not self.info.has_labels:
            raise InputError(f"corpus {self.name!r} has no labels: build it with --label-column")
        return self._values("label", rows)

    def _values(self, column: str, rows: NDArray[np.int64] | None) -> list[Any]:
        import pyarrow as pa

        columns = [part.column(column) for part in self._parts]
        if rows is None:
            return [value for one in columns for value in one.to_pylist()]
        # Part by part: taking from all parts at once would first copy the whole column into one piece.
        rows = np.asarray(rows, dtype=np.int64)
        if not len(rows):
            return []
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} asked for, of {len(self)}")
        values: list[Any] = [None] * len(rows)
        order = np.argsort(rows // PART_ROWS, kind="stable")
        numbers, starts = np.unique(rows[order] // PART_ROWS, return_index=True)
        for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
            found = columns[number].take(pa.array(rows[places] - number * PART_ROWS)).to_pylist()
            for place, value in zip(places, found, strict=True):
                values[place] = value
        return values

    def iter_texts(self) -> Iterator[list[str]]:
        """Yield all original texts in order, a part at a time."""
        for part in self._parts:
            yield part.column(ORIGINAL).to_pylist()


def _part_name(number: int) -> str:
    return f"part-{number:05d}.arrow"


def store_corpus(
    corpora: Path, name: str, batches: Iterable[RowBatch], report: ReadReport, *, replace: bool = False
) -> tuple[Corpus, bool]:
    """Read ``batches`` into ``corpora/<name>``.

    Args:
        corpora: the cache's folder of corpora.
        name: the corpus's name.
        batches: the rows, in order.
        report: counts what the reader skipped; complete once ``batches`` is exhausted.
        replace: whether a corpus of the same name with other rows may be replaced.

    Returns:
        The corpus, and whether it was already there with the same rows.

    Raises:
        InputError: if the name is taken by other rows and ``replace`` is off, or ids are not unique.
        StorageError: if the cache cannot be written.
    """
    check_name(name)
    target = make_directory(corpora) / name
    staging = corpora / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{name}"
    make_directory(staging)
    try:
        info = _write_parts(staging, name, batches, report)
        write_json(staging / "corpus.json", info.to_json())
        if target.exists():
            there = Corpus(target)
            if there.info.digest == info.digest:
                return there, True
            if not replace:
                raise InputError(
                    f"the cache holds another corpus called {name!r} ({there.info.rows} rows, digest "
                    f"{there.info.digest[:12]}; this one has {info.rows} rows, digest {info.digest[:12]}): "
                    "choose another --name, or replace it with --replace (vectors are kept)"
                )
            _replace(staging, target, info)
            return Corpus(target), False
        present = _move(staging, target, info)
        return Corpus(target), present
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, target: Path, info: CorpusInfo) -> None:
    """Make ``staging`` appear as ``target``; the old one is deleted last, and comes back if that fails."""
    old = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-old-{target.name}")
    try:
        target.rename(old)
        _move(staging, target, info)
    except BaseException as error:
        if old.exists() and not target.exists():
            old.rename(target)
        if isinstance(error, OSError):
            raise explain_os_error(error, target) from error
        raise
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _move(staging: Path, target: Path, info: CorpusInfo) -> bool:
    """Make ``staging`` appear as ``target``; return whether another build did so first with the same rows."""
    try:
        staging.rename(target)
        fsync_directory(target.parent)
    except OSError as error:
        if not target.is_dir():
            raise explain_os_error(error, target) from error
        if Corpus(target).info.digest == info.digest:
            return True
        raise StorageError(
            f"another build stored a corpus called {target.name!r} with other rows at the same moment: "
            "run the command again with another --name"
        ) from error
    return False


def _write_parts(folder: Path, name: str, batches: Iterable[RowBatch], report: ReadReport) -> CorpusInfo:
    # One digest a column, so that the identity does not depend on how the reader cut its batches.
    digests = {column: hashlib.sha256() for column in (ORIGINAL, "id", "label")}
    id_keys: list[KeyArray] = []
    pending = _Rows()
    rows = parts = 0
    has_ids = has_labels = False
    for batch in batches:
        keys = key_array(batch.texts)
        has_ids, has_labels = has_ids or batch.ids is not None, has_labels or batch.labels is not None
        digests[ORIGINAL].update(keys.tobytes())
        for column, values in (("id", batch.ids), ("label", batch.labels)):
            digests[column].update("".join(f"{value!r}\n" for value in values or ()).encode())
        id_keys.append(key_array(batch.ids or ()))
        pending.extend(batch, keys)
        rows += len(batch.texts)
        while len(pending.texts) >= PART_ROWS:
            pending.write(folder / _part_name(parts), parts * PART_ROWS)
            parts += 1
    if pending.texts:
        pending.write(folder / _part_name(parts), parts * PART_ROWS)
    _check_ids(np.concatenate(id_keys))
    whole = hashlib.sha256(canonical_json({column: digest.hexdigest() for column, digest in digests.items()}))
    return CorpusInfo(name, rows, whole.hexdigest(), (ORIGINAL,), has_ids, has_labels, dict(report.skipped))


def _check_ids(id_keys: KeyArray) -> None:
    repeated = len(id_keys) - len(KeyIndex(id_keys))
    if repeated:
        raise InputError(
            f"{repeated} of {len(id_keys)} ids stand more than once: ids must be unique; "
            "leave --id-column out or mend the data"
        )


class _Rows:
    """Rows waiting to fill a part."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.keys: list[KeyArray] = []
        self.ids: list[str] = []
        self.labels: list[Any] = []

    def extend(self, batch: RowBatch, keys: KeyArray) -> None:
        self.texts.extend(batch.texts)
        self.keys.append(keys)
        self.ids.extend(batch.ids or [])
        self.labels.extend(batch.labels or [])

    def write(self, path: Path, first_row: int) -> None:
        import pyarrow as pa

        count = min(PART_ROWS, len(self.texts))
        keys = np.concatenate(self.keys)
        columns: dict[str, Any] = {
            "row": pa.array(np.arange(first_row, first_row + count)),
            "key": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(KEY_BYTES), count, [None, pa.py_buffer(keys[:count].tobytes())]
            ),
            # 64-bit offsets: a part of very long lines may pass two gigabytes.
            ORIGINAL: pa.array(self.texts[:count], pa.large_string()),
        }
        if self.ids:
            columns["id"] = pa.array(self.ids[:count], pa.string())
        if self.labels:
            columns["label"] = pa.array(self.labels[:count])
        batch = pa.record_batch(columns)
        with temporary_sibling(path) as temporary:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            commit(temporary, path)
        self.keys = [keys[count:]]
        del self.texts[:count], self.ids[:count], self.labels[:count]
