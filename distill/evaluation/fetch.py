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
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distill.errors import DataError, DistillError, FetchError
from distill.evaluation.files import find_file
from distill.evaluation.source_tables import Table, tables_of
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, sha256_file, write_bytes, write_json
from embedcache.progress import NO_PROGRESS, Progress

LEDGER = "SOURCES.json"
RETRIES = 3

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
    overwrite: bool = False,
    accept_changed: bool = False,
    progress: Progress = NO_PROGRESS,
) -> list[Fetched]:
    """Write the tables of a suite into ``folder``; one that fails does not stop the others.

    Args:
        suite: the suite's name.
        folder: folder to write into.
        only: files to fetch; empty for all.
        downloads: folder of downloads as ``HOST/PATH``, as ``wget -x`` makes it: files in it are used, the
            rest is downloaded into it. None: downloads are not kept.
        overwrite: replace existing files.
        accept_changed: accept content whose digest is not the expected one, and record the new digest.
        progress: progress of each download.

    Raises:
        DataError: if the suite has no sources, or the folder's record cannot be read.
        StorageError: if the folder cannot be written.
    """
    folder = make_directory(Path(folder))
    records = _read_records(folder / LEDGER)
    results = []
    with ExitStack() as stack:
        if downloads is None:
            downloads = stack.enter_context(tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=folder))
        for table in tables_of(suite):
            if only and table.file not in only:
                continue
            before = find_file(folder, table.stem)
            if before is not None and not overwrite:
                results.append(Fetched(table.file, "already there", records.get(table.file, {})))
                continue
            try:
                record = _fetch(table, folder, records, Path(downloads).resolve(), accept_changed, progress)
            except DistillError as error:
                results.append(Fetched(table.file, "failed", problem=str(error)))
                continue
            if before is not None and before != folder / table.file:
                before.unlink()  # the same table under its other name would be read in place of this one
            records[table.file] = record
            write_json(folder / LEDGER, {"version": 2, "tables": dict(sorted(records.items()))})
            results.append(Fetched(table.file, "fetched", record))
    return results


def _read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a folder's ``SOURCES.json`` by table; none where it is missing."""
    try:
        records: dict[str, dict[str, Any]] = json.loads(path.read_bytes())["tables"]
        return records
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it to trust the next fetch") from error


def _fetch(
    table: Table,
    folder: Path,
    records: dict[str, dict[str, Any]],
    downloads: Path,
    accept_changed: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Write a table, and return its record."""
    trusted = {url: sha256 for one in records.values() for url, sha256 in one["downloads"].items()}
    paths = {}
    for url, pinned in table.urls().items():
        expected = None if accept_changed else pinned or trusted.get(url)
        paths[url] = _download(url, expected, downloads, progress)
    rows, skipped = table.read(paths)
    lines = [table.columns, *([row[column] for column in table.columns] for row in rows)]
    data = "".join("\t".join(cells) + "\n" for cells in lines).encode()
    digest = hashlib.sha256(data).hexdigest()
    if table.sha256 not in (None, digest) and not accept_changed:
        raise FetchError(
            f"{table.file} has the sha256 {digest}, expected {table.sha256}: the source has changed. "
            "To use it all the same, add --accept-changed"
        )
    packed = table.file.endswith(".gz")
    write_bytes(folder / table.file, gzip.compress(data, mtime=0) if packed else data)
    sums = {url: sha256_file(path) for url, path in paths.items()}
    return {
        "source": table.source,
        "licence": table.licence,
        "sha256": digest,
        "pinned": digest == table.sha256 or sums == table.urls(),
        "rows": len(rows),
        "left_out": skipped,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
        "downloads": sums,
    }


def _download(url: str, sha256: str | None, folder: Path, progress: Progress) -> Path:
    """Return the path of ``url``'s content in ``folder``; pooch downloads it if it is missing.

    Raises:
        FetchError: if it cannot be downloaded, or its sha256 is another one.
    """
    import pooch

    name = urlsplit(url).netloc + urlsplit(url).path
    files = pooch.create(
        folder,
        "",
        registry={name: sha256},
        urls={name: url},
        retry_if_failed=RETRIES,
        allow_updates=False,
    )
    pooch.get_logger().setLevel("ERROR")
    bar, hub = _Bar(url.rpartition("/")[2], progress), _HUB.fullmatch(url)
    http = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)
    downloader = partial(_from_hub, *hub.groups()) if hub else http
    try:
        return Path(files.fetch(name, downloader=downloader))
    except ValueError as error:
        raise FetchError(f"{url}: {error}. To use it all the same, add --accept-changed") from error
    except OSError as error:
        raise FetchError(f"{url}: {error}; run it again") from error


def _from_hub(dataset: str, revision: str, file: str, url: str, target: str, files: Any) -> None:
    """Download a file of a data set by the hub's client, which knows the user's token and mirror."""
    from huggingface_hub import hf_hub_download

    shutil.copyfile(hf_hub_download(dataset, file, repo_type="dataset", revision=revision), target)


@dataclass
class _Bar:
    """Progress of one download, in the form pooch reports it."""

    name: str
    progress: Progress
    total: int = 0
    is_begun: bool = False

    def update(self, count: int) -> None:
        if not self.is_begun:
            self.reset()
        self.progress.advance(count)

    def reset(self) -> None:
        self.is_begun = True
        self.progress.phase(self.name, self.total or None, "bytes")

    def close(self) -> None:
        pass
