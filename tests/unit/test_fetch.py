"""Fetching test data: a table arrives whole and as its source's digests say, or nothing of it is left."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import fetch, source_tables
from distill.evaluation.fetch import fetch_suite
from distill.evaluation.pairs import read_pairs
from distill.evaluation.source_tables import Table, fetchable_suites, tables_of
from distill.evaluation.task import get_suite, suites
from embedcache.progress import LineProgress
from embedcache.sizes import size

NEWS = b"4.5\tA cat sat  down .\tThe cat took a seat .\n0\tRain fell all day .\tShe reads a book .\n"
FORUM = "\tNobody judged this .\tNor this .\n2.25\tWhy ?\tWarum \u2026 ?\n".encode()
WRITTEN = (
    "subset\tscore\tsentence1\tsentence2\n"
    "news\t4.5\tA cat sat down .\tThe cat took a seat .\n"
    "news\t0\tRain fell all day .\tShe reads a book .\n"
    "forum\t2.25\tWhy ?\tWarum \u2026 ?\n"
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, data)
    return packed.getvalue()


def table(**changes: Any) -> Table:
    """A table of scored pairs in two subsets, ``news.tsv`` and ``forum.tsv`` of its source."""
    given: dict[str, Any] = {
        "file": "small_test.tsv",
        "set": "small",
        "source": "a site for tests",
        "base": "https://example.org/",
        "licence": "as you like",
        "columns": ["subset", "score", "sentence1", "sentence2"],
        "cells": ["score", "sentence1", "sentence2"],
        "part": ["subset"],
        "skip": {"score": ""},
        "parts": {
            "news": {"files": ["news.tsv"], "rows": 2},
            "forum": {"files": ["forum.tsv"], "rows": 1},
        },
    }
    return Table.model_validate({**given, **changes})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The files of the source, as a folder of downloads."""
    folder = tmp_path / "downloads" / "example.org"
    folder.mkdir(parents=True)
    (folder / "news.tsv").write_bytes(NEWS)
    (folder / "forum.tsv").write_bytes(FORUM)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def fetch_one(monkeypatch, site, data):
    def fetched(*tables: Table, **options):
        monkeypatch.setattr(fetch, "tables_of", lambda suite: list(tables))
        results = fetch_suite("small", data, **{"downloads": site.parent, **options})
        return results[0] if len(results) == 1 else results

    return fetched


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_table_is_converted_and_recorded(data, fetch_one):
    result = fetch_one(table())
    assert (data / "small_test.tsv").read_text(encoding="utf-8") == WRITTEN
    assert left_in(data) == ["SOURCES.json", "small_test.tsv"]
    record = json.loads((data / "SOURCES.json").read_bytes())["tables"]["small_test.tsv"]
    assert (result.state, result.record) == ("fetched", record)
    assert (record["rows"], record["left_out"], record["licence"]) == (3, 1, "as you like")
    assert record["downloads"]["https://example.org/news.tsv"] == sha256(NEWS)
    # What is written is what the suite reads.
    assert read_pairs(data / "small_test.tsv", "small").gold.tolist() == [4.5, 0.0, 2.25]


def test_a_table_that_is_there_is_replaced_only_by_force(data, site, fetch_one):
    data.mkdir()
    (data / "small_test.tsv.gz").write_bytes(b"mine")
    assert fetch_one(table()).state == "already there"
    assert left_in(data) == ["small_test.tsv.gz"]
    assert fetch_one(table(), overwrite=True).state == "fetched"
    # Were both there, the suite would read one of them only.
    assert left_in(data) == ["SOURCES.json", "small_test.tsv"]


@pytest.mark.parametrize(
    "changes",
    [
        {"checksums": {"news.tsv": "0" * 64}},
        {"sha256": "0" * 64},
        {"parts": {"news": {"files": ["news.tsv"], "rows": 3}}},
        {"parts": {"news": {"files": ["short.tsv"]}}},
        {"parts": {"news": {"files": ["latin.tsv"]}}},
        {"parts": {"news": {"files": ["broken.tsv.gz"]}}},
        {"parts": {"news": {"files": ["all.zip!no.tsv"]}}},
        {"parts": {"news": {"files": ["news.tsv", "short.tsv"]}}},
    ],
)
def test_a_failure_leaves_nothing_and_does_not_stop_the_others(site, data, fetch_one, changes):
    (site / "short.tsv").write_bytes(b"1\tone cell too few\n")
    (site / "latin.tsv").write_bytes(b"1\t\xff\tb\n")
    (site / "broken.tsv.gz").write_bytes(gzip.compress(FORUM)[:-9])
    (site / "all.zip").write_bytes(zipped("news.tsv", NEWS))
    failed, fetched = fetch_one(table(**changes), table(file="other_test.tsv"))
    assert (failed.state, fetched.state) == ("failed", "fetched")
    assert failed.problem
    assert left_in(data) == ["SOURCES.json", "other_test.tsv"]


