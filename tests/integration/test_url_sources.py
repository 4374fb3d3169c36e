"""Corpora at URLs: a bucket, SFTP and the web give the corpus that the same files here give."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from remote_servers import BUCKET, Proxy, Quiet, http_server, s3_environment, s3_server, sftp_server

import embedcache
from embedcache.cli.main import cli
from embedcache.corpus import url_files
from embedcache.corpus.origin import observe
from embedcache.corpus.sources import find_sources
from embedcache.corpus.url_files import UrlFile
from embedcache.errors import InputError, MissingInputError
from embedcache.testing import FakeEncoder, fake_teacher

ROWS = 3000
TEXTS = [f"text {number} ".ljust(60, "é") for number in range(ROWS)]


class Ranges(Quiet):
    """Web server that gives parts of files."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def do_GET(self) -> None:  # noqa: N802 - the name it has there
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not found or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(data[first : last + 1])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, served as the bucket, with the same rows in several formats, each in two files."""
    folder = tmp_path_factory.mktemp("served") / BUCKET
    for number in range(2):
        part = TEXTS[number * ROWS // 2 : (number + 1) * ROWS // 2]
        place = folder / "data" / f"part-{number}"
        place.mkdir(parents=True)
        numbers = np.random.default_rng(number).normal(size=(30, len(part)))
        table = pa.table({"text": part, **{f"number {n}": row for n, row in enumerate(numbers)}})
        pq.write_table(table, place / "rows.parquet", row_group_size=200)
        (place / "rows.txt.gz").write_bytes(gzip.compress("".join(f"{text}\n" for text in part).encode()))
        (place / "rows.csv").write_text(
            "\n".join(["n,text", *(f"{n},{t}" for n, t in enumerate(part))]) + "\n"
        )
    return folder


@pytest.fixture(scope="module", params=["s3", "sftp", "ranges", "whole"])
def root(
    request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of the folder on a server of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            with s3_server(files.parent) as port:
                for name, value in s3_environment(port).items():
                    patch.setenv(name, value)
                yield f"s3://{BUCKET}"
        elif request.param == "sftp":
            with sftp_server(tmp_path_factory.mktemp("sftp")) as (port, home):
                patch.setenv("HOME", str(home))
                patch.setenv("SSH_AUTH_SOCK", "")
                yield f"sftp://127.0.0.1:{port}{files}"
        else:
            with http_server(files, Ranges if request.param == "ranges" else Quiet) as url:
                yield url
        url_files._filesystem.cache_clear()


def built(source: object, folder: Path, **options: Any) -> embedcache.Cache:
    return embedcache.build(source, teacher=FakeEncoder(fake_teacher(8)), cache=folder, name="c", **options)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.txt.gz", "rows.csv"])
def test_files_at_urls_give_the_corpus_of_the_files_here(
    root: str, name: str, files: Path, tmp_path: Path
) -> None:
    urls = [f"{root}/data/part-{number}/{name}" for number in range(2)]
    if root.startswith("http") and name == "rows.parquet" and not url_files._serves_ranges(urls[0]):
        with pytest.raises(InputError, match=r"rows\.parquet: its server does not support range requests"):
            built(urls, tmp_path / "k")
        return
    there = built(urls, tmp_path / "k").corpus().info
    here = built(str(files / "data" / "*" / name), tmp_path / "here").corpus().info
    assert there == here


def test_a_glob_matches_across_folders_and_an_unchanged_bucket_is_not_read_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if root.startswith("http"):
        pytest.skip("the web has no lists that all servers give")
    pattern = f"{root}/data/**/*.parquet"
    expected = [f"{root}/data/part-{number}/rows.parquet" for number in range(2)]
    assert [str(one) for one in find_sources(pattern)] == expected
    cache = built(pattern, tmp_path / "k")
    assert cache.corpus().texts() == TEXTS
    monkeypatch.setattr("embedcache.building.job.read_batches", lambda *_: pytest.fail("read again"))
    assert built(pattern, tmp_path / "k").result.encoded == 0


def test_mistakes_are_one_error_that_says_what_to_look_at(root: str, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"nothing\.csv"):
        built(f"{root}/nothing.csv", tmp_path / "k")
    if not root.startswith("http"):
        with pytest.raises(InputError, match=r"is a folder.*\*\*/\*\.parquet"):
            built(f"{root}/data", tmp_path / "k")
        with pytest.raises(MissingInputError, match="matches no file"):
            built(f"{root}/data/*.none", tmp_path / "k")


def test_the_command_reads_urls_and_says_them_without_what_may_be_a_key(
    root: str, tmp_path: Path, tiny_teacher: Path
) -> None:
    url = f"{root}/data/part-0/rows.csv" + ("?key=secret" if root.startswith("http") else "")
    words = ["build", url, "--teacher", str(tiny_teacher), "--cache", str(tmp_path / "k"), "--limit", "20"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "secret" not in done.output
    assert len(embedcache.open(tmp_path / "k").corpus("rows")) == 20


@pytest.mark.parametrize("scheme", ["https", "sftp", "s3"])
def test_a_password_in_a_url_is_refused(scheme: str) -> None:
    with pytest.raises(InputError, match="credentials come from the environment") as caught:
        find_sources(f"{scheme}://user:secret@host/rows.csv")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://b/x.csv?versionId=1", "hf://datasets/a/b/x.csv?anonymous=true"])
def test_only_buckets_are_read_without_credentials_and_nothing_else_is_asked_for(url: str) -> None:
    with pytest.raises(InputError, match=r"anonymous=true of a bucket"):
        find_sources(url)


class Signed(Ranges):
    """Web server whose URLs are signed for GET alone."""

    def do_HEAD(self) -> None:  # noqa: N802 - the name it has there
        self.send_error(403)


def test_urls_that_are_signed_for_get_are_read(files: Path, tmp_path: Path) -> None:
    with http_server(files, Signed) as url:
        cache = built(f"{url}/data/part-0/rows.parquet?signature=x", tmp_path / "k")
    assert len(cache.corpus()) == ROWS // 2


def test_the_note_of_a_source_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UrlFile, "state", lambda self: [1, 2])
    assert observe([UrlFile("https://host/x.csv?signature=secret")]) == (("https://host/x.csv", [1, 2]),)


class Dying(Quiet):
    """Web server that ends every connection in the midst of a file, and gives no parts."""

    def do_HEAD(self) -> None:  # noqa: N802 - the name it has there
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.close_connection = True

    def do_GET(self) -> None:  # noqa: N802 - the name it has there
        self.do_HEAD()
        self.wfile.write(b"a line of text\n" * 500)


def test_a_server_that_dies_or_is_not_there_is_one_error(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_files, "PAUSE", 0.01)
    with (
        http_server(files, Dying) as url,
        pytest.raises(InputError, match=r"the connection ended before the file did.*download"),
    ):
        built(f"{url}/rows.txt", tmp_path / "k")
    with http_server(files) as url, pytest.raises(InputError, match="range requests, which Parquet"):
        built(f"{url}/data/part-0/rows.parquet", tmp_path / "k")
    with pytest.raises(InputError, match=r"cannot be read.*the network"):
        built(f"{url}/rows.txt", tmp_path / "k")


def test_a_bad_line_is_tried_again(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_files, "PAUSE", 0.01)
    monkeypatch.setattr(url_files, "TRIES", 12)
    with http_server(files, Ranges) as url:
        proxy = Proxy(int(url.rpartition(":")[2]), drop=0.9)
        try:
            monkeypatch.setattr("embedcache.corpus.sources._URL_BYTES", 1 << 14)
            source = f"http://127.0.0.1:{proxy.port}/data/part-0/rows.csv"
            assert built(source, tmp_path / "k").corpus().texts() == TEXTS[: ROWS // 2]
            assert proxy.cut > 0
        finally:
            proxy.close()
            url_files._filesystem.cache_clear()


def test_only_the_columns_that_are_asked_for_are_fetched(files: Path, tmp_path: Path) -> None:
    with s3_server(files.parent) as port, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(port).items():
            patch.setenv(name, value)
        fetched: list[int] = []
        plain = url_files.RangeFile._fetch

        def counted(self: url_files.RangeFile, first: int, last: int) -> bytes:
            fetched.append(last - first)
            return plain(self, first, last)

        patch.setattr(url_files.RangeFile, "_fetch", counted)
        source = f"s3://{BUCKET}/data/part-0/rows.parquet"
        assert len(built(source, tmp_path / "k").corpus()) == ROWS // 2
        whole = UrlFile(source).info()["size"]
        # Not the numbers, which are half of the file, and nothing twice.
        assert sum(fetched) < whole
        url_files._filesystem.cache_clear()
