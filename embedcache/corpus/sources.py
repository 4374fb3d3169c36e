"""Sources of a corpus: files named by paths and globs, standard input, rows in memory; and their bytes.

Rows in memory are iterables of strings (a list, a generator, a pandas Series), iterables of dictionaries (a
Hugging Face dataset), and tables or columns with the Arrow stream interface (pyarrow, polars, pandas).
Libraries are recognised by their interfaces; none of them is imported.

Compression is recognised by the first bytes, so a gzip file needs no ``.gz``. A file named as compressed that
is not is refused: it was cut off or mangled on its way. The format follows the ending below the compression:
``rows.tsv.gz`` is a TSV file.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from embedcache.errors import InputError, MissingInputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """Rows in memory.

    Attributes:
        kind: ``strings``, ``objects`` (mappings of column to value) or ``arrow`` (record batches).
        read: gives the strings, the mappings, or a ``pyarrow.RecordBatchReader``.
        once: whether they can be read only once.
    """

    kind: Literal["strings", "objects", "arrow"]
    read: Callable[[], Any]
    once: bool = False

    def __str__(self) -> str:
        """Return their name in messages."""
        return "<memory>"


STDIN: Literal["-"] = "-"

FileSource: TypeAlias = Path | Literal["-"]
Source: TypeAlias = Path | Literal["-"] | MemoryRows

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

JSON_LIST = "Write a JSON list one object a line: jq -c '.[]' FILE > FILE.jsonl"

_ENDINGS = {ending: name for name, endings in FORMATS.items() for ending in endings}
_COMPRESSIONS = {".gz": ("gzip", b"\x1f\x8b"), ".zst": ("zstd", b"\x28\xb5\x2f\xfd")}

_HEAD_BYTES = 4096
_CHUNK_BYTES = 1 << 18
_ENTRIES_CHECKED = 1000
_EXPECTED = "expected paths, strings, dictionaries, a data frame, an Arrow table or a datasets.Dataset"


def find_sources(given: object) -> list[Source]:
    """Return the sources that a caller of the Python interface means.

    A string or path is a file, a glob or ``-``. A list or tuple of strings names files if each of its first
    1,000 entries does: it exists, is ``-``, a glob that matches, or looks like a path. If none does, its
    entries are texts. Anything else is rows in memory.

    Raises:
        MissingInputError: if a file is missing.
        InputError: if files and texts are mixed, or as :func:`expand_sources` and ``memory_rows``.
    """
    if isinstance(given, (str, os.PathLike)):
        return [*expand_sources([given])]
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], (str, os.PathLike)):
        strings = [one for one in given[:_ENTRIES_CHECKED] if isinstance(one, (str, os.PathLike))]
        files = [one for one in strings if _names_file(one)]
        if len(files) == len(strings):
            return [*expand_sources(given)]
        if files:
            text = next(one for one in strings if one not in files)
            raise InputError(
                f"the sources mix files ({str(files[0])[:80]!r}) and texts ({str(text)[:80]!r}). Give one "
                "kind, or texts that look like files as [{'text': ...}, ...]"
            )
    return [memory_rows(given)]


def expand_sources(patterns: Sequence[str | os.PathLike[str]]) -> list[FileSource]:
    """Return the sources that ``patterns`` name: the patterns' order, the files of one glob sorted by path.

    ``*``, ``?`` and ``[...]`` match within a folder, ``**`` across folders, and hidden files only where the
    pattern has the dot. A name that exists as it stands is not taken for a glob.

    Raises:
        MissingInputError: a file is missing, or a glob matches no file.
        InputError: no pattern at all, a folder, or one file named twice.
    """
    if not patterns:
        raise InputError("no input: name files, globs such as 'data/*.txt', or - for standard input")
    sources: list[FileSource] = []
    seen: dict[FileSource, str] = {}
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        for source in _matches(pattern):
            identity = source if source == STDIN else source.resolve()
            if identity in seen:
                raise InputError(
                    f"{source_name(source)} is named by {seen[identity]!r} and {pattern!r}: name it once"
                )
            seen[identity] = pattern
            sources.append(source)
    return sources


def _matches(pattern: str) -> list[FileSource]:
    if pattern == STDIN:
        return [STDIN]
    path = Path(pattern)
    if os.path.isdir(pattern):  # noqa: PTH112 - the methods of a Path raise for names that are too long
        raise InputError(f"{pattern} is a folder, expected a file; name its files, say '{path / '*.txt'}'")
    if os.path.exists(pattern):  # noqa: PTH110
        return [path]
    if not glob.has_magic(pattern):
        raise MissingInputError(f"{pattern[:200]} does not exist; check the path")
    # Path.glob takes no absolute pattern and matches hidden files.
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    files: list[FileSource] = [path for path in map(Path, found) if not path.is_dir()]
    if not files:
        raise MissingInputError(f"no file matches {pattern!r}; check the pattern and its folder")
    return files


def _names_file(entry: str | os.PathLike[str]) -> bool:
    """Return whether an entry of a list of sources names a file, which may be missing."""
    if not isinstance(entry, str) or entry == STDIN:
        return True
    if not entry or len(entry) > 1000 or "\n" in entry or "\0" in entry:
        return False
    if not any(map(str.isspace, entry)) and ("/" in entry or _ending(Path(entry)) in _ENDINGS):
        return True
    # A text may be longer than a file name can be, for which Path.exists raises.
    found = os.path.exists(entry)  # noqa: PTH110
    return found or (glob.has_magic(entry) and next(glob.iglob(entry), None) is not None)  # noqa: PTH207


def memory_rows(data: object) -> MemoryRows:
    """Return ``data`` as a source.

    Raises:
        InputError: if it is no sequence of strings or dictionaries and no table, or empty.
    """
    kind = type(data).__name__
    if isinstance(data, Mapping):
        raise InputError(f"a {kind} is no list of rows: give one of its splits, or a list of dictionaries")
    if hasattr(data, "read"):
        raise InputError(f"a {kind} is an open file: give its path")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return MemoryRows("arrow", lambda: _reader(data), once=kind == "RecordBatchReader")
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a pandas frame without the stream interface
        import pyarrow as pa

        return MemoryRows("arrow", lambda: pa.Table.from_pandas(data, preserve_index=False).to_reader())
    if not isinstance(data, Iterable) or isinstance(data, (bytes, bytearray)):
        raise InputError(f"a {kind} cannot be a source: {_EXPECTED}")
    rows = iter(data)
    nothing = object()
    first = next(rows, nothing)
    if first is nothing:
        raise InputError(f"the {kind} is empty: {_EXPECTED}")
    if first is not None and not isinstance(first, (str, Mapping)) and first == first:
        raise InputError(f"a {kind} of {type(first).__name__} cannot be a source: {_EXPECTED}")
    whole: Iterator[object] = chain([first], rows)
    once = rows is data
    read = (lambda: whole) if once else (lambda: iter(data))
    return MemoryRows("objects" if isinstance(first, Mapping) else "strings", read, once)


def _reader(data: Any) -> Any:
    """Return the record batches of a table; a column alone becomes the column ``text``."""
    import pyarrow as pa

    if not hasattr(data, "__arrow_c_stream__"):
        return pa.table({"text": pa.array(data)}).to_reader()
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:  # a stream of one column
        return pa.table({"text": pa.chunked_array(data)}).to_reader()


def source_name(source: Source) -> str:
    """Return the name of ``source`` in messages."""
    return "<stdin>" if source == STDIN else str(source)


def corpus_name_of(source: Source) -> str:
    """Return the default name of a corpus whose first source this is."""
    if isinstance(source, MemoryRows):
        return "corpus"
    stem = "stdin" if source == STDIN else source.name.split(".")[0]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in stem) or "corpus"


def _ending(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path).suffix.lower()


def format_of(source: Source, given: str | None = None) -> str:
    """Return the format of ``source``: ``given``, or that of its ending; plain text where there is none.

    Raises:
        InputError: ``given`` is no format, or the ending is not known.
    """
    if given is not None and given not in FORMATS:
        raise InputError(f"unknown format {given!r}; expected one of {', '.join(FORMATS)}")
    if isinstance(source, MemoryRows):
        return MEMORY
    if given is not None:
        return given
    ending = "" if source == STDIN else _ending(source)
    if not ending:
        return "text"
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    hint = f" (jsonl, if every line is a JSON object). {JSON_LIST}" if ending == ".json" else ""
    raise InputError(
        f"{source}: no format has the ending {ending!r}; expected one of {' '.join(_ENDINGS)}, or with "
        f".gz or .zst. Rename it, or pass --format{hint}"
    )


@contextmanager
def open_bytes(source: FileSource) -> Iterator[io.BufferedReader]:
    """Open ``source`` for reading its bytes, decompressed, in constant memory; standard input stays open.

    Raises:
        InputError: it is not compressed as its name says.
        OSError, EOFError, zlib.error: it cannot be opened, is damaged or cut off.
    """
    with ExitStack() as stack:
        raw: Any = sys.stdin.buffer if source == STDIN else stack.enter_context(source.open("rb"))
        head = b""
        while len(head) < _HEAD_BYTES and (more := raw.read(_HEAD_BYTES - len(head))):
            head += more
        stream: io.BufferedReader = io.BufferedReader(_Prefixed(head, raw), _CHUNK_BYTES)
        codec = _codec(source, head)
        unpacked: Any = None
        if codec == "gzip":
            unpacked = gzip.GzipFile(fileobj=stream, mode="rb")
        elif codec == "zstd":
            import pyarrow as pa

            unpacked = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec)
        if unpacked is not None:
            stream = io.BufferedReader(stack.enter_context(unpacked), _CHUNK_BYTES)
        yield stream


@contextmanager
def open_file(source: FileSource) -> Iterator[Path]:
    """Give a path to the decompressed bytes of ``source``, for formats that are not read front to back.

    A plain file is given as it is; anything else is unpacked into a temporary file, removed at the end.
    Raises as :func:`open_bytes` does.
    """
    if source != STDIN and source.is_file():
        with source.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if _codec(source, head) is None:
            yield source
            return
    with tempfile.NamedTemporaryFile(prefix="embedcache-") as copy:
        with open_bytes(source) as stream:
            shutil.copyfileobj(stream, copy, _CHUNK_BYTES)
        copy.flush()
        yield Path(copy.name)


def _codec(source: FileSource, head: bytes) -> str | None:
    for codec, magic in _COMPRESSIONS.values():
        if head.startswith(magic):
            return codec
    if source != STDIN and source.suffix.lower() in _COMPRESSIONS:
        codec, _ = _COMPRESSIONS[source.suffix.lower()]
        raise InputError(f"{source} does not begin as {codec} does; copy or download it again, or rename it")
    return None


class _Prefixed(io.RawIOBase):
    """``head``, then the rest of ``inner``, which it never closes."""

    def __init__(self, head: bytes, inner: Any) -> None:
        self._head, self._inner = head, inner

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer`` and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        chunk = self._head[: len(view)] or self._inner.read1(len(view))
        self._head = self._head[len(chunk) :]
        view[: len(chunk)] = chunk
        return len(chunk)
