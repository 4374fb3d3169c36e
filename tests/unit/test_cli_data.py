"""``distill data``: what can be fetched, under which licence, and how a fetch ends."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from fetch_helpers import serving, table

from distill.cli.main import cli
from distill.evaluation import fetch, source_tables
from distill.evaluation.source_tables import fetchable_suites, tables_of


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch, "RETRIES", 0)
    with serving() as one:
        other = {"file": "other_test.tsv", "parts": {"news": {"files": ["news.tsv"]}}, "licence": "ask first"}
        listed = [table(one), table(one, **other)]
        for module in (fetch, source_tables):
            monkeypatch.setattr(module, "tables_of", lambda suite: listed)
        yield one


def run(*words: object):
    return CliRunner().invoke(cli, ["data", *map(str, words)])


def test_the_list_names_files_sources_and_licences():
    told = run("list").output
    for suite in fetchable_suites():
        assert suite in told.splitlines()
        for one in tables_of(suite):
            assert f"  {one.file} " in told
            assert f"{one.source}; licence: {one.licence}" in told
    assert "sts12_test" not in run("list", "transfer").output
    assert "no sources are known" in str(run("list", "nothing").exception)


def test_the_list_for_programs():
    listed = json.loads(run("list", "sts", "--json").output)
    assert [one["rows"] for one in listed["sts"]][:5] == [3108, 1500, 3750, 3000, 1186]
    urls = run("list", "nli", "--urls").output.splitlines()
    # Three files of SICK, and one archive that holds three of SNLI.
    assert len(urls) == len(set(urls)) == 4


def test_a_fetch_prints_licences_first_and_what_was_checked(site, tmp_path):
    result = run("fetch", "small", "--to", tmp_path / "data")
    assert result.exit_code == 0
    assert "a site for tests; licence: as you like" in result.stderr
    assert "licence: ask first" in result.stderr
    assert "small_test.tsv: fetched, 3 rows, 1 left out; sha256 " in result.stdout
    assert "trusted on first use" in result.stdout
    assert run("fetch", "small", "--to", tmp_path / "data").stdout.count("already there") == 2


def test_a_part_of_a_suite(site, tmp_path):
    result = run("fetch", "small", "--to", tmp_path, "--only", "other_test.tsv")
    assert "as you like" not in result.stderr
    assert (tmp_path / "other_test.tsv").exists()
    assert not (tmp_path / "small_test.tsv").exists()
    wrong = run("fetch", "small", "--to", tmp_path, "--only", "thing.tsv")
    assert wrong.exit_code == 2
    assert "small_test.tsv, other_test.tsv" in wrong.output


def test_a_failure_ends_with_1_and_names_the_way_without_a_network(site, tmp_path):
    del site.pages["/forum.tsv"]
    result = run("fetch", "small", "--to", tmp_path)
    assert getattr(result.exception, "exit_code", None) == 1
    assert "small_test.tsv: failed: " in result.stdout
    assert "other_test.tsv: fetched" in result.stdout
    assert "--downloads" in str(result.exception)
