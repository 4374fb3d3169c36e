"""Fetching a suite: download, hold against the digests, convert, write, record."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from distill.errors import DataError, DistillError, FetchError
from distill.evaluation.fetch.download import ATTEMPTS, Download, UnreachableError, download
from distill.evaluation.fetch.ledger import FetchedFile, FetchedTable, Ledger
from distill.evaluation.fetch.registry import READERS
from distill.evaluation.fetch.sources import Table, place_of
from distill.evaluation.fetch.table_file import TableWriter, read_lines, table_digest
from distill.evaluation.testset import find_test_file
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, sha256_file

State = Literal["fetched", "already there", "failed"]

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, and how many bytes of it are there of how many (0: not known)."""


@dataclass(frozen=True)
class Fetched:
    """What became of a table.

    Attributes:
        table: the table.
        state: whether it was fetched, was there already or could not be fetched.
        record: what is recorded of it; None where it failed or was put there by somebody else.
        problem: why it failed.
    """

    table: Table
    state: State
    record: FetchedTable | None = None
    problem: str = ""


@dataclass
class _Downloads:
    """Where downloads lie, and what is known of them.

    Attributes:
        folder: where; a file that is there is not downloaded again.
        on_step: told how far a download is.
        accept_changed: whether digests other than the expected ones are accepted.
        done: the downloads of this fetch, by address.
        unreachable: hosts that did not answer.
    """

    folder: Path
    on_step: OnStep
    accept_changed: bool
    done: dict[str, Download] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)

    def get(self, url: str, expected: str | None, what: str) -> Path:
        """Return where the bytes of ``url`` lie.

        Raises:
            FetchError: if they cannot be fetched, or have another digest than ``expected``.
        """
        path = self.folder / place_of(url)
        if url in self.done:
            return path
        if path.is_file():
            there = Download(sha256_file(path), path.stat().st_size)
            self._check(str(path), there, expected)
            self.done[url] = there
        else:
            self.done[url] = self._download(url, path, expected, what)
        return path

    def _download(self, url: str, path: Path, expected: str | None, what: str) -> Download:
        host = urlsplit(url).netloc
        make_directory(path.parent)
        # Under its own name only when it is whole and right: what has that name is not downloaded again.
        partial = path.with_name(TEMPORARY_PREFIX + path.name)
        try:
            came = download(
                url,
                partial,
                lambda done, total: self.on_step(what, done, total),
                attempts=1 if host in self.unreachable else ATTEMPTS,
            )
            self._check(url, came, expected)
            partial.replace(path)
        except UnreachableError:
            self.unreachable.add(host)
            raise
        finally:
            partial.unlink(missing_ok=True)
        return came

    def _check(self, where: str, came: Download, expected: str | None) -> None:
        if expected not in (None, came.sha256) and not self.accept_changed:
            raise FetchError(
                f"{where} has the sha256 {came.sha256}, expected {expected}: it is not what it was. Find out "
                "why; if it is to be used all the same, add --accept-changed"
            )


def fetch_suite(
    suite: str,
    tables: Sequence[Table],
    folder: str | Path,
    *,
    downloads: str | Path | None = None,
    force: bool = False,
    accept_changed: bool = False,
    on_step: OnStep = lambda what, done, total: None,
) -> list[Fetched]:
    """Write the ``tables`` of a suite into ``folder`` and record them in its ``SOURCES.json``.

    A table that lies there with the right digest is left as it is. One that fails does not stop the others,
    and nothing is left of it.

    Args:
        suite: the suite's name, for the record.
        tables: those to fetch.
        folder: where to write; made if it is not there.
        downloads: folder of downloads, laid out as ``HOST/PATH``; what is there is used, what is not is
            downloaded into it. None: a temporary one.
        force: fetch what is there already as well, and replace it.
        accept_changed: take content whose digest is not the expected one, and record the new digest.
        on_step: told how far it is.

    Raises:
        DataError: if the folder's record cannot be read.
        StorageError: if the folder cannot be written.
    """
    folder = make_directory(Path(folder))
    ledger = Ledger(folder)
    with _download_folder(folder, downloads) as raw:
        store = _Downloads(raw, on_step, accept_changed)
        return [_attempt(suite, table, folder, ledger, store, force) for table in tables]


