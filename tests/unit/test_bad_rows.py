"""What a pull has found bad is told by everybody who reads it, and trained on by nobody."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from knowledge_base_helpers import TEXTS as BASE_TEXTS
from knowledge_base_helpers import contracts, make_run
from knowledge_base_helpers import make_cache as make_base_cache
from share_helpers import TEXTS, bad_cache, make_cache, mark_bad

from distill.cli.main import cli as distill_cli
from distill.data.dataset import open_dataset
from distill.data.order import Feed
from distill.data.waiting import Patience
from distill.knowledge_base.build import build_base
from distill.knowledge_base.rows import known_vectors
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.cli.build import print_build_summary
from embedcache.cli.main import cli
from embedcache.doctor import examine
from embedcache.errors import InputError
from embedcache.export import export_rows
from embedcache.housekeeping import remove_bad
from embedcache.keys import key_array
from embedcache.own_notes import ANCHOR
from embedcache.sample_notes import SAMPLED, bad_shards
from embedcache.share import pull, push
from embedcache.testing import fake_teacher

CONTRACT = fake_teacher(8).contract
REMEDY = "'embedcache rm teacher fake --bad' deletes these shards"


@pytest.fixture
def good(tmp_path: Path) -> frozenset[str]:
    """Return the shards of a corpus ``good`` in the cache ``mine``."""
    make_cache(tmp_path / "mine", TEXTS[:60], name="good")
    return shards_of(tmp_path / "mine")


@pytest.fixture
def mine(tmp_path: Path, good: frozenset[str]) -> Path:
    """Return a cache of a corpus ``good``, and a corpus ``evil`` whose first shard is marked as bad."""
    cache = make_cache(tmp_path / "mine", TEXTS[60:160], name="evil")
    evil = [shard for shard in cache.store(CONTRACT).shards if shard.name not in good and len(shard) == 40]
    mark_bad(tmp_path / "mine", str(tmp_path / "team"), frozenset({evil[0].name}))
    return tmp_path / "mine"


def shards_of(cache: Path) -> frozenset[str]:
    return frozenset(Cache(cache).container(CONTRACT).names())


def refused(rows: int) -> str:
    return rf"mine: {rows} rows? ha.* of teacher 'fake' from shards in which a pull .*{re.escape(REMEDY)}"


# Training


def test_rows_that_were_found_bad_are_not_trained_on(mine: Path) -> None:
    cache = Cache(mine)
    with pytest.raises(InputError, match=refused(40)):
        open_dataset(cache, corpus="evil")
    # Of what is held out no score could be believed.
    with pytest.raises(InputError, match=refused(40)):
        open_dataset(cache, corpus="evil", held_out=45)
    assert len(open_dataset(cache, corpus="good")) == 60
    remove_bad(cache, "fake")
    make_cache(mine, TEXTS[60:160], name="evil")
    assert len(open_dataset(Cache(mine), corpus="evil")) == 100


def test_only_rows_that_are_read_count(mine: Path) -> None:
    cache = Cache(mine)
    marked = [row for row, text in enumerate(TEXTS[60:160]) if is_marked(cache, text)]
    assert len(marked) == 40
    where = f"row not in ({', '.join(map(str, marked))})"
    assert len(open_dataset(cache, corpus="evil", where=where)) == 60
    with pytest.raises(InputError, match=refused(1)):
        open_dataset(cache, corpus="evil", where=f"{where} or row = {marked[3]}")


def is_marked(cache: Cache, text: str) -> bool:
    """Whether a text has its vector from the shard that is marked."""
    marked = bad_shards(cache, CONTRACT.id)
    (shard,) = [one for one in cache.store(CONTRACT).shards if one.name in marked]
    return bool((shard.keys == key_array([text])[0]).any())


def test_nor_while_a_build_goes_on(mine: Path) -> None:
    cache, feed = Cache(mine), Feed(window=16, patience=Patience(1))
    with pytest.raises(InputError, match=refused(40)):
        open_dataset(cache, corpus="evil", feed=feed)
    assert len(open_dataset(cache, corpus="good", feed=feed)) == 60
    # Rows that are not read are nobody's trouble.
    marked = [row for row, text in enumerate(TEXTS[60:160]) if is_marked(cache, text)]
    where = f"row not in ({', '.join(map(str, marked))})"
    assert len(open_dataset(cache, corpus="evil", where=where, feed=feed)) == 60


def test_what_comes_while_it_is_waited_for_is_looked_at_too(mine: Path) -> None:
    (name,) = bad_shards(Cache(mine), CONTRACT.id)
    shard = mine / "teachers" / CONTRACT.id / "shards" / f"{name}.arrow"
    away = shard.rename(mine.parent / shard.name)
    feed = Feed(window=16, patience=Patience(1))
    dataset = open_dataset(Cache(mine), corpus="evil", feed=feed)
    away.rename(shard)
    for _ in range(2):
        with pytest.raises(InputError, match=refused(40)):
            dataset.targets.gather(np.arange(len(dataset)))


def test_rows_that_are_marked_while_others_are_waited_for_are_looked_at_again(mine: Path) -> None:
    """A pull beside the build marks what it has brought when it ends."""
    (name,) = bad_shards(Cache(mine), CONTRACT.id)
    remove_marks(mine)
    evil = key_array(TEXTS[60:160])
    shards = [one for one in Cache(mine).store(CONTRACT).shards if np.isin(one.keys, evil).any()]
    other = next(one.name for one in shards if one.name != name)
    path = mine / "teachers" / CONTRACT.id / "shards" / f"{other}.arrow"
    away = path.rename(mine.parent / path.name)
    feed = Feed(window=16, patience=Patience(1))
    dataset = open_dataset(Cache(mine), corpus="evil", feed=feed)
    mark_bad(mine, str(mine.parent / "team"), frozenset({name}))
    away.rename(path)
    for _ in range(2):
        with pytest.raises(InputError, match=refused(40)):
            dataset.targets.gather(np.arange(len(dataset)))


def remove_marks(cache: Path) -> None:
    (notes,) = cache.glob(f"derived/remotes/*/{SAMPLED}")
    notes.unlink()


def test_a_run_says_what_to_do_and_writes_nothing(mine: Path, tmp_path: Path) -> None:
    command = ["run", "--cache", str(mine), "--corpus", "evil", "--student", "static:dim=8,vocab=200"]
    done = CliRunner().invoke(distill_cli, [*command, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InputError)
    assert re.search(refused(40), str(done.exception))
    assert not (tmp_path / "run").exists()


def test_a_knowledge_base_is_made_of_none(tmp_path: Path) -> None:
    cache = make_base_cache(tmp_path / "mine")
    run = make_run(tmp_path / "run", cache, contracts()[1])
    for contract in contracts()[1:]:
        name = cache.teacher(contract.id).name
        (shard,) = cache.container(contract).names()
        mark_bad(tmp_path / "mine", str(tmp_path / "team"), frozenset({shard}), contract)
        with pytest.raises(InputError, match=rf"mine: 46 rows .*'embedcache rm teacher {name} --bad'"):
            build_base(run, cache.folder)
        mark_bad(tmp_path / "mine", str(tmp_path / "team"), frozenset(), contract)
    assert build_base(run, cache.folder).added == 46


def test_of_held_out_texts_a_knowledge_base_asks_for_good_ones_alone(tmp_path: Path) -> None:
    cache = make_base_cache(tmp_path / "mine")
    contract = contracts()[1]
    keys = key_array(BASE_TEXTS[:9])
    assert len(known_vectors(cache, contract, keys)) == 9
    mark_bad(
        tmp_path / "mine", str(tmp_path / "team"), frozenset(cache.container(contract).names()), contract
    )
    assert len(known_vectors(cache, contract, keys)) == 0


# Copies


@pytest.mark.parametrize("anchor", ["copied", "lost"])
def test_a_copy_of_a_cache_has_its_marks(mine: Path, tmp_path: Path, anchor: str) -> None:
    marked = bad_shards(Cache(mine), CONTRACT.id)
    shutil.copytree(mine, tmp_path / "copy" / "mine")
    copy = Cache(tmp_path / "copy" / "mine")
    if anchor == "lost":
        (copy.derived_folder / "remotes" / ANCHOR).unlink()
    assert bad_shards(copy, CONTRACT.id) == marked
    with pytest.raises(InputError, match=refused(40)):
        open_dataset(copy, corpus="evil")
    with pytest.raises(InputError, match="in 1 shard, so nothing was sent"):
        push(copy, str(tmp_path / "elsewhere"))
    remove_bad(copy, "fake")
    assert bad_shards(copy, CONTRACT.id) == frozenset()
    assert bad_shards(Cache(mine), CONTRACT.id) == marked


def test_a_pull_into_a_copy_marks_nothing_of_its_own(mine: Path, tmp_path: Path) -> None:
    marked = bad_shards(Cache(mine), CONTRACT.id)
    push(bad_cache(tmp_path / "theirs", TEXTS[:60], "good"), str(tmp_path / "team"))
    shutil.copytree(mine, tmp_path / "copy")
    pull(tmp_path / "copy", str(tmp_path / "team"))
    came = shards_of(tmp_path / "theirs")
    assert bad_shards(Cache(tmp_path / "copy"), CONTRACT.id) == marked | came


def test_a_mark_outlasts_its_shard_and_is_nobodys_trouble(mine: Path) -> None:
    (name,) = bad_shards(Cache(mine), CONTRACT.id)
    (mine / "teachers" / CONTRACT.id / "shards" / f"{name}.arrow").unlink()
    done = make_cache(mine, TEXTS[:60], name="good").last_build
    assert done is not None
    assert done.outputs[0].bad_rows == 0
    assert len(open_dataset(Cache(mine), corpus="good")) == 60


# Who else tells of it


def test_they_are_not_exported(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=refused(40)):
        export_rows(mine, tmp_path / "out.parquet", corpus="evil")
    assert not (tmp_path / "out.parquet").exists()
    assert export_rows(mine, tmp_path / "out.parquet", corpus="good").rows == 60


@pytest.mark.parametrize(("name", "rows"), [("good", 0), ("evil", 40)])
def test_a_build_says_that_it_counts_on_them(
    mine: Path, capsys: pytest.CaptureFixture[str], name: str, rows: int
) -> None:
    texts = TEXTS[:60] if name == "good" else TEXTS[60:160]
    done = make_cache(mine, texts, name=name).last_build
    assert done is not None
    assert (done.encoded, done.outputs[0].bad_rows) == (0, rows)
    assert json.loads(json.dumps(done.to_json()))["outputs"][0]["bad_rows"] == rows
    print_build_summary(done)
    told = " ".join(capsys.readouterr().out.split())
    assert ("40 rows have their vectors of teacher 'fake'" in told) is (name == "evil")


def test_verify_tells_of_marks_as_long_as_they_last(mine: Path) -> None:
    found = verify(mine)
    assert not found.damage
    (note,) = found.notes
    assert note.path == f"teachers/{CONTRACT.id}"
    assert note.found.startswith("1 shard of fake in which a pull found other vectors")
    assert note.way_out.startswith("'embedcache rm teacher fake --bad' deletes them")
    shown = CliRunner().invoke(cli, ["verify", "--cache", str(mine)])
    assert shown.exit_code == 0
    assert "sound, 1 note" in shown.output
    remove_bad(Cache(mine), "fake")
    assert not any("pull" in one.found for one in verify(mine).notes)


def test_verify_of_a_cache_without_its_marker_tells_of_that_alone(mine: Path) -> None:
    (mine / "cache.json").unlink()
    assert [one.path for one in verify(mine).damage] == ["cache.json"]


def test_they_are_counted_wherever_a_cache_is_described(mine: Path) -> None:
    """Of a teacher, in ``ls`` and ``info``, and in what ``doctor`` judges: of all vectors, or of a corpus."""
    told = "1 shard in which a pull found other vectors"
    listed = CliRunner().invoke(cli, ["ls", "--cache", str(mine)])
    assert f"fake: {told}" in listed.output
    as_json = json.loads(CliRunner().invoke(cli, ["ls", "--cache", str(mine), "--json"]).output)
    assert [one["bad_shards"] for one in as_json["teachers"]] == [1]
    shown = json.loads(CliRunner().invoke(cli, ["info", "fake", "--cache", str(mine), "--json"]).output)
    assert (shown["teacher"]["bad_shards"], shown["teacher"]["bad_rows"]) == (1, 40)
    found = {one.name: one for one in examine(mine).verdicts}["marked as bad"]
    assert (found.figure, found.grade) == ("40 of 160", "bad")
    assert "marked as bad" in {one.name for one in examine(mine, corpus="evil").verdicts}
    assert "marked as bad" not in {one.name for one in examine(mine, corpus="good").verdicts}
    remove_bad(Cache(mine), "fake")
    assert told not in CliRunner().invoke(cli, ["ls", "--cache", str(mine)]).output
    shown = json.loads(CliRunner().invoke(cli, ["info", "fake", "--cache", str(mine), "--json"]).output)
    assert (shown["teacher"]["bad_shards"], shown["teacher"]["bad_rows"]) == (0, 0)
    assert "marked as bad" not in {one.name for one in examine(mine).verdicts}
