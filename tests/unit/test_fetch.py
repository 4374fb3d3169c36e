"""Fetching: what comes is whole and what it should be, or nothing is left of it."""

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

from distill.errors import DataError, FetchError
from distill.evaluation.fetch import fetch as fetch_module
from distill.evaluation.fetch import fetch_suite, fetchable_suites, missing, tables_of
from distill.evaluation.fetch.download import UnreachableError, download
from distill.evaluation.fetch.registry import READERS
from distill.evaluation.fetch.sources import place_of
from distill.evaluation.sts import read_pairs
from distill.evaluation.suite_files import SUITE_FILES
from distill.evaluation.suites import SUITES


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Waiting between attempts has a test of its own.
    monkeypatch.setattr(fetch_module, "ATTEMPTS", 1)
    with serving() as one:
        one.pages = {"/news.tsv": NEWS, "/forum.tsv": FORUM}
        yield one


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def fetch_one(folder, one, **more):
    (result,) = fetch_suite("small", [one], folder, **more)
    return result


def test_a_table_is_fetched_converted_and_recorded(site, tmp_path):
    result = fetch_one(tmp_path, table(site))
    assert result.state == "fetched"
    assert (tmp_path / "small_test.tsv").read_text(encoding="utf-8") == WRITTEN
    assert left_in(tmp_path) == ["SOURCES.json", "small_test.tsv"]
    record = json.loads((tmp_path / "SOURCES.json").read_bytes())["tables"]["small_test.tsv"]
    assert record["sha256"] == sha256(WRITTEN.encode())
    assert (record["rows"], record["dropped"]) == (3, {"pairs without a score": 1})
    assert (record["suite"], record["source"], record["licence"]) == (
        "small",
        "a site for tests",
        "as you like",
    )
    assert record["files"] == [
        {
            "url": f"{site.address}{name}",
            "sha256": sha256(data),
            "size": len(data),
            "known_beforehand": False,
        }
        for name, data in (("news.tsv", NEWS), ("forum.tsv", FORUM))
    ]
    assert not record["known_beforehand"]
    assert result.record is not None
    assert not result.record.is_checked
    # What is written is what the suite reads.
    assert read_pairs(tmp_path / "small_test.tsv", "small").scores == (4.5, 0.0, 2.25)


def test_what_is_there_is_not_fetched_again(site, tmp_path):
    one = table(site)
    assert missing([one], tmp_path) == [one]
    fetch_one(tmp_path, one)
    assert missing([one], tmp_path) == []
    site.asked.clear()
    assert fetch_one(tmp_path, one).state == "already there"
    assert site.asked == []
    assert fetch_one(tmp_path, one, force=True).state == "fetched"
    assert site.asked == ["/news.tsv", "/forum.tsv"]


@pytest.mark.parametrize("name", ["small_test.tsv", "small_test.tsv.gz"])
def test_a_file_of_somebody_else_is_known_by_its_digest_or_left_alone(site, tmp_path, name):
    def put(text: str) -> None:
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    one = table(site, sha256=sha256(WRITTEN.encode()))
    put(WRITTEN)
    assert fetch_one(tmp_path, one).state == "already there"
    put("mine\n")
    result = fetch_one(tmp_path, one)
    assert "was not fetched by this command" in result.problem
    assert site.asked == []
    assert left_in(tmp_path) == [name]
    assert fetch_one(tmp_path, one, force=True).state == "fetched"
    # Both would be there else, and the suite would read the old one.
    assert left_in(tmp_path) == ["SOURCES.json", "small_test.tsv"]


def test_a_file_changed_after_it_was_fetched_is_told(site, tmp_path):
    one = table(site)
    fetch_one(tmp_path, one)
    (tmp_path / one.file).write_text(WRITTEN + "news\t1\ta\tb\n", encoding="utf-8")
    result = fetch_one(tmp_path, one)
    assert result.state == "failed"
    assert "has changed since it was fetched" in result.problem


