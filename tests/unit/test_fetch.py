"""Fetching test data: a table arrives whole and as its source's digests say, or nothing of it is left."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import pytest
from fetch_helpers import FORUM, NEWS, WRITTEN, serving, table

from distill.errors import DataError
from distill.evaluation import fetch
from distill.evaluation.fetch import fetch_suite
from distill.evaluation.files import read_pairs
from distill.evaluation.source_tables import Table, fetchable_suites, tables_of
from distill.evaluation.task import get_suite, suites


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "RETRIES", 0)
    with serving() as one:
        yield one


@pytest.fixture
def fetch_one(monkeypatch, tmp_path):
    def fetched(*tables: Table, folder=tmp_path, **options):
        monkeypatch.setattr(fetch, "tables_of", lambda suite: list(tables))
        results = fetch_suite("small", folder, **options)
        return results[0] if len(results) == 1 else results

    return fetched


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_table_is_fetched_converted_and_recorded(site, tmp_path, fetch_one):
    steps = []
    result = fetch_one(table(site), on_step=lambda *step: steps.append(step))
    assert (tmp_path / "small_test.tsv").read_text(encoding="utf-8") == WRITTEN
    assert left_in(tmp_path) == ["SOURCES.json", "small_test.tsv"]
    record = json.loads((tmp_path / "SOURCES.json").read_bytes())["tables"]["small_test.tsv"]
    assert (result.state, result.record) == ("fetched", record)
    assert (record["rows"], record["left_out"], record["licence"]) == (3, 1, "as you like")
    assert record["sha256"] == sha256(WRITTEN.encode())
    assert record["downloads"] == {
        f"{site.address}news.tsv": sha256(NEWS),
        f"{site.address}forum.tsv": sha256(FORUM),
    }
    assert ("news.tsv", len(NEWS), len(NEWS)) in steps
    # What is written is what the suite reads.
    assert read_pairs(tmp_path / "small_test.tsv", "small").scores == (4.5, 0.0, 2.25)


def test_a_table_that_is_there_is_fetched_again_only_by_force(site, fetch_one):
    one = table(site)
    fetch_one(one)
    site.asked.clear()
    assert fetch_one(one).state == "already there"
    assert site.asked == []
    assert fetch_one(one, force=True).state == "fetched"
    assert site.asked == ["/news.tsv", "/forum.tsv"]
    site.pages.clear()
    assert fetch_one(one, force=True).state == "failed"
    assert fetch_one(one).state == "already there"


@pytest.mark.parametrize("name", ["small_test.tsv", "small_test.tsv.gz"])
def test_a_file_of_somebody_else_is_known_by_its_digest_or_left_alone(site, tmp_path, fetch_one, name):
    one = table(site, sha256=sha256(WRITTEN.encode()))
    for text, state in ((WRITTEN, "already there"), ("mine\n", "failed")):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert fetch_one(one).state == state
        assert left_in(tmp_path) == [name]
    assert site.asked == []
    assert fetch_one(one, force=True).state == "fetched"
    # Were both there, the suite would read the old one.
    assert left_in(tmp_path) == ["SOURCES.json", "small_test.tsv"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"checksums": {"news.tsv": "0" * 64}}, "0" * 64),
        ({"sha256": "0" * 64}, sha256(WRITTEN.encode())),
        ({"parts": {"news": {"files": ["nothing.tsv"]}}}, "404"),
        ({"parts": {"news": {"files": ["cut.tsv"]}}}, "IncompleteRead"),
        ({"parts": {"news": {"files": ["news.tsv"], "rows": 3}}}, "expected 3"),
        ({"parts": {"news": {"files": ["short.tsv"]}}}, "2 cells"),
        ({"parts": {"news": {"files": ["latin.tsv"]}}}, "utf-8"),
        ({"parts": {"news": {"files": ["broken.tsv.gz"]}}}, "broken.tsv.gz"),
        ({"parts": {"news": {"files": ["all.zip!no.tsv"]}}}, "no.tsv"),
        ({"parts": {"news": {"files": ["news.tsv", "short.tsv"]}}}, "short.tsv"),
    ],
)
def test_a_failure_leaves_nothing_and_does_not_stop_the_others(site, tmp_path, fetch_one, changes, told):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("news.tsv", NEWS)
    site.pages |= {
        "/cut.tsv": NEWS,
        "/short.tsv": b"1\tone cell too few\n",
        "/latin.tsv": b"1\t\xff\tb\n",
        "/broken.tsv.gz": gzip.compress(FORUM)[:-9],
        "/all.zip": packed.getvalue(),
    }
    failed, fetched = fetch_one(table(site, **changes), table(site, file="other_test.tsv"))
    assert (failed.state, fetched.state) == ("failed", "fetched")
    assert told in failed.problem
    assert left_in(tmp_path) == ["SOURCES.json", "other_test.tsv"]


def test_content_that_changes_is_refused_after_the_first_time(site, tmp_path, fetch_one):
    one = table(site)
    assert not one.is_pinned
    fetch_one(one)
    site.pages["/news.tsv"] = NEWS.replace(b"4.5", b"4.0")
    assert sha256(NEWS) in fetch_one(one, force=True).problem
    assert (tmp_path / one.file).read_text(encoding="utf-8") == WRITTEN
    accepted = fetch_one(one, force=True, accept_changed=True)
    assert (accepted.state, accepted.record["pinned"]) == ("fetched", False)
    assert "news\t4.0\t" in (tmp_path / one.file).read_text(encoding="utf-8")
    # From now on the new content is the one that is held to.
    site.pages["/news.tsv"] = NEWS
    assert fetch_one(one, force=True).state == "failed"


@pytest.mark.parametrize(
    ("changes", "pinned"),
    [
        ({"sha256": sha256(WRITTEN.encode())}, True),
        ({"checksums": {"news.tsv": sha256(NEWS), "forum.tsv": sha256(FORUM)}}, True),
        ({"checksums": {"news.tsv": sha256(NEWS)}}, False),
    ],
)
def test_a_table_is_called_pinned_only_where_all_of_it_was_known_beforehand(site, fetch_one, changes, pinned):
    one = table(site, **changes)
    assert one.is_pinned is pinned
    assert fetch_one(one).record["pinned"] is pinned


def test_packed_sources_and_packed_tables(site, tmp_path, fetch_one):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data/news.tsv", NEWS)
    site.pages = {"/all.zip": packed.getvalue(), "/forum.tsv.gz": gzip.compress(FORUM)}
    parts = {"news": {"files": ["all.zip!data/news.tsv"]}, "forum": {"files": ["forum.tsv.gz"]}}
    one = table(site, file="small_test.tsv.gz", parts=parts)
    assert fetch_one(one).state == "fetched"
    written = (tmp_path / "small_test.tsv.gz").read_bytes()
    assert gzip.decompress(written).decode() == WRITTEN
    fetch_one(one, force=True)
    assert (tmp_path / "small_test.tsv.gz").read_bytes() == written


def test_a_folder_of_downloads_stands_for_the_network(site, tmp_path, fetch_one):
    brought = tmp_path / "brought"
    place = brought / site.address.removeprefix("http://")
    place.mkdir(parents=True)
    for name, data in (("news.tsv", NEWS), ("forum.tsv", FORUM)):
        (place / name).write_bytes(data)
    site.pages.clear()
    assert fetch_one(table(site), folder=tmp_path / "data", downloads=brought).state == "fetched"
    # They are held against the digests all the same, and stay.
    strict = table(site, file="strict.tsv", checksums={"news.tsv": "0" * 64})
    assert fetch_one(strict, folder=tmp_path / "data", downloads=brought).state == "failed"
    assert site.asked == []
    assert (place / "news.tsv").read_bytes() == NEWS


def test_a_passing_failure_is_tried_again(site, fetch_one, monkeypatch):
    monkeypatch.setattr(fetch, "RETRIES", 2)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    site.failures["/news.tsv"] = [503, 429]
    assert fetch_one(table(site)).state == "fetched"


def test_a_host_that_does_not_answer_is_asked_once(tmp_path, monkeypatch, fetch_one):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "RETRIES", 0)
    with serving() as gone:
        pass
    first, second = fetch_one(table(gone), table(gone, file="b.tsv"))
    assert (first.state, second.state) == ("failed", "failed")
    assert "did not answer before" in second.problem


def test_a_data_set_of_the_hub_comes_through_its_client(site, tmp_path, fetch_one, monkeypatch):
    asked = []

    def hub(dataset, file, **options):
        asked.append((dataset, file, options["repo_type"], options["revision"]))
        (tmp_path / "hub").write_bytes(NEWS)
        return str(tmp_path / "hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub)
    base = "https://huggingface.co/datasets/org/pairs/resolve/abc/test/"
    one = table(site, base=base, parts={"news": {"files": ["news.tsv"], "rows": 2}})
    assert fetch_one(one, folder=tmp_path / "data").state == "fetched"
    assert asked == [("org/pairs", "test/news.tsv", "dataset", "abc")]


def test_a_record_that_cannot_be_read_is_not_written_over(site, tmp_path, fetch_one):
    (tmp_path / "SOURCES.json").write_text('{"tables": {"a": 1}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"SOURCES\.json"):
        fetch_one(table(site))
    assert left_in(tmp_path) == ["SOURCES.json"]


ALL = [(suite, one) for suite in fetchable_suites() for one in tables_of(suite)]
IDS = [f"{suite}-{one.stem}" for suite, one in ALL]


def read(like: str, *files: str, part: str = "x") -> list[list[str]]:
    """The rows that files in the form of the table called ``like`` give, as cells."""
    return [list(row.values()) for row in rows_of(like, *files, part=part)[0]]


def rows_of(like: str, *files: str, part: str = "x"):
    one = next(table for _, table in ALL if table.file.startswith(like))
    names = [f"{number}.txt" for number in range(len(files))]
    one = Table.model_validate({**one.model_dump(), "parts": {part: {"files": names}}})
    for name, text in zip(names, files, strict=True):
        Path(name).write_bytes(text.encode())
    return one.read(dict(zip(one.urls(), map(Path, names), strict=True)))


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
SNLI = "gold_label\tsentence1_parse\tsentence1\tsentence2\tpairID\n"
SNLI_ROWS = "neutral\t( x )\tA man runs.\tA man  is late.\t1\n-\t( x )\tA man runs.\tA man trains.\t2\n"


@pytest.mark.parametrize(
    ("like", "files", "expected"),
    [
        ("sts12", ("4.600\n0\n", "A\u2028b c\tOne\nA man\tTwo\n"), ["x", "4.600", "A b c", "One"]),
        ("sts15", ("3.25\tHow so?\tWhy?\n\tNot\tscored\n",), ["x", "3.25", "How so?", "Why?"]),
        ("sts17_en-de", ('{"score": 2.4, "sentence1": "Ein\\tHund.", "sentence2": "A dog."}\n',), None),
        (
            "stsb_dev",
            ('talk\tforum\t2031\t0007\t3.5\tHe said "yes.\tHe agreed.\tX\tY\n',),
            ["talk", "forum", "2031", "0007", "3.5", 'He said "yes.', "He agreed."],
        ),
        (
            "stsb_mt_de",
            ('"Ja, gern.","Er sagte ""nein"".",1.0\r\n',),
            ["1.0", "Ja, gern.", 'Er sagte "nein".'],
        ),
        ("sick", (SICK + "12\tA cat sleeps \tA cat\t4.9\tENTAILMENT\n",), ["4.9", "A cat sleeps", "A cat"]),
        ("senteval_cr", ("good stuff .\n\n  \nfine\n",), ["x", "good stuff ."]),
        ("senteval_mr", ('0  bad " stuff . \n1 \n1 good\n',), ["0", 'bad " stuff .']),
        ("senteval_trec", ("NUM:count How many legs ?\n",), ["x", "NUM", "How many legs ?", "NUM:count"]),
        (
            "senteval_mrpc",
            (MRPC + '1\t17\t18\t"So be it.\tSo "be" it.\n',),
            ["x", "1", '"So be it.', 'So "be" it.'],
        ),
        ("glue_sst2", ("sentence\tlabel\nwell done \t1\n",), ["x", "1", "well done"]),
        ("snli_train", (SNLI + SNLI_ROWS,), ["neutral", "A man runs.", "A man is late."]),
        ("flickr30k", tuple(f"{word}\n" for word in "abcde"), ["x", "0", *"abcde"]),
    ],
)
def test_sources_become_rows(tmp_path, monkeypatch, like, files, expected):
    monkeypatch.chdir(tmp_path)
    first = read(like, *files)[0]
    wanted = expected or ["2.4", "Ein Hund.", "A dog."]
    assert [cell for cell in wanted if cell not in first] == []
    assert len(first) == len(next(one for _, one in ALL if one.file.startswith(like)).columns)


@pytest.mark.parametrize(
    ("like", "files", "left_out"),
    [
        ("sts15", ("1\ta\tb\n\tNot\tscored\n \tNor\tthis\n",), 2),
        ("senteval_cr", ("a\n\n  \n",), 2),
        ("snli_test", (SNLI + SNLI_ROWS,), 1),
    ],
)
def test_rows_that_are_not_scored_are_counted(tmp_path, monkeypatch, like, files, left_out):
    monkeypatch.chdir(tmp_path)
    rows, skipped = rows_of(like, *files)
    assert (len(rows), skipped) == (1, left_out)


@pytest.mark.parametrize(
    ("like", "files"),
    [
        ("sts15", ("high\ta\tb\n",)),
        ("sts17", ('{"score": 1}\n',)),
        ("sts17", ("not json\n",)),
        ("stsb_mt_de", ("a,b\n",)),
        ("stsb_mt_de", ('"never closed,b,1\n',)),
        ("sick", ("12\tA cat sleeps\tA cat\t4.9\tENTAILMENT\n" * 2,)),
        ("senteval_mr", ("good stuff\n",)),
        ("senteval_trec", ("NUM How many ?\n",)),
        ("senteval_mrpc", (MRPC + "1\t2\t3\tone sentence\n",)),
        ("flickr30k", ("a\n", "b\n", "c\n", "d\n", "e\nf\n")),
        ("er_dblp_acm_queries", ("COL name VAL Inn\tCOL name VAL Bar\tyes\n", "", "")),
        ("er_dblp_acm_entities", ("Inn\tCOL name VAL Bar\t1\n", "", "")),
    ],
)
def test_a_source_of_another_form_is_an_error(tmp_path, monkeypatch, like, files):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="source has changed"):
        read(like, *files)


def test_matched_records_become_queries_and_a_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
    assert read("er_dblp_acm_queries", *files) == [["test,train", "D0", "Inn | Rye", "C0,C2"]]
    assert read("er_dblp_acm_entities", *files) == [["C0", "The Inn |"], ["C1", "Café"], ["C2", "Inn, UK"]]


def test_a_copy_that_is_not_utf8_is_read_as_latin1(tmp_path):
    one = next(table for _, table in ALL if table.file.startswith("senteval_mr"))
    one = Table.model_validate({**one.model_dump(), "parts": {"all": {"files": ["x"]}}})
    for encoding in ("utf-8", "latin-1"):
        (tmp_path / "x").write_bytes("1 café\n".encode(encoding))
        assert one.read(dict.fromkeys(one.urls(), tmp_path / "x"))[0][0]["text"] == "café"


@pytest.mark.parametrize(("suite", "one"), ALL, ids=IDS)
def test_every_source_is_pinned_or_checked(suite, one):
    assert one.licence
    assert set(one.checksums) <= {
        file.partition("!")[0] for part in one.parts.values() for file in part.files
    }
    for digest in filter(None, [one.sha256, *one.checksums.values()]):
        assert len(bytes.fromhex(digest)) == 32
    at_a_commit = all(any(len(name) == 40 for name in url.split("/")) for url in one.urls())
    assert at_a_commit or None not in one.urls().values()
    assert all(url.startswith("https://") for url in one.urls())


# Development and training sets, and files that a suite reads in place of others.
OTHERS = {"stsb_dev", "stsb_train", "snli_dev", "senteval_sst2_sentences", "flickr30k_captions5"}


@pytest.mark.parametrize(("suite", "one"), ALL, ids=IDS)
def test_what_is_fetched_is_what_the_suite_reads(suite, one):
    # Capitals stand for any name.
    wanted = [
        file.columns
        for file in get_suite(suite).files
        if re.fullmatch(re.sub(r"[A-Z]+[0-9]?", ".+", file.stem), one.stem)
    ]
    assert wanted or one.stem in OTHERS
    assert all(set(columns) <= set(one.columns) or one.stem in OTHERS for columns in wanted)


def test_there_are_sources_for_the_suites_that_read_files():
    assert fetchable_suites() == [suite for suite in sorted(suites()) if suite != "fidelity"]
    with pytest.raises(DataError, match="choose one of entities"):
        tables_of("nothing")
