"""The sources: which files of a suite can be fetched, from where, and what is known of them beforehand.

Each file of ``suites/`` lists the tables of one suite, and under ``also`` those of other suites that it
reads too. An address names a commit or a revision wherever the host has such a thing, so that what lies there
cannot change. What is not known is left out, never guessed.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urljoin, urlsplit

from pydantic import Field

from distill.errors import DataError
from distill.strict_config import StrictConfig

FOLDER = Path(__file__).with_name("suites")

MEMBER = "!"
"""Stands between the address of a ZIP archive and the name of a file in it."""


class Part(StrictConfig):
    """A part of a table: a split, a subset or a class.

    Attributes:
        files: addresses, mostly relative to the table's ``base``; a member of a ZIP archive stands behind
            a ``!``. Most readers take one file, some several that belong together line by line.
        rows: how many rows it gives; None where nobody has counted them.
    """

    files: list[str] = Field(min_length=1)
    rows: int | None = None


class Table(StrictConfig):
    """A file of a suite.

    Attributes:
        file: its name in the folder.
        set: the set's name.
        source: who offers it.
        base: address that the files' addresses are relative to.
        licence: what the source says of its licence.
        reader: the conversion, a key of :data:`distill.evaluation.fetch.registry.READERS`.
        columns: the table's columns, of those that the reader gives.
        parts: its parts by name, in the order of the table's rows.
        encoding: of the source's files; ``utf-8 or latin-1`` for those that are no UTF-8 in some copies.
        swap: whether sentence1 and sentence2 change places.
        sha256: digest of the whole table, uncompressed, where it was derived before from these sources.
        checksums: digests of files as they are offered, where they are known; keys as in the parts,
            without the member of an archive.
    """

    file: str
    set: str
    source: str
    base: str
    licence: str
    reader: str
    columns: list[str]
    parts: dict[str, Part]
    encoding: str = "utf-8"
    swap: bool = False
    sha256: str | None = None
    checksums: dict[str, str] = Field(default={})

    @property
    def stem(self) -> str:
        """The file's name without ending."""
        return self.file.removesuffix(".gz").removesuffix(".tsv")

    @property
    def rows(self) -> int | None:
        """How many rows it has, where that is known of every part."""
        counts = [part.rows for part in self.parts.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def is_checked(self) -> bool:
        """Whether what comes is held against a digest that was known beforehand."""
        urls = self.urls()
        return self.sha256 is not None or all(self.expected(url) for url in urls)

    def urls(self) -> list[str]:
        """Return the addresses to fetch, each once."""
        return list(
            dict.fromkeys(self.address(file)[0] for part in self.parts.values() for file in part.files)
        )

    def address(self, file: str) -> tuple[str, str]:
        """Return the address of one of the parts' files and the archive member that it names, or ''."""
        path, _, member = file.partition(MEMBER)
        return urljoin(self.base, path), member

    def expected(self, url: str) -> str | None:
        """Return the digest that the bytes at ``url`` must have, None where it is not known."""
        return {urljoin(self.base, file): digest for file, digest in self.checksums.items()}.get(url)


class _Listing(StrictConfig):
    """A file of ``suites/``: the suite's own tables, and the files of other suites that it reads."""

    tables: list[Table] = Field(default=[])
    also: dict[str, list[str]] = Field(default={})


def fetchable_suites() -> list[str]:
    """Return the names of the suites that have sources."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def tables_of(suite: str) -> list[Table]:
    """Return the tables of a suite.

    Raises:
        DataError: if no source is known for it.
    """
    import yaml

    if suite not in (known := fetchable_suites()):
        raise DataError(f"no sources are known for a suite {suite!r}, only for {', '.join(known)}")
    listed = _Listing.model_validate(yaml.safe_load((FOLDER / f"{suite}.yaml").read_text(encoding="utf-8")))
    shared = [
        table for other, files in listed.also.items() for table in tables_of(other) if table.file in files
    ]
    return shared + listed.tables


def place_of(url: str) -> Path:
    """Return where a download lies below a folder of downloads: host, then path, as ``wget -x`` has it."""
    parts = urlsplit(url)
    return Path(parts.netloc, *[name for name in parts.path.split("/") if name not in ("", ".", "..")])