def test_a_wrong_digest_leaves_nothing(site, tmp_path):
    one = table(site, checksums={"news.tsv": "0" * 64})
    result = fetch_one(tmp_path, one)
    assert result.state == "failed"
    assert sha256(NEWS) in result.problem
    assert "0" * 64 in result.problem
    assert left_in(tmp_path) == []

    result = fetch_one(tmp_path, table(site, sha256="0" * 64))
    assert sha256(WRITTEN.encode()) in result.problem
    assert left_in(tmp_path) == []


def test_the_right_digests_are_told(site, tmp_path):
    sums = {"news.tsv": sha256(NEWS), "forum.tsv": sha256(FORUM)}
    some = {"news.tsv": sha256(NEWS)}
    checked = [
        fetch_one(tmp_path / str(place), one).record.is_checked
        for place, one in enumerate(
            [
                table(site, sha256=sha256(WRITTEN.encode())),
                table(site, checksums=sums),
                table(site, checksums=some),
            ]
        )
    ]
    assert checked == [True, True, False]
    assert table(site, checksums=sums).is_checked
    assert not table(site, checksums=some).is_checked


def test_content_that_changes_is_refused_after_the_first_time(site, tmp_path):
    one = table(site)
    fetch_one(tmp_path, one)
    before = (tmp_path / "SOURCES.json").read_bytes()
    site.pages["/news.tsv"] = NEWS.replace(b"4.5", b"4.0")
    (tmp_path / one.file).unlink()
    result = fetch_one(tmp_path, one)
    assert result.state == "failed"
    assert f"expected {sha256(NEWS)}" in result.problem
    assert left_in(tmp_path) == ["SOURCES.json"]
    assert (tmp_path / "SOURCES.json").read_bytes() == before

    assert fetch_one(tmp_path, one, accept_changed=True).state == "fetched"
    assert "news\t4.0\t" in (tmp_path / one.file).read_text(encoding="utf-8")
    # From now on the new content is the one that is held to.
    site.pages["/news.tsv"] = NEWS
    assert fetch_one(tmp_path, one, force=True).state == "failed"


def test_accepted_content_is_not_called_checked(site, tmp_path):
    one = table(site, sha256="0" * 64, checksums={"news.tsv": "1" * 64, "forum.tsv": sha256(FORUM)})
    record = fetch_one(tmp_path, one, accept_changed=True).record
    assert not record.is_checked
    assert [file.known_beforehand for file in record.files] == [False, True]


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda site: site.broken.add("/forum.tsv"), "the transfer broke off"),
        (lambda site: site.pages.pop("/forum.tsv"), "404"),
        (lambda site: site.pages.update({"/forum.tsv": FORUM + b"1\ta\tb\n"}), "gave 2 rows, expected 1"),
        (lambda site: site.pages.update({"/forum.tsv": b"1\tone cell too few\n"}), "2 cells"),
        (lambda site: site.pages.update({"/forum.tsv": b"1\t\xff\tb\n"}), "not utf-8"),
        (lambda site: site.pages.update({"/forum.tsv": gzip.compress(FORUM)[:-9]}), "is damaged"),
    ],
)
def test_what_fails_leaves_nothing_and_stops_nothing(site, tmp_path, break_it, told):
    break_it(site)
    other = table(site, file="other_test.tsv", parts={"news": {"files": ["news.tsv"]}})
    failed, fetched = fetch_suite("small", [table(site), other], tmp_path)
    assert failed.state == "failed"
    assert told in failed.problem
    assert f"{site.address}forum.tsv" in failed.problem or "forum gave" in failed.problem
    assert fetched.state == "fetched"
    assert left_in(tmp_path) == ["SOURCES.json", "other_test.tsv"]
    # What came before the failure is not asked for twice.
    assert site.asked.count("/news.tsv") == 1


