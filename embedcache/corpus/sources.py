"""Sources of a corpus: files named by paths and globs, standard input, rows in memory; and their bytes.

Rows in memory are iterables of strings (a list, a generator, a pandas Series), iterables of dictionaries (a
Hugging Face dataset, streamed or not), tables or columns with the Arrow stream interface (pyarrow, polars,
pandas), and lazy frames of polars.
Libraries are recognised by their interfaces; none of them is imported.

The format follows the ending below the compression: ``rows.tsv.gz`` is a TSV file. Compression is recognised
by the first bytes, so a gzip file needs no ``.gz``.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

from embedcache.corpus.url_files import UrlFile, find_files, is_url
from embedcache.errors import InputError, MissingInputError


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows in memory.

    Attributes:
        read: gives a ``pyarrow.RecordBatchReader``, or an iterable of strings or of mappings.
        once: True if they can be read only once.
    """

    read: Callable[[], Any]
    once: bool = False

    def __str__(self) -> str:
        """Return their name in messages."""
        return "<memory>"


STDIN: Literal["-"] = "-"

FileSource: TypeAlias = Path | UrlFile | Literal["-"]
Source: TypeAlias = Path | UrlFile | Literal["-"] | MemoryRows

FORMATS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".text"),
    "jsonl": (".jsonl", ".ndjson"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
}
"""Format -> the endings that mean it, in lower case."""

MEMORY = "memory"
"""Format of rows in memory."""

_ENDINGS = {ending: name for name, endings in FORMATS.items() for ending in endings}
_COMPRESSIONS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}

# A zstd file may begin with a frame to skip, as those of pzstd do: 50 to 5F, then these.
_SKIPPABLE = b"\x2a\x4d\x18"

_CHUNK_BYTES, _URL_BYTES = 1 << 18, 1 << 23
_HUB = "hf://datasets/"
_ENTRIES_CHECKED = 1000
_EXPECTED = "expected paths, strings, dictionaries, a data frame, an Arrow table or a Hugging Face dataset"


def find_sources(given: object) -> list[Source]:
    """Return the sources that a caller of the Python interface means.

    A string or path is a file, a glob or ``-``. A list or tuple of strings names files if each of its first
    1,000 entries does: it is ``-``, exists, is a glob that matches, or looks like a path. If none does, its
    entries are texts. Anything else is rows in memory.

    Raises:
        MissingInputError: if a file is missing.
        InputError: if files and texts are mixed, or as ``expand_sources`` and ``memory_rows``.
    """
    if isinstance(given, (str, os.PathLike)):
        return [*expand_sources([given])]
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], (str, os.PathLike)):
        kinds = {_names_file(one): one for one in given[:_ENTRIES_CHECKED] if one is not None}
        if len(kinds) > 1:
            raise InputError(
                f"the sources mix files ({str(kinds[True])[:80]!r}) and texts ({str(kinds[False])[:80]!r}). "
                "Give one kind, or texts that look like files as [{'text': ...}, ...]"
            )
        if True in kinds:
            return [*expand_sources(given)]
    return [memory_rows(given)]


def _names_file(entry: object) -> bool:
    """Return whether an entry of a list of sources names a file, which may be missing."""
    if not isinstance(entry, str):
        return isinstance(entry, os.PathLike)
    if is_url(entry) and not any(map(str.isspace, entry)):
        return True
    # A text may be longer than a file name can be.
    if not entry or len(entry) > 1000 or "\n" in entry or "\0" in entry:
        return False
    looks = not any(map(str.isspace, entry)) and ("/" in entry or _ending(Path(entry)) in _ENDINGS)
    return entry == STDIN or looks or bool(_matches(entry))


def _matches(pattern: str) -> list[str]:
    # Neither Path.exists nor Path.glob takes every pattern: the one raises for names that are too long.
    if os.path.exists(pattern):  # noqa: PTH110
        return [pattern]
    return sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []  # noqa: PTH207


def expand_sources(patterns: Sequence[str | os.PathLike[str]]) -> list[FileSource]:
    """Return the sources that ``patterns`` name: the patterns' order, the files of one glob sorted by path.

    A URL of a bucket, a server or the hub is a file or a glob there.
    ``*``, ``?`` and ``[...]`` match within a folder, ``**`` across folders, and hidden files only where the
    pattern has the dot. A name that exists as it stands is not taken for a glob.

    Raises:
        MissingInputError: a file is missing, or a glob matches no file.
        InputError: no pattern at all, a folder, or one file named twice.
    """
    sources: dict[str, FileSource] = {}
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        found = _files(pattern)
        if not found:
            raise MissingInputError(f"{pattern[:200]} does not exist; check the path")
        is_glob = [str(one) for one in found] != [pattern]
        for source in found:
            if isinstance(source, Path) and source.is_dir():
                if is_glob:
                    continue
                raise InputError(f"{pattern} is a folder; name its files, say '{pattern}/*.txt'")
            identity = source.url if isinstance(source, UrlFile) else os.path.realpath(source)
            if identity in sources:
                raise InputError(f"{source_name(source)} is named twice")
            sources[identity] = source
    if not sources:
        raise InputError(f"no files: {', '.join(map(str, patterns)) or 'name one, or - for standard input'}")
    return list(sources.values())


