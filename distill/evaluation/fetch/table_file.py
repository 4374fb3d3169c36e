"""Reading a source's files line by line, and writing the table that comes of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from distill.errors import DataError
from embedcache.fsio import commit, temporary_sibling

EITHER = "utf-8 or latin-1"

_GZIP = b"\x1f\x8b"


def read_lines(path: Path, member: str, encoding: str) -> Iterator[str]:
    """Yield the lines of a file, without their ends; gzip is unpacked.

    Args:
        path: the file.
        member: the file to read of a ZIP archive; '' where it is none.
        encoding: a name that Python knows, or :data:`EITHER`.

    Raises:
        DataError: if it is damaged, lacks the member or is not of this encoding.
    """
    try:
        with _opened(path, member) as binary:
            if encoding == EITHER:
                # Latin-1 fits any bytes, so it is only for those that are no UTF-8.
                data = binary.read()
                encoding = "utf-8" if _is_utf8(data) else "latin-1"
                binary = io.BytesIO(data)
            # Only "\n" ends a line: texts hold other separators.
            with io.TextIOWrapper(binary, encoding=encoding, newline="\n") as text:
                for line in text:
                    yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"is not {encoding} ({error.reason})") from error
    except (gzip.BadGzipFile, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"is damaged ({error})") from error


def table_digest(path: Path) -> str:
    """Return the sha256 of a table, uncompressed.

    Raises:
        DataError: if it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as raw, _unpacked(raw, path.suffix == ".gz") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it, or replace it with --force") from error
    return digest.hexdigest()


class TableWriter:
    """Writes a table: tab-separated, a header line, UTF-8, gzip-compressed where the name says so.

    Attributes:
        sha256: the digest of the table, uncompressed, once all rows are written.
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        self.sha256 = ""

    @contextmanager
    def written(self, rows: Iterable[dict[str, str]]) -> Iterator[None]:
        """Write ``rows``; the file appears when the block ends, and not if it raises.

        Raises:
            StorageError: if it cannot be written.
        """
        digest = hashlib.sha256()
        with temporary_sibling(self.path) as temporary:
            with temporary.open("wb") as raw, _packed(raw, self.path.suffix == ".gz") as handle:
                for cells in self._lines(rows):
                    line = ("\t".join(cells) + "\n").encode()
                    digest.update(line)
                    handle.write(line)
            self.sha256 = digest.hexdigest()
            yield
            commit(temporary, self.path)

    def _lines(self, rows: Iterable[dict[str, str]]) -> Iterator[list[str]]:
        yield self.columns
        for row in rows:
            cells = [row[column] for column in self.columns]
            # A reader cleans texts; other cells could only hold one of these if the source were not its form.
            if any("\t" in cell or "\n" in cell for cell in cells):
                raise DataError(f"a cell holds a tab or a line end: {str(cells)[:120]}")
            yield cells


@contextmanager
def _opened(path: Path, member: str) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw:
        if member:
            with zipfile.ZipFile(raw) as archive:
                try:
                    inner = archive.open(member)
                except KeyError as error:
                    raise DataError(f"has no {member} in it") from error
                with inner:
                    yield inner
            return
        packed = raw.read(len(_GZIP)) == _GZIP
        raw.seek(0)
        with _unpacked(raw, packed) as handle:
            yield handle


@contextmanager
def _unpacked(raw: IO[bytes], packed: bool) -> Iterator[IO[bytes]]:
    if not packed:
        yield raw
        return
    with gzip.GzipFile(fileobj=raw, mode="rb") as handle:
        yield cast("IO[bytes]", handle)


@contextmanager
def _packed(raw: IO[bytes], packed: bool) -> Iterator[IO[bytes]]:
    if not packed:
        yield raw
        return
    # Neither name nor time: the same rows give the same file.
    with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as handle:
        yield cast("IO[bytes]", handle)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