def test_a_table_that_was_there_stays_when_its_replacement_fails(site, tmp_path):
    one = table(site)
    fetch_one(tmp_path, one)
    site.broken.add("/news.tsv")
    assert fetch_one(tmp_path, one, force=True).state == "failed"
    assert (tmp_path / one.file).read_text(encoding="utf-8") == WRITTEN


def test_packed_sources_and_packed_tables(site, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data/news.tsv", NEWS)
        archive.writestr("data/forum.tsv", FORUM)
    site.pages = {"/all.zip": packed.getvalue(), "/forum.tsv.gz": gzip.compress(FORUM)}
    one = table(
        site,
        file="small_test.tsv.gz",
        parts={"news": {"files": ["all.zip!data/news.tsv"]}, "forum": {"files": ["forum.tsv.gz"]}},
    )
    assert fetch_one(tmp_path, one).state == "fetched"
    written = (tmp_path / "small_test.tsv.gz").read_bytes()
    assert gzip.decompress(written).decode() == WRITTEN
    fetch_one(tmp_path, one, force=True)
    assert (tmp_path / "small_test.tsv.gz").read_bytes() == written

    lacking = table(site, file="x.tsv", parts={"news": {"files": ["all.zip!data/no.tsv"]}})
    assert "has no data/no.tsv in it" in fetch_one(tmp_path, lacking).problem
    both = table(
        site, file="y.tsv", parts={p: {"files": [f"all.zip!data/{p}.tsv"]} for p in ("news", "forum")}
    )
    site.asked.clear()
    assert fetch_one(tmp_path, both).state == "fetched"
    assert site.asked == ["/all.zip"]


def test_a_folder_of_downloads_stands_for_the_network(site, tmp_path):
    one = table(site)
    kept = tmp_path / "kept"
    fetch_one(tmp_path / "first", one, downloads=kept)
    assert (kept / place_of(f"{site.address}news.tsv")).read_bytes() == NEWS
    site.asked.clear()
    assert fetch_one(tmp_path / "second", one, downloads=kept).state == "fetched"
    assert site.asked == []
    # They are held against the digests all the same, and are not ours to delete.
    strict = table(site, checksums={"news.tsv": "0" * 64})
    again = table(site, file="again.tsv", checksums=strict.checksums)
    for result in fetch_suite("small", [strict, again], tmp_path / "third", downloads=kept):
        assert str(kept) in result.problem
    assert (kept / place_of(f"{site.address}news.tsv")).exists()
    # One that is wrong is not kept.
    assert fetch_one(tmp_path / "fourth", strict, downloads=tmp_path / "new").state == "failed"
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_passing_failures_are_tried_again(site, tmp_path):
    site.failures["/news.tsv"] = [503, 429]
    waits: list[float] = []
    came = download(f"{site.address}news.tsv", tmp_path / "x", wait=waits.append)
    assert (came.sha256, came.size) == (sha256(NEWS), len(NEWS))
    assert waits == [1.0, 2.0]

    waits.clear()
    site.asked.clear()
    site.broken.add("/forum.tsv")
    with pytest.raises(FetchError, match=r"of \d+ bytes came.*tried 4 times"):
        download(f"{site.address}forum.tsv", tmp_path / "x", wait=waits.append)
    assert (waits, len(site.asked)) == ([1.0, 2.0, 4.0], 4)


def test_a_refusal_is_not_tried_again(site, tmp_path):
    with pytest.raises(FetchError, match="404"):
        download(f"{site.address}nothing", tmp_path / "x", wait=pytest.fail)
    assert site.asked == ["/nothing"]
    with pytest.raises(FetchError, match="no HTTP address"):
        download("file:///etc/hostname", tmp_path / "x")


def test_without_a_network_each_host_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as gone:
        pass
    asked: list[int] = []

    def count(url, target, on_bytes, attempts):
        asked.append(attempts)
        return download(url, target, on_bytes, attempts, wait=lambda seconds: None)

    monkeypatch.setattr(fetch_module, "download", count)
    tables = [table(gone, file=f"{name}.tsv") for name in "abc"]
    results = fetch_suite("small", tables, tmp_path)
    assert [one.state for one in results] == ["failed"] * 3
    assert all("no answer" in one.problem for one in results)
    assert asked == [4, 1, 1]
    with pytest.raises(UnreachableError):
        download(f"{gone.address}x", tmp_path / "x", attempts=1)


def test_a_proxy_of_the_environment_is_used(site, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", site.address)
    monkeypatch.setenv("http_proxy", site.address)
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    site.pages["http://far.invalid/news.tsv"] = NEWS
    assert download("http://far.invalid/news.tsv", tmp_path / "x").sha256 == sha256(NEWS)


def test_progress_tells_bytes(site, tmp_path):
    told = []
    fetch_one(tmp_path, table(site), on_step=lambda *step: told.append(step))
    assert ("small_test.tsv, file 1 of 2:", 0, len(NEWS)) in told
    assert ("small_test.tsv, file 2 of 2:", len(FORUM), len(FORUM)) in told


def test_a_record_that_cannot_be_read_is_not_written_over(site, tmp_path):
    (tmp_path / "SOURCES.json").write_text('{"tables": {"a": 1}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"SOURCES\.json cannot be read"):
        fetch_one(tmp_path, table(site))
    assert left_in(tmp_path) == ["SOURCES.json"]


ALL = [(suite, one) for suite in fetchable_suites() for one in tables_of(suite)]


def test_there_are_sources_for_the_suites_that_read_files():
    assert fetchable_suites() == [suite for suite in sorted(SUITES) if suite != "fidelity"]
    with pytest.raises(DataError, match="only for entities"):
        tables_of("nothing")


@pytest.mark.parametrize(("suite", "one"), ALL, ids=lambda value: getattr(value, "file", value))
def test_every_source_is_pinned_or_checked(suite, one):
    assert one.reader in READERS
    assert one.file.endswith((".tsv", ".tsv.gz"))
    assert one.licence
    assert set(one.checksums) <= {
        file.partition("!")[0] for part in one.parts.values() for file in part.files
    }
    for digest in filter(None, [one.sha256, *one.checksums.values()]):
        assert len(bytes.fromhex(digest)) == 32
    pinned = all(any(len(name) == 40 for name in url.split("/")) for url in one.urls())
    assert pinned or all(one.expected(url) for url in one.urls())
    assert all(url.startswith("https://") for url in one.urls())


# Development and training sets, and files that a suite reads in the place of others.
OTHERS = {
    "stsb_dev.tsv",
    "stsb_train.tsv",
    "snli_dev.tsv.gz",
    "senteval_sst2_sentences.tsv.gz",
    "flickr30k_captions5.tsv.gz",
}


@pytest.mark.parametrize(("suite", "one"), ALL, ids=lambda value: getattr(value, "file", value))
def test_what_is_fetched_is_what_the_suite_reads(suite, one):
    # Capitals stand for any name.
    wanted = [
        file.columns
        for file in SUITE_FILES[suite]
        if re.fullmatch(re.sub(r"[A-Z]+[0-9]?", ".+", file.stem), one.stem)
    ]
    assert wanted or one.file in OTHERS
    assert all(set(columns) <= set(one.columns) or one.file in OTHERS for columns in wanted)


def test_files_that_suites_share_are_the_same():
    assert {one.file for one in tables_of("nli")} >= {"sick.tsv.gz", "snli_train.tsv.gz"}
    assert [one.file for one in tables_of("latency")] == ["stsb_test.tsv"]
    by_file = {}
    for _, one in ALL:
        assert by_file.setdefault(one.file, one) == one


def test_where_a_download_lies_stays_below_its_folder():
    assert place_of("https://a.b/c/../../d.txt?x=1") == Path("a.b/c/d.txt")
