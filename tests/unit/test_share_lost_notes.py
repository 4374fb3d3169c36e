"""Copies that a cache has not noted, because they were made before there were notes, or these were lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from share_helpers import SHARD_ROWS, TEXTS, files_of, make_cache, without_indexes

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.share import PullChoice, compare_with_remote, preview_pull, pull, push, sync
from embedcache.store.base import CONVERTED_FROM
from embedcache.store.shard import Shard, shard_bytes
from embedcache.testing import sentences

SHARDS = len(TEXTS) // SHARD_ROWS


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """Return a remote with vectors as float32."""
    push(make_cache(tmp_path / "mine", codec="float32"), str(tmp_path / "remote"))
    return str(tmp_path / "remote")


@pytest.fixture
def there(tmp_path: Path, remote: str) -> Path:
    """Return a cache with copies of all of the remote's shards, and no note on them."""
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    shutil.rmtree(tmp_path / "there" / "derived" / "remotes")
    return tmp_path / "there"


def shards_of(cache: Path) -> list[Shard]:
    opened = Cache(cache)
    return list(opened.store(opened.teacher().contract).shards)


def objects(remote: str) -> set[str]:
    return {name.rpartition("/")[2] for name in files_of(Path(remote), "objects")}


def add_claim(cache: Cache, shard: Shard, claimed: str) -> str:
    """Put the same rows into a cache once more, with the claim to be a copy of another shard."""
    header = replace(shard.header, provenance={**shard.header.provenance, CONVERTED_FROM: claimed})
    name, data = shard_bytes(header, shard.codec, shard.keys, shard.stored, shard.tokens, shard.truncated)
    container = cache.container(shard.header.contract)
    container.add(name, data)
    container.finish()
    return name


def test_the_originals_are_fetched(there: Path, remote: str) -> None:
    estimate = preview_pull(there, remote)
    assert (estimate.vectors, estimate.told) == (len(TEXTS), ())
    pull(there, remote)
    assert preview_pull(there, remote).files == 0


@pytest.mark.parametrize("pulled", [False, True], ids=["without the originals", "with the originals"])
def test_copies_that_are_not_noted_are_not_sent_to_whoever_has_the_originals(
    there: Path, remote: str, pulled: bool
) -> None:
    if pulled:
        pull(there, remote)
    before = objects(remote)
    done = push(there, remote)
    assert (done.sent, done.manifest) == (0, "")
    assert objects(remote) == before
    (told,) = done.told
    assert told.startswith(f"{SHARDS} shards not sent: {remote} has all of their rows in a codec that keeps")


def test_copies_of_shards_without_a_row_index_are_not_sent_either(there: Path, remote: str) -> None:
    without_indexes(Path(remote))
    before = objects(remote)
    (told,) = push(there, remote).told
    assert told.startswith(f"{SHARDS} shards not sent: {remote} has all of their rows in a codec that keeps")
    assert objects(remote) == before


def test_diff_counts_what_push_would_send(there: Path, remote: str) -> None:
    before = compare_with_remote(there, remote)
    (teacher,) = [line for line in before.lines if line.kind == "teacher"]
    # The originals would be fetched, and no copies sent.
    assert (teacher.remote_files, teacher.cache_files) == (SHARDS, 0)
    assert before.told == (
        f"{SHARDS} shards here that {remote} has all vectors of already are not counted: no push sends them",
    )
    words = ["remote", "diff", remote, "--cache", str(there)]
    said = CliRunner().invoke(cli, words)
    assert (said.exit_code, before.told[0] in said.output) == (1, True)
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)["told"] == list(before.told)
    pull(there, remote)
    assert CliRunner().invoke(cli, words).exit_code == 0
    after = compare_with_remote(there, remote)
    assert after.is_same
    assert push(there, remote).sent == 0
    # Elsewhere they are to be sent like any others.
    other = str(there.parent / "other")
    push(make_cache(there.parent / "few", TEXTS[:3], name="few"), other)
    (teacher,) = [line for line in compare_with_remote(there, other).lines if line.kind == "teacher"]
    assert teacher.cache_files == 2 * SHARDS
    assert compare_with_remote(there, other).told == ()


def test_diff_counts_a_copy_that_has_other_texts_than_what_it_names(tmp_path: Path, remote: str) -> None:
    theirs = make_cache(tmp_path / "theirs", sentences(20, seed=3), codec="int8", name="other")
    add_claim(theirs, shards_of(theirs.folder)[0], shards_of(tmp_path / "mine")[0].name)
    found = compare_with_remote(theirs, remote)
    (teacher,) = [line for line in found.lines if line.kind == "teacher"]
    assert teacher.cache_files == 2
    assert found.told == ()


def test_sync_of_a_copied_folder_sends_no_copies(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    shutil.copytree(tmp_path / "there", tmp_path / "theirs")
    before = objects(remote)
    done = sync(tmp_path / "theirs", remote)
    assert done.pulled is not None
    assert done.pushed is not None
    assert done.pulled.fetched_vectors == len(TEXTS)
    assert done.pushed.sent == 0
    assert objects(remote) == before


def test_where_the_originals_are_not_the_copies_are_sent(there: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "elsewhere")
    done = push(there, other)
    assert done.told == ()
    assert {shard.name for shard in shards_of(there)} <= objects(other)
    # A remote that has one of them only gets the others.
    third = str(tmp_path / "third")
    push(make_cache(tmp_path / "some", TEXTS[:SHARD_ROWS], codec="float32", name="some"), third)
    (one,) = [
        shard for shard in shards_of(there) if shard.header.provenance[CONVERTED_FROM] in objects(third)
    ]
    assert push(there, third).told[0].startswith("1 shard not sent")
    assert {shard.name for shard in shards_of(there)} - objects(third) == {one.name}


def test_a_claim_keeps_no_other_texts_from_being_sent(tmp_path: Path, remote: str) -> None:
    claimed = shards_of(tmp_path / "mine")[0].name
    theirs = make_cache(tmp_path / "theirs", sentences(20, seed=3), codec="int8", name="other")
    liar = add_claim(theirs, shards_of(theirs.folder)[0], claimed)
    done = push(theirs, remote)
    assert liar in objects(remote)
    assert done.told == ()
    pull(tmp_path / "there", remote)
    assert np.array_equal(
        Cache(tmp_path / "there").lookup(sentences(20, seed=3)), theirs.lookup(sentences(20, seed=3))
    )
