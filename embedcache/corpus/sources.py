"""What a corpus is read from: the files that patterns name, and their bytes, unpacked.

A source is a path, or ``"-"`` for standard input. Compression is recognised by the first bytes, so a gzip
file needs no ``.gz``; a name that promises compression its bytes do not have is refused, because that file
was cut off or mangled on its way. The format follows the ending below the
compression: ``rows.tsv.gz`` is a TSV file.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from embedcache.errors import InputError, MissingInputError, StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "FORMATS",
    "ONE_JSON_VALUE",
    "STDIN",
    "Source",
    "expand_sources",
    "format_of",
    "open_bytes",
    "open_file",
    "recognised",
    "refuse_foreign",
    "source_name",
]

Source: TypeAlias = Path | Literal["-"]

STDIN: Literal["-"] = "-"

#: Format -> the endings that mean it, in lower case.
FORMATS: dict[str, tuple[str, ...]] = {
    "text": (".txt", ".text"),
    "jsonl": (".jsonl", ".ndjson"),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
}

#: What to do about a file that is one JSON value from its first line to its last.
ONE_JSON_VALUE = "A JSON list has to be written one object a line first: jq -c '.[]' FILE > FILE.jsonl"

_COMPRESSIONS = {".gz": ("gzip", b"\x1f\x8b"), ".zst": ("zstd", b"\x28\xb5\x2f\xfd")}

# First bytes that no text has. Some lines of such a file are UTF-8 by chance, and would be kept as rows.
_NOT_TEXT = {
    b"\x7fELF": "a program",
    b"\x89PNG\r\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF-1.": "a PDF document",
    b"SQLite format 3\0": "an SQLite database",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n": "an HDF5 file",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"PAR1\x15": "Parquet",
    b"ARROW1\0\0": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ\0": "xz",
    b"BZh91AY&SY": "bzip2",
    b"\x1f\x8b": "gzip inside a compressed file",
    b"\x28\xb5\x2f\xfd": "zstd inside a compressed file",
}

# Enough of a file to tell text from other data, which has more control characters.
_HEAD_BYTES = 4096
_LEAST_BYTES_TO_JUDGE = 512
_MOST_CONTROLS = 0.05
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\b\t\n\v\f\r\x1b"))
_CHUNK_BYTES = 1 << 18


def source_name(source: Source) -> str:
    """Return what messages call ``source``."""
    return "<stdin>" if source == STDIN else str(source)


def expand_sources(patterns: Sequence[str | os.PathLike[str]]) -> list[Source]:
    """Return the sources that ``patterns`` name: the patterns' order, the files of one glob sorted by path.

    ``*``, ``?`` and ``[...]`` match within a folder, ``**`` across folders; files whose name begins with a
    dot are matched only by a pattern that says so. A name that exists as it stands is not taken for a glob.

    Raises:
        MissingInputError: a file is not there, or a glob matches no file.
        InputError: no pattern at all, a folder, or one file named twice.

    """
    if not patterns:
        raise InputError(
            "no input was named; name files, globs such as 'data/*.txt', or - for standard input"
        )
    sources: list[Source] = []
    seen: dict[Source, str] = {}
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        for source in _matches(pattern):
            identity = source if source == STDIN else Path(source).resolve()
            if identity in seen:
                raise InputError(
                    f"{source_name(source)} is named twice, by {seen[identity]!r} and by {pattern!r}; "
                    "its rows would be read twice: name it once"
                )
            seen[identity] = pattern
            sources.append(source)
    return sources


def _matches(pattern: str) -> list[Source]:
    if pattern == STDIN:
        return [STDIN]
    path = Path(pattern)
    if path.is_dir():
        raise InputError(f"{pattern} is a folder, expected a file; name its files, say '{path / '*.txt'}'")
    if path.exists():
        return [path]
    if not glob.has_magic(pattern):
        raise MissingInputError(f"{pattern} does not exist; check the path")
    # Path.glob takes no absolute pattern and matches hidden files.
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    files: list[Source] = [path for path in map(Path, found) if not path.is_dir()]
    if not files:
        raise MissingInputError(
            f"no file matches {pattern!r}; check the pattern and the folder it starts from"
        )
    return files


def format_of(source: Source, chosen: str | None = None) -> str:
    """Return the format of ``source``: ``chosen`` if given, else what its ending means.

    Standard input and a name without an ending are plain text.

    Raises:
        InputError: ``chosen`` is no format, or the ending is not known.

    """
    if chosen is not None:
        if chosen not in FORMATS:
            raise InputError(f"unknown format {chosen!r}; expected one of {', '.join(FORMATS)}")
        return chosen
    if source == STDIN:
        return "text"
    path = source.with_suffix("") if source.suffix.lower() in _COMPRESSIONS else source
    ending = path.suffix.lower()
    if not ending:
        return "text"
    for name, endings in FORMATS.items():
        if ending in endings:
            return name
    if ending == ".json":
        raise InputError(
            f"cannot tell the format of {source} from its ending; pass --format jsonl if every line of it is "
            f"a JSON object. {ONE_JSON_VALUE}"
        )
    known = " ".join(ending for endings in FORMATS.values() for ending in endings)
    raise InputError(
        f"cannot tell the format of {source} from its ending; expected one of {known}, "
        "with or without .gz or .zst: rename it, or pass --format"
    )


@contextmanager
def open_bytes(source: Source) -> Iterator[io.BufferedReader]:
    """Open ``source`` for reading its bytes, decompressed, in memory that does not grow with the file.

    Standard input is left open. Reading raises :class:`InputError` where the data is damaged or cut off.

    Raises:
        MissingInputError: the file is not there.
        InputError: it cannot be read, or is not compressed as its name says.

    """
    name = source_name(source)
    with ExitStack() as stack:
        raw: Any = sys.stdin.buffer if source == STDIN else stack.enter_context(_open(source))
        head, stream = _peeked(raw, name, "cannot be read ({error}); check the disk it lies on")
        stack.enter_context(stream)
        codec = _codec(source, head)
        if codec is not None:
            unpacked = stack.enter_context(_decompressed(stream, codec))
            advice = (
                f"is damaged or cut off: its {codec} data does not unpack ({{error}}); "
                "copy or download it again"
            )
            _, stream = _peeked(unpacked, name, advice)
            stack.enter_context(stream)
        yield stream


@contextmanager
def open_file(source: Source) -> Iterator[Path]:
    """Give a path to the decompressed bytes of ``source``, for formats that are not read front to back.

    A plain file is given as it is; anything else is unpacked into a temporary file, removed at the end.

    Raises:
        StorageError: the temporary folder has no room.
        InputError, MissingInputError: as :func:`open_bytes`.

    """
    if source != STDIN and source.is_file():
        with _open(source) as file:
            head = file.read(_HEAD_BYTES)
        if _codec(source, head) is None:
            yield source
            return
    with tempfile.NamedTemporaryFile(prefix="embedcache-") as copy:
        with open_bytes(source) as stream:
            try:
                shutil.copyfileobj(stream, copy, _CHUNK_BYTES)
                copy.flush()
            except OSError as error:
                raise StorageError(
                    f"{source_name(source)} cannot be unpacked into {tempfile.gettempdir()} ({error}); "
                    "make room, or set TMPDIR to a folder that has it"
                ) from error
        yield Path(copy.name)


def refuse_foreign(stream: io.BufferedReader, name: str, kind: str) -> None:
    """Raise where ``stream``, said to be text of the format ``kind``, begins as something else does.

    Raises:
        InputError: it begins as Parquet, Arrow, UTF-16, a compression that is not read, or a picture does.

    """
    head = stream.peek(_HEAD_BYTES)
    meaning = recognised(head)
    if meaning is not None:
        raise InputError(
            f"{name} looks like {meaning}, expected {kind} in UTF-8; pass the right --format, or convert it"
        )


def recognised(head: bytes) -> str | None:
    """Return what a file that begins with ``head`` looks like, in words; None where it may be text."""
    for magic, meaning in _NOT_TEXT.items():
        if head.startswith(magic):
            return meaning
    if len(head) < _LEAST_BYTES_TO_JUDGE:
        return None
    most = _MOST_CONTROLS * len(head)
    if len(head) - len(head.translate(None, _CONTROLS)) <= most:
        return None
    # Control characters alone can be text, strange as it is; with bytes that no text has they are not.
    return "binary data" if head.count(b"\0") > most or not _begins_utf8(head) else None


def _begins_utf8(head: bytes) -> bool:
    try:
        # A character cut off at the end is no mistake to an incremental decoder.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} does not exist; check the path") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); expected a readable file") from error


def _codec(source: Source, head: bytes) -> str | None:
    for ending, (codec, magic) in _COMPRESSIONS.items():
        if head.startswith(magic):
            return codec
        if source != STDIN and source.suffix.lower() == ending:
            if not head:
                raise InputError(
                    f"{source} is empty (it does not begin as {codec} does); copy or download it again"
                )
            raise InputError(
                f"{source} is named {ending} but does not begin as {codec} does; copy or download it again, "
                "or rename it if it is not compressed"
            )
    return None


@contextmanager
def _decompressed(stream: io.BufferedReader, codec: str) -> Iterator[io.BufferedIOBase]:
    if codec == "gzip":
        with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
            yield unpacked
        return
    import pyarrow as pa

    with pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec) as unpacked:
        yield unpacked


def _peeked(inner: io.BufferedIOBase, name: str, advice: str) -> tuple[bytes, io.BufferedReader]:
    """Return the first bytes of ``inner``, and a stream that still begins with them."""
    checked = _Checked(inner, name, advice)
    head = b""
    while len(head) < _HEAD_BYTES and (more := checked.more(_HEAD_BYTES - len(head))):
        head += more
    checked.head = head
    return head, io.BufferedReader(checked, _CHUNK_BYTES)


class _Checked(io.RawIOBase):
    """``head``, then the rest of ``inner``, which it never closes; failures below come out as InputError."""

    def __init__(self, inner: io.BufferedIOBase, name: str, advice: str) -> None:
        self.head = b""
        self._inner = inner
        self._name = name
        self._advice = advice

    def readable(self) -> bool:
        """Return True: reading is all it does."""
        return True

    def more(self, size: int) -> bytes:
        """Return up to ``size`` bytes of ``inner``, none at its end."""
        try:
            return self._inner.read1(size)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self._name} {self._advice.format(error=error)}") from error

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer`` from ``head`` or ``inner`` and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        chunk = self.head[: len(view)] or self.more(len(view))
        self.head = self.head[len(chunk) :]
        view[: len(chunk)] = chunk
        return len(chunk)