def missing(tables: Sequence[Table], folder: str | Path) -> list[Table]:
    """Return those of ``tables`` of which no file lies in ``folder``."""
    return [table for table in tables if find_test_file(folder, table.stem) is None]


@contextmanager
def _download_folder(folder: Path, downloads: str | Path | None) -> Iterator[Path]:
    if downloads is not None:
        yield make_directory(Path(downloads))
        return
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_there(table: Table, folder: Path, ledger: Ledger) -> bool:
    """Return whether the table lies in ``folder`` as it should.

    Raises:
        DataError: if something else lies in its place.
    """
    path = find_test_file(folder, table.stem)
    if path is None:
        return False
    record = ledger.tables.get(table.file)
    digest = table_digest(path)
    if digest in {table.sha256, record.sha256 if record else None}:
        return True
    found = "has changed since it was fetched" if record else "was not fetched by this command"
    raise DataError(
        f"{path} is there and {found} (sha256 {digest}); move it away, or replace it with --force"
    )


def _attempt(
    suite: str, table: Table, folder: Path, ledger: Ledger, store: _Downloads, force: bool
) -> Fetched:
    try:
        return _fetch(suite, table, folder, ledger, store, force)
    except DistillError as error:
        return Fetched(table, "failed", problem=str(error))


def _fetch(suite: str, table: Table, folder: Path, ledger: Ledger, store: _Downloads, force: bool) -> Fetched:
    if not force and _is_there(table, folder, ledger):
        return Fetched(table, "already there", ledger.tables.get(table.file))
    urls = table.urls()
    paths = {
        url: store.get(
            url, table.expected(url) or ledger.known(url), f"{table.file}, file {place} of {len(urls)}:"
        )
        for place, url in enumerate(urls, 1)
    }
    dropped: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    writer = TableWriter(folder / table.file, table.columns)
    before = find_test_file(folder, table.stem)
    with writer.written(_rows(table, paths, dropped, counts)):
        _check_rows(table, counts)
        if table.sha256 is not None and writer.sha256 != table.sha256 and not store.accept_changed:
            raise FetchError(
                f"{table.file} would have the sha256 {writer.sha256}, expected {table.sha256}: the source, "
                "or the conversion, does not give the table that is known. Find out why; if it is to be used "
                "all the same, add --accept-changed"
            )
    if before is not None and before != writer.path:
        # The same table under its other name would be read in the place of the new one.
        before.unlink()
    record = FetchedTable(
        suite=suite,
        source=table.source,
        licence=table.licence,
        sha256=writer.sha256,
        known_beforehand=writer.sha256 == table.sha256,
        rows=sum(counts.values()),
        dropped=dict(dropped),
        fetched=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        files=[
            FetchedFile(
                url=url,
                sha256=store.done[url].sha256,
                size=store.done[url].size,
                known_beforehand=store.done[url].sha256 == table.expected(url),
            )
            for url in paths
        ],
    )
    ledger.put(table.file, record)
    return Fetched(table, "fetched", record)


def _rows(
    table: Table, paths: dict[str, Path], dropped: Counter[str], counts: Counter[str]
) -> Iterator[dict[str, str]]:
    for name, part in table.parts.items():
        files = [table.address(file) for file in part.files]
        lines = [read_lines(paths[url], member, table.encoding) for url, member in files]
        try:
            for row in READERS[table.reader](name, lines, dropped):
                counts[name] += 1
                cells = dict(row)
                if table.swap:
                    cells["sentence1"], cells["sentence2"] = cells["sentence2"], cells["sentence1"]
                yield cells
        except DataError as error:
            which = " and ".join(url + (f" ({member})" if member else "") for url, member in files)
            raise DataError(f"{which}: {error}; the source does not have the form it had") from error


def _check_rows(table: Table, counts: Counter[str]) -> None:
    wrong = [
        f"{name} gave {counts[name]:,} rows, expected {part.rows:,}"
        for name, part in table.parts.items()
        if part.rows is not None and counts[name] != part.rows
    ]
    if wrong:
        raise DataError(f"{table.file}: {'; '.join(wrong)}: the source is not what it was")
