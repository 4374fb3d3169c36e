"""``embedcache merge`` and ``split``: what they print, what they exit with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from catalog_helpers import add_corpus, add_view
from click.testing import CliRunner, Result
from merge_helpers import CONTRACT, TEXTS, cache_of, other_vectors, shard_names, vectors_of

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.merge import MergeConflictError


@pytest.fixture
def caches(tmp_path: Path) -> list[str]:
    """Two caches that do not agree on a corpus and on ten vectors."""
    first = cache_of(tmp_path / "a", [vectors_of(TEXTS[:40])], corpus=("words", TEXTS[:40]))
    add_view(first.corpus(), "crop")
    cache_of(
        tmp_path / "b",
        [vectors_of(TEXTS[20:60], off=5e-4), other_vectors(TEXTS[:10])],
        corpus=("words", TEXTS[:50]),
    )
    return [str(tmp_path / "a"), str(tmp_path / "b")]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_conflicts_are_an_error_that_names_them(tmp_path: Path, caches: list[str]) -> None:
    result = run("merge", *caches, "--into", tmp_path / "all")
    assert isinstance(result.exception, MergeConflictError)
    assert result.exception.exit_code == 2
    assert "corpus 'words'" in str(result.exception)
    assert "device broken" in str(result.exception)
    assert not (tmp_path / "all").exists()


def test_a_dry_run_shows_a_table_and_exits_with_1(tmp_path: Path, caches: list[str]) -> None:
    result = run("merge", *caches, "--into", tmp_path / "all", "--dry-run")
    assert result.exit_code == 1
    assert "none: --prefer, --keep-both" in result.output
    assert "10 texts, worst cosine" in result.output
    assert "dry run: nothing was written" in result.output
    assert "2 of the conflicts without an answer" in result.output
    decided = run("merge", *caches, "--into", tmp_path / "all", "--dry-run", "--prefer", "last")
    assert decided.exit_code == 0
    assert "--prefer last" in decided.output
    assert not (tmp_path / "all").exists()


def test_what_was_done_is_shown(tmp_path: Path, caches: list[str]) -> None:
    result = run("merge", *caches, "--into", tmp_path / "all", "--prefer", caches[0], "--keep-both")
    assert result.exit_code == 0, result.exception
    for words in ("20 but for noise", "10 lost", "2 whole, 1 left out", "words-", "2 caches in"):
        assert words in result.output
    assert len(Cache(tmp_path / "all").corpora()) == 2
    again = run("merge", *caches, "--into", tmp_path / "all", "--prefer", caches[0], "--keep-both")
    assert "2 there already" in again.output
    assert "0 files of 0 B written" in again.output


def test_shards_that_two_caches_share_are_counted_as_the_same(tmp_path: Path) -> None:
    batch = vectors_of(TEXTS[:40])
    cache_of(tmp_path / "a", [batch])
    cache_of(tmp_path / "b", [batch, vectors_of(TEXTS[40:60])])
    result = run("merge", tmp_path / "a", tmp_path / "b", "--into", tmp_path / "all", "--dry-run", "--json")
    (teacher,) = json.loads(result.output)["teachers"]
    assert (teacher["same"], teacher["rows"]) == (40, 60)
    shown = run("merge", tmp_path / "a", tmp_path / "b", "--into", tmp_path / "all")
    assert "40 the same" in " ".join(shown.output.split())


def test_json_has_all_of_it(tmp_path: Path, caches: list[str]) -> None:
    result = run("merge", *caches, "--into", tmp_path / "all", "--prefer", "first", "--json")
    found = json.loads(result.output)
    assert found["written"] is True
    assert [one["kind"] for one in found["conflicts"]] == ["corpus", "vectors"]
    assert found["conflicts"][1]["sides"][1]["provenance"]["device"] == "broken"
    assert found["teachers"][0]["near"] == 20
    assert found["corpora"] == [
        {
            "name": "words",
            "rows": 40,
            "digest": Cache(caches[0]).corpus().info.digest,
            "views": ["crop"],
            "cache": caches[0],
        }
    ]


def test_noise_and_link_are_passed_on(tmp_path: Path, caches: list[str]) -> None:
    add = ("--keep-both", "--link")
    assert run("merge", *caches, "--into", tmp_path / "all", "--noise", 2, *add).exit_code == 0
    name = next(
        name for name in shard_names(Cache(tmp_path / "all")) if name in shard_names(Cache(caches[0]))
    )
    inside = f"teachers/{CONTRACT.id}/shards/{name}.arrow"
    assert (tmp_path / "all" / inside).samefile(Path(caches[0]) / inside)
    # Twenty more are beyond a bound that nothing but the same bits can keep.
    strict = run("merge", *caches, "--into", tmp_path / "none", "--noise", 1e-12, "--dry-run", "--json")
    assert sum(one["keys"] for one in json.loads(strict.output)["conflicts"]) == 30


def test_a_split_is_shown_and_passes_all_options_on(tmp_path: Path, caches: list[str]) -> None:
    add_corpus(Cache(caches[0]), "more", TEXTS[100:110], labels=["x"] * 10)
    result = run(
        *("split", caches[0], "--out", tmp_path / "part", "--teacher", "tiny", "--corpus", "words"),
        *("--rows", 5, "--where", "row >= 10", "--as", "few", "--link"),
    )
    assert result.exit_code == 0, result.exception
    part = Cache(tmp_path / "part")
    assert part.corpus("few").texts() == TEXTS[10:15]
    assert len(part.store(CONTRACT)) == 5
    for words in ("few", "crop", "40", "files of"):
        assert words in result.output
    found = json.loads(
        run(
            "split", caches[0], "--out", tmp_path / "all", "--corpus", "more", "--all-vectors", "--json"
        ).output
    )
    assert found["corpora"][0]["name"] == "more"
    assert found["teachers"][0]["rows"] == 40
    assert found["teachers"][0]["shards"]["whole"] == 1