def _files(pattern: str) -> list[FileSource]:
    if pattern == STDIN:
        return [STDIN]
    return [*find_files(pattern)] if is_url(pattern) else [*map(Path, _matches(pattern))]


def memory_rows(data: object) -> MemoryRows:
    """Return ``data`` as a source.

    Raises:
        InputError: if it is neither a sequence of strings or dictionaries nor a table, or empty.
    """
    kind = type(data).__name__
    if hasattr(data, "__arrow_c_stream__"):
        return MemoryRows(lambda: _reader(data), once=kind == "RecordBatchReader")
    if hasattr(data, "collect_batches"):  # a polars LazyFrame, which is computed a piece at a time
        return MemoryRows(lambda: _lazy_reader(data))
    # Iterating a mapping or a data frame gives names of columns, an open file gives lines with their endings.
    if isinstance(data, (Mapping, bytes, bytearray)) or hasattr(data, "columns") or hasattr(data, "read"):
        raise InputError(f"a {kind} is not a list of rows: {_EXPECTED}")
    if not isinstance(data, Iterable):
        raise InputError(f"a {kind} cannot be a source: {_EXPECTED}")
    rows = iter(data)
    first = next(rows, b"")
    # None and NaN are gaps among texts.
    if first is not None and not isinstance(first, (str, Mapping)) and first == first:
        raise InputError(f"a {kind} of {type(first).__name__ if first else 'nothing'}: {_EXPECTED}")
    whole: Iterator[object] = chain([first], rows)
    once = rows is data
    return MemoryRows((lambda: whole) if once else (lambda: data), once)


def _reader(data: Any) -> Any:
    """Return the record batches of a table; a column alone becomes the column ``text``."""
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:  # a stream of one column
        return pa.table({"text": pa.chunked_array(data)}).to_reader()
    except pa.ArrowTypeError as error:
        raise InputError(f"a column of the {type(data).__name__} has values of two types: {error}") from error


def _lazy_reader(frame: Any) -> Any:
    """Return the record batches of a lazy frame."""
    import pyarrow as pa

    schema = frame.limit(0).collect().to_arrow().schema
    pieces = (piece.to_arrow().cast(schema) for piece in frame.collect_batches())
    return pa.RecordBatchReader.from_batches(schema, (one for piece in pieces for one in piece.to_batches()))


def source_name(source: Source) -> str:
    """Return the name of ``source`` in messages."""
    return "<stdin>" if source == STDIN else str(source)


def corpus_name_of(source: Source) -> str:
    """Return the default name of a corpus whose first source this is."""
    if isinstance(source, MemoryRows):
        return "corpus"
    stem = "stdin" if source == STDIN else source.name.split(".")[0]
    if isinstance(source, UrlFile) and source.url.startswith(_HUB):
        stem = source.url.removeprefix(_HUB).split("/")[1].partition("@")[0]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in stem) or "corpus"


def _ending(path: PurePath) -> str:
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path).suffix.lower()


def format_of(source: Source, given: str | None = None) -> str:
    """Return the format of ``source``: ``given``, or that of its ending; plain text where there is none.

    Raises:
        InputError: ``given`` is not a format, or the ending is not known.
    """
    if given is not None and given not in FORMATS:
        raise InputError(f"unknown format {given!r}; expected one of {', '.join(FORMATS)}")
    if isinstance(source, MemoryRows):
        return MEMORY
    ending = "" if source == STDIN else _ending(source.path if isinstance(source, UrlFile) else source)
    found = given or _ENDINGS.get(ending) or ("" if ending else "text")
    if not found:
        raise InputError(
            f"{source}: no format has the ending {ending!r}; expected one of {' '.join(_ENDINGS)}, or with "
            ".gz or .zst. Rename it, or give its --format"
        )
    return found


def open_raw(source: Path | UrlFile) -> Any:
    """Open a file for reading its bytes as they are."""
    return source.open(ahead=_URL_BYTES) if isinstance(source, UrlFile) else source.open("rb")


@contextmanager
def open_bytes(source: FileSource) -> Iterator[io.BufferedReader]:
    """Open ``source`` for reading its bytes, decompressed, in constant memory.

    Raises:
        InputError: it is not compressed as its name says: it was cut off or mangled on its way.
        OSError, EOFError, zlib.error: it cannot be opened, is damaged or cut off.
    """
    with ExitStack() as stack:
        file: Any = sys.stdin.buffer if source == STDIN else stack.enter_context(open_raw(source))
        # Of a pipe, peek gives what has arrived; this buffer waits until it is full.
        raw: Any = io.BufferedReader(file, _URL_BYTES if isinstance(source, UrlFile) else _CHUNK_BYTES)
        head = raw.peek(4)
        codec = next((ending for ending, magic in _COMPRESSIONS.items() if head.startswith(magic)), "")
        if head[1:4] == _SKIPPABLE and head[0] >> 4 == 5:
            codec = ".zst"
        named = "" if source == STDIN else PurePath(source.name).suffix.lower()
        if named in _COMPRESSIONS and not codec:
            raise InputError(f"{source} does not begin as {named} files do; copy it again, or rename it")
        if codec == ".gz":
            raw = io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=raw)), _CHUNK_BYTES)
        elif codec == ".zst":
            import pyarrow as pa

            unpacked = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            raw = io.BufferedReader(stack.enter_context(unpacked), _CHUNK_BYTES)
        yield raw