def test_content_that_changes_is_refused_after_the_first_time(site, data, fetch_one):
    fetch_one(table())
    (site / "news.tsv").write_bytes(NEWS.replace(b"4.5", b"4.0"))
    assert fetch_one(table(), overwrite=True).state == "failed"
    assert (data / "small_test.tsv").read_text(encoding="utf-8") == WRITTEN
    accepted = fetch_one(table(), overwrite=True, accept_changed=True)
    assert (accepted.state, accepted.record["pinned"]) == ("fetched", False)
    # From now on the new content is the one that is held to.
    (site / "news.tsv").write_bytes(NEWS)
    assert fetch_one(table(), overwrite=True).state == "failed"


@pytest.mark.parametrize(
    ("changes", "pinned"),
    [
        ({"sha256": sha256(WRITTEN.encode())}, True),
        ({"checksums": {"news.tsv": sha256(NEWS), "forum.tsv": sha256(FORUM)}}, True),
        ({"checksums": {"news.tsv": sha256(NEWS)}}, False),
    ],
)
def test_a_table_is_called_pinned_only_where_all_of_it_was_known_beforehand(fetch_one, changes, pinned):
    one = table(**changes)
    assert one.is_pinned is pinned
    assert fetch_one(one).record["pinned"] is pinned


def test_packed_sources_and_packed_tables(site, data, fetch_one):
    (site / "all.zip").write_bytes(zipped("data/news.tsv", NEWS))
    (site / "forum.tsv.gz").write_bytes(gzip.compress(FORUM))
    parts = {"news": {"files": ["all.zip!data/news.tsv"]}, "forum": {"files": ["forum.tsv.gz"]}}
    assert fetch_one(table(file="small_test.tsv.gz", parts=parts)).state == "fetched"
    assert gzip.decompress((data / "small_test.tsv.gz").read_bytes()).decode() == WRITTEN


