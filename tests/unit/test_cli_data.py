"""``distill data``: what can be fetched, what it may be used for, and how a fetch ends."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fetch_helpers import FORUM, NEWS, serving, table

from distill.cli.main import cli
from distill.evaluation import fetch as package
from distill.evaluation.fetch import fetch as fetch_module
from distill.evaluation.fetch import tables_of


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch_module, "ATTEMPTS", 1)
    with serving() as one:
        one.pages = {"/news.tsv": NEWS, "/forum.tsv": FORUM}
        other = {"file": "other_test.tsv", "parts": {"news": {"files": ["news.tsv"]}}, "licence": "ask first"}
        listed = [table(one), table(one, **other)]
        monkeypatch.setattr(package, "tables_of", lambda suite: listed)
        yield one


def run(*words: object):
    return CliRunner().invoke(cli, ["data", *map(str, words)])


def test_the_list_names_files_sources_and_licences():
    told = run("list").output
    for suite in package.fetchable_suites():
        assert suite in told.splitlines()
        for one in tables_of(suite):
            assert f"    {one.file} " in told
            assert f"  {one.source}; licence: {one.licence}" in told
    assert "first use" in told
    transfer = run("list", "transfer").output
    assert "senteval_mr.tsv.gz" in transfer
    assert "sts12_test" not in transfer


def test_the_list_for_programs():
    listed = json.loads(run("list", "sts", "--json").output)
    assert [one["rows"] for one in listed["sts"]][:5] == [3108, 1500, 3750, 3000, 1186]
    urls = run("list", "nli", "--urls").output.splitlines()
    # Three files of SICK, and one archive that holds three of SNLI.
    assert len(urls) == len(set(urls)) == 4
    assert all(url.startswith("https://") for url in urls)
    assert run("list", "--urls", "--json").exit_code == 2
    assert "no sources are known" in str(run("list", "nothing").exception)


def test_a_fetch_says_first_what_the_licence_is(site, tmp_path):
    result = run("fetch", "small", "--to", tmp_path / "data")
    assert result.exit_code == 0
    assert "small_test.tsv\n  from a site for tests\n  licence: as you like" in result.stderr
    assert "licence: ask first" in result.stderr
    assert "small_test.tsv: fetched, 3 rows, 1 pairs without a score left out; sha256 " in result.stdout
    assert "trusted on first use" in result.stdout
    again = run("fetch", "small", "--to", tmp_path / "data")
    assert again.stdout.count("already there") == 2
    # Nothing is downloaded, so there is nothing to agree to.
    assert "licence" not in again.stderr


def test_a_part_of_a_suite(site, tmp_path):
    result = run("fetch", "small", "--to", tmp_path, "--only", "other_test.tsv", "--json")
    (told,) = json.loads(result.stdout)
    assert (told["file"], told["state"], told["record"]["rows"]) == ("other_test.tsv", "fetched", 2)
    assert "as you like" not in result.stderr
    assert not (tmp_path / "small_test.tsv").exists()
    wrong = run("fetch", "small", "--to", tmp_path, "--only", "thing.tsv")
    assert wrong.exit_code == 2
    assert "small has no thing.tsv; there are small_test.tsv, other_test.tsv" in wrong.output


def test_a_failure_is_told_and_the_others_are_fetched(site, tmp_path):
    del site.pages["/forum.tsv"]
    result = run("fetch", "small", "--to", tmp_path)
    assert result.exit_code != 0
    assert "small_test.tsv: failed: " in result.stdout
    assert "404" in result.stdout
    assert "other_test.tsv: fetched" in result.stdout
    message = str(result.exception)
    assert "1 of 2 files could not be fetched" in message
    assert "'distill data list small --urls | wget -x -i -'" in message
    assert "--downloads" in message
    assert getattr(result.exception, "exit_code", None) == 1


def test_changed_content_needs_a_word(site, tmp_path):
    assert run("fetch", "small", "--to", tmp_path).exit_code == 0
    site.pages["/news.tsv"] = NEWS.replace(b"4.5", b"4.0")
    assert run("fetch", "small", "--to", tmp_path, "--force").exit_code != 0
    assert run("fetch", "small", "--to", tmp_path, "--force", "--accept-changed").exit_code == 0
    assert "news\t4.0\t" in (tmp_path / "small_test.tsv").read_text(encoding="utf-8")


def test_downloads_brought_by_hand(site, tmp_path):
    place = tmp_path / "brought" / site.address.removeprefix("http://")
    place.mkdir(parents=True)
    for name, data in site.pages.items():
        (place / name.removeprefix("/")).write_bytes(data)
    site.pages.clear()
    result = run("fetch", "small", "--to", tmp_path / "data", "--downloads", tmp_path / "brought")
    assert result.exit_code == 0
    assert site.asked == []
