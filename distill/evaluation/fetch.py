"""Fetch the files of a suite from pinned sources: download, check, convert, write, record.

``SOURCES.json`` in the folder records every table: source, licence, digests, rows. Where no digest is known
beforehand the first fetch is trusted, and later ones are held against its digests.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distill.errors import DataError, DistillError, FetchError
from distill.evaluation.files import find_file
from distill.evaluation.source_tables import Table, tables_of
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, sha256_file, write_bytes

LEDGER = "SOURCES.json"
RETRIES = 3

OnStep = Callable[[str, int, int], None]
"""Called with a file's name, bytes downloaded and bytes in all (0: not known)."""

_HUB = re.compile(r"https://huggingface\.co/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(frozen=True)
class Fetched:
    """Outcome of fetching one table.

    Attributes:
        file: the table's file name.
        state: ``fetched``, ``already there`` or ``failed``.
        record: its entry in ``SOURCES.json``; empty where it failed, or was put there by hand.
        problem: the error, where it failed.
    """

    file: str
    state: str
    record: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def fetch_suite(
    suite: str,
    folder: str | Path,
    *,
    only: Collection[str] = (),
    downloads: str | Path | None = None,
    force: bool = False,
    accept_changed: bool = False,
    on_step: OnStep = lambda name, done, total: None,
) -> list[Fetched]:
    """Write the tables of a suite into ``folder``; one that fails does not stop the others.

    Args:
        suite: the suite's name.
        folder: where to write.
        only: files to fetch; empty for all.
        downloads: folder of downloads as ``HOST/PATH``, as ``wget -x`` makes it: what is there is used, the
            rest is downloaded into it. None: downloads are not kept.
        force: replace files that are there.
        accept_changed: accept content whose digest is not the expected one, and record the new digest.
        on_step: progress of each download.

    Raises:
        DataError: if the suite has no sources, or the folder's record cannot be read.
        StorageError: if the folder cannot be written.
    """
    tables = [table for table in tables_of(suite) if not only or table.file in only]
    folder = make_directory(Path(folder))
    records = read_records(folder)
    results = []
    with ExitStack() as stack:
        if downloads is None:
            downloads = stack.enter_context(tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=folder))
        store = _Downloads(Path(downloads).resolve(), on_step)
        for table in tables:
            try:
                results.append(_fetch(table, folder, records, store, force, accept_changed))
            except DistillError as error:  # noqa: PERF203 - a download each
                results.append(Fetched(table.file, "failed", problem=str(error)))
    return results


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of the folder's ``SOURCES.json`` by table; none where it is missing.

    Raises:
        DataError: if it cannot be read.
    """
    path = folder / LEDGER
    if not path.exists():
        return {}
    try:
        tables = json.loads(path.read_bytes())["tables"]
        return {file: {"downloads": {}, "sha256": None, **record} for file, record in tables.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DataError(
            f"{path} is damaged ({error}); delete it to trust the next fetch as the first"
        ) from error


def _fetch(
    table: Table, folder: Path, records: dict[str, Any], store: _Downloads, force: bool, accept_changed: bool
) -> Fetched:
    before = find_file(folder, table.stem)
    record = records.get(table.file, {})
    if before is not None and not force:
        digest = _table_digest(before)
        if digest not in (table.sha256, record.get("sha256")):
            change = "has changed since it was fetched" if record else "was not fetched by this command"
            raise DataError(f"{before} {change} (sha256 {digest}); move it away, or replace it with --force")
        return Fetched(table.file, "already there", record)
    trusted = {url: sha256 for one in records.values() for url, sha256 in one["downloads"].items()}
    expected = {url: sha256 or trusted.get(url) for url, sha256 in table.urls().items()}
    paths = {url: store.get(url, None if accept_changed else sha256) for url, sha256 in expected.items()}
    rows, skipped = table.read(paths)
    lines = [table.columns, *([row[column] for column in table.columns] for row in rows)]
    data = "".join("\t".join(cells) + "\n" for cells in lines).encode()
    digest = hashlib.sha256(data).hexdigest()
    if table.sha256 not in (None, digest) and not accept_changed:
        raise FetchError(
            f"{table.file} has the sha256 {digest}, expected {table.sha256}: the source has changed. "
            "To use it all the same, add --accept-changed"
        )
    path = folder / table.file
    write_bytes(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    if before is not None and before != path:
        before.unlink()  # the same table under its other name would be read in place of this one
    sums = {url: sha256_file(file) for url, file in paths.items()}
    records[table.file] = {
        "source": table.source,
        "licence": table.licence,
        "sha256": digest,
        "pinned": digest == table.sha256 or sums == table.urls(),
        "rows": len(rows),
        "left_out": skipped,
        "fetched": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "downloads": sums,
    }
    text = json.dumps({"version": 2, "tables": dict(sorted(records.items()))}, indent=2, ensure_ascii=False)
    write_bytes(folder / LEDGER, f"{text}\n".encode())
    return Fetched(table.file, "fetched", records[table.file])


def _table_digest(path: Path) -> str:
    try:
        data = path.read_bytes()
        return hashlib.sha256(gzip.decompress(data) if path.suffix == ".gz" else data).hexdigest()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it, or replace it with --force") from error


class _Downloads:
    """A folder of downloads, filled through pooch: with retries, and a file appears whole or not at all."""

    def __init__(self, folder: Path, on_step: OnStep) -> None:
        self.folder = folder
        self.on_step = on_step
        self.unreachable: set[str] = set()

    def get(self, url: str, sha256: str | None) -> Path:
        """Return where the content of ``url`` lies, downloaded if it is missing.

        Raises:
            FetchError: if it cannot be downloaded, or its sha256 is another one.
        """
        import pooch
        from requests.exceptions import ConnectionError as NoAnswer

        host, name = urlsplit(url).netloc, urlsplit(url).netloc + urlsplit(url).path
        path = self.folder / name
        if not path.exists() and host in self.unreachable:
            raise FetchError(f"{url}: {host} did not answer before")
        files = pooch.create(
            self.folder,
            "",
            registry={name: sha256},
            urls={name: url},
            retry_if_failed=RETRIES,
            allow_updates=False,
        )
        pooch.get_logger().setLevel("ERROR")
        try:
            return Path(files.fetch(name, downloader=self._download))
        except (OSError, ValueError) as error:
            if isinstance(error, NoAnswer):
                self.unreachable.add(host)
            change = isinstance(error, ValueError)
            hint = (
                f" (expected the sha256 {sha256}); to use it all the same, add --accept-changed"
                if change
                else ""
            )
            raise FetchError(f"{url}: {error}{hint}") from error

    def _download(self, url: str, target: str, files: Any) -> None:
        import pooch

        if hub := _HUB.fullmatch(url):
            from huggingface_hub import hf_hub_download

            dataset, revision, file = hub.groups()
            shutil.copyfile(hf_hub_download(dataset, file, repo_type="dataset", revision=revision), target)
        else:
            bar = _Bar(url.rpartition("/")[2], self.on_step)
            pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)(url, target, files)


@dataclass
class _Bar:
    """Progress of one download, in the form pooch reports it."""

    name: str
    on_step: OnStep
    total: int = 0
    done: int = 0

    def update(self, count: int) -> None:
        self.done += count
        self.on_step(self.name, min(self.done, self.total or self.done), self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