@pytest.fixture
def server(monkeypatch) -> Iterator[str]:
    """A web server that is busy at the first request, and sends half of a page that is called cut."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    busy = [503]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if busy:
                self.send_error(busy.pop())
            elif "gone" in self.path:
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(NEWS)))
                self.end_headers()
                self.wfile.write(NEWS[: len(NEWS) // 2] if "cut" in self.path else NEWS)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{one.server_address[1]}/"
        one.shutdown()
        thread.join()


def test_downloads_are_tried_again_shown_and_not_kept(server, data, fetch_one):
    lines: list[str] = []
    one = table(base=server, parts={"news": {"files": ["news.tsv"], "rows": 2}})
    result = fetch_one(one, downloads=None, progress=LineProgress(lines.append))
    assert result.state == "fetched"
    assert any(line.startswith(f"news.tsv {size(len(NEWS))}/{size(len(NEWS))}") for line in lines)
    for name in ("gone.tsv", "cut.tsv"):
        broken = table(base=server, file="other.tsv", parts={"news": {"files": [name]}})
        assert fetch_one(broken, downloads=None).state == "failed"
    assert left_in(data) == ["SOURCES.json", "small_test.tsv"]


def test_a_data_set_of_the_hub_comes_through_its_client(tmp_path, fetch_one, monkeypatch):
    asked = []

    def hub(dataset, file, **options):
        asked.append((dataset, file, options["repo_type"], options["revision"]))
        (tmp_path / "hub").write_bytes(NEWS)
        return str(tmp_path / "hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub)
    base = "https://huggingface.co/datasets/org/pairs/resolve/abc/test/"
    assert fetch_one(table(base=base, parts={"news": {"files": ["news.tsv"]}})).state == "fetched"
    assert asked == [("org/pairs", "test/news.tsv", "dataset", "abc")]


def test_a_record_that_cannot_be_read_is_not_written_over(data, fetch_one):
    data.mkdir()
    (data / "SOURCES.json").write_text('{"tables"', encoding="utf-8")
    with pytest.raises(DataError, match=r"SOURCES\.json"):
        fetch_one(table())
    assert left_in(data) == ["SOURCES.json"]


ALL = {one.stem: (suite, one) for suite in fetchable_suites() for one in tables_of(suite)}


@pytest.fixture
def read(tmp_path):
    """Return the rows that files in the form of the table called so give, and how many were left out."""

    def rows_of(stem: str, *files: str, encoding: str = "utf-8") -> tuple[list[list[str]], int]:
        names = [f"{number}.txt" for number in range(len(files))]
        one = ALL[stem][1].model_dump() | {"parts": {"x": {"files": names}}}
        for name, text in zip(names, files, strict=True):
            (tmp_path / name).write_bytes(text.encode(encoding))
        made = Table.model_validate(one)
        rows, left_out = made.read({url: tmp_path / url.rpartition("/")[2] for url in made.urls()})
        return [list(row.values()) for row in rows], left_out

    return rows_of


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
SNLI = "gold_label\tsentence1_parse\tsentence1\tsentence2\tpairID\n"
SNLI_ROWS = "neutral\t( x )\tA man runs.\tA man  is late.\t1\n-\t( x )\tA man runs.\tA man trains.\t2\n"


@pytest.mark.parametrize(
    ("stem", "files", "expected", "left_out"),
    [
        ("sts12_test", ("4.600\n0\n", "A\u2028b c\tOne\nA man\tTwo\n"), ["x", "4.600", "A b c", "One"], 0),
        ("sts15_test", ("3.25\tHow so?\tWhy?\n\tNot\tscored\n",), ["x", "3.25", "How so?", "Why?"], 1),
        (
            "sts17_en-de",
            ('{"score": 2.4, "sentence1": "A dog.", "sentence2": "Ein\\tHund."}\n',),
            ["2.4", "A dog.", "Ein Hund."],
            0,
        ),
        ("stsb_mt_de", ('"Ja.","Er sagte ""nein"".",1.0\r\n',), ["1.0", "Ja.", 'Er sagte "nein".'], 0),
        ("sick", (SICK + '12\tA "cat sleeps \tA cat\t4.9\tENTAILMENT\n',), ["4.9", 'A "cat sleeps'], 0),
        ("senteval_cr", ("good stuff .\n\n  \nfine\n",), ["x", "good stuff ."], 2),
        ("senteval_mr", ('0  bad " stuff . \n1 \n1 good\n',), ["0", 'bad " stuff .'], 1),
        ("senteval_trec", ("NUM:count How many legs ?\n",), ["x", "NUM", "How many legs ?"], 0),
        ("snli_train", (SNLI + SNLI_ROWS,), ["neutral", "A man runs.", "A man is late."], 1),
        ("flickr30k_captions5", tuple(f"{word}\n" for word in "abcde"), ["x", "0", *"abcde"], 0),
    ],
)
def test_sources_become_rows(read, stem, files, expected, left_out):
    rows, count = read(stem, *files)
    assert [cell for cell in expected if cell not in rows[0]] == []
    assert len(rows[0]) == len(ALL[stem][1].columns)
    assert count == left_out


@pytest.mark.parametrize(
    ("stem", "files"),
    [
        ("sts15_test", ("high\ta\tb\n",)),
        ("sts17_en-de", ('{"score": 1}\n',)),
        ("stsb_mt_de", ('"never closed,b,1\n',)),
        ("sick", ("12\tA cat sleeps\tA cat\t4.9\tENTAILMENT\n" * 2,)),
        ("senteval_mr", ("good stuff\n",)),
        ("flickr30k_captions5", ("a\n", "b\n", "c\n", "d\n", "e\nf\n")),
        ("er_dblp_acm_queries", ("COL name VAL Inn\tCOL name VAL Bar\tyes\n", "", "")),
        ("er_dblp_acm_entities", ("Inn\tCOL name VAL Bar\t1\n", "", "")),
    ],
)
def test_a_source_of_another_form_is_an_error(read, stem, files):
    with pytest.raises(DataError, match="source has changed"):
        read(stem, *files)


def test_matched_records_become_queries_and_a_catalogue(read):
    inn, bar, cafe = (
        "COL name VAL Inn COL place VAL Rye ",
        "COL name VAL Bar COL place VAL ",
        "COL name VAL Café ",
    )
    files = (
        f"{inn}\tCOL name VAL The Inn COL place VAL \t1\n{bar}\t{cafe}\t0\n",
        f"{inn}\t{cafe}\t0\n",
        f"{inn}\tCOL name VAL Inn, UK\t1\n",
    )
    assert read("er_dblp_acm_queries", *files)[0] == [["test,train", "D0", "Inn | Rye", "C0,C2"]]
    entities = [["C0", "The Inn |"], ["C1", "Café"], ["C2", "Inn, UK"]]
    assert read("er_dblp_acm_entities", *files)[0] == entities


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_copies_in_utf8_and_in_latin1_are_read_alike(read, encoding):
    assert "café" in read("senteval_mr", "1 café\n", encoding=encoding)[0][0]


def test_every_source_has_a_licence_and_an_address_or_digest_that_cannot_change():
    for _, one in ALL.values():
        assert one.licence
        for digest in filter(None, [one.sha256, *one.checksums.values()]):
            assert len(bytes.fromhex(digest)) == 32
        at_a_commit = all(any(len(name) == 40 for name in url.split("/")) for url in one.urls())
        assert at_a_commit or None not in one.urls().values()
        assert all(url.startswith("https://") for url in one.urls())


# Development and training sets, and files that a suite reads in place of others.
OTHERS = {"stsb_dev", "stsb_train", "snli_dev", "senteval_sst2_sentences", "flickr30k_captions5"}


def test_tables_to_fetch_fit_the_files_of_the_suites():
    assert fetchable_suites() == [suite for suite in sorted(suites()) if suite not in ("fidelity", "pairs")]
    for stem, (suite, one) in ALL.items():
        # Capitals stand for any name.
        files = get_suite(suite).files
        wanted = [
            file.columns for file in files if re.fullmatch(re.sub(r"[A-Z]+[0-9]?", ".+", file.stem), stem)
        ]
        assert stem in OTHERS or wanted, stem
        assert stem in OTHERS or all(set(columns) <= set(one.columns) for columns in wanted), stem


def run(*words: object):
    return CliRunner().invoke(cli, ["data", *map(str, words)])


def test_the_list_names_files_sources_licences_and_addresses():
    listing = run("list").output
    for suite, one in ALL.values():
        assert suite in listing.splitlines()
        assert f"  {one.file} " in listing
        assert f"{one.source}; licence: {one.licence}" in listing
    listed = json.loads(run("list", "sts", "--json").output)
    assert [one["rows"] for one in listed["sts"]][:5] == [3108, 1500, 3750, 3000, 1186]
    urls = run("list", "nli", "--urls").output.splitlines()
    # Three files of SICK, and one archive that holds three of SNLI.
    assert len(urls) == len(set(urls)) == 4
    assert "no sources are known" in str(run("list", "nothing").exception)


def test_the_command_lists_fetched_files_and_fails_if_one_is_missing(monkeypatch, site, data):
    other = {"file": "other_test.tsv", "parts": {"news": {"files": ["news.tsv"]}}, "licence": "ask first"}
    for module in (fetch, source_tables):
        monkeypatch.setattr(module, "tables_of", lambda suite: [table(), table(**other)])
    words = ["fetch", "small", "--to", data, "--downloads", site.parent]
    part = run(*words, "--only", "other_test.tsv")
    assert (part.exit_code, left_in(data)) == (0, ["SOURCES.json", "other_test.tsv"])
    whole = run(*words)
    assert "a site for tests; licence: as you like" in whole.stderr
    assert "small_test.tsv: fetched, 3 rows, 1 left out" in whole.stdout
    assert "other_test.tsv: already there" in whole.stdout
    (site / "forum.tsv").write_bytes(b"no table")
    failed = run(*words, "--overwrite")
    assert getattr(failed.exception, "exit_code", None) == 1
    assert "small_test.tsv: failed: " in failed.stdout
    assert "other_test.tsv: fetched" in failed.stdout
    assert run(*words, "--only", "thing.tsv").exit_code == 2
