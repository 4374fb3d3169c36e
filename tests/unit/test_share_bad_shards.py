"""What a sample has found bad stays bad, or stays out, whatever else makes shards of shards."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from corpus_helpers import cut
from kill_helpers import cut_off_at
from share_helpers import bad_cache, make_cache, mark_bad

from distill.projection import extend_projection, project
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.verify.deep import BAD
from embedcache.cli.main import cli
from embedcache.cli.tables import size
from embedcache.convert import convert
from embedcache.corpus.readers import ReadReport
from embedcache.corpus.store import store_corpus
from embedcache.derived import write_derived
from embedcache.errors import InputError
from embedcache.housekeeping import compact, remove_bad, remove_teacher
from embedcache.merge import merge_caches
from embedcache.merge import target as merge_target
from embedcache.sample_notes import bad_shards
from embedcache.share import PullChoice, pull, push
from embedcache.split import split_cache
from embedcache.testing import fake_teacher, sentences

TEACHER = fake_teacher(8)
ID = TEACHER.contract.id
GOOD, EVIL = sentences(60, seed=12), sentences(40, seed=5)
REFUSED = "fake: a pull found other vectors than the teacher's, .* in 2 shards, so nothing was sent"


make_bad = partial(bad_cache, name="evil", shard_rows=20)


@pytest.fixture
def team(tmp_path: Path) -> str:
    """Return a remote with two shards of bad vectors."""
    push(make_bad(tmp_path / "theirs", EVIL), str(tmp_path / "team"))
    return str(tmp_path / "team")


@pytest.fixture
def bad(tmp_path: Path, team: str) -> frozenset[str]:
    """Return the names of these shards."""
    return shards_of(tmp_path / "theirs")


@pytest.fixture
def mine(tmp_path: Path, team: str, bad: frozenset[str]) -> Path:
    """Return a cache with them, noted as bad, and with three good shards."""
    make_cache(tmp_path / "mine", GOOD, name="good", shard_rows=20)
    pull(tmp_path / "mine", team)
    mark_bad(tmp_path / "mine", team, bad)
    return tmp_path / "mine"


def shards_of(cache: Path) -> frozenset[str]:
    return frozenset(Cache(cache).container(TEACHER.contract).names())


def assert_still_bad(cache: Path, team: str, elsewhere: Path) -> None:
    """Assert that a cache sends nothing of what is bad, and that a pull tells of it."""
    with pytest.raises(InputError, match=REFUSED):
        push(cache, str(elsewhere))
    assert not elsewhere.exists()
    assert BAD in [check.verdict for check in pull(cache, team).samples]


# Compact


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_compact_leaves_bad_shards_as_they_are(
    tmp_path: Path, team: str, bad: frozenset[str], store: str
) -> None:
    make_cache(tmp_path / "mine", GOOD, name="good", shard_rows=20, store=store)
    pull(tmp_path / "mine", team)
    mark_bad(tmp_path / "mine", team, bad)
    before = Cache(tmp_path / "mine").lookup(GOOD + EVIL)
    (done,) = compact(Cache(tmp_path / "mine"))
    assert (done.shards_before, done.shards_after) == (5, 3)
    assert shards_of(tmp_path / "mine") > bad
    assert np.array_equal(Cache(tmp_path / "mine").lookup(GOOD + EVIL), before)
    assert_still_bad(tmp_path / "mine", team, tmp_path / "elsewhere")
    # Again there is nothing to do.
    (again,) = compact(Cache(tmp_path / "mine"))
    assert (again.shards_before, again.shards_after) == (3, 3)


def test_compact_drops_no_good_vector_because_a_bad_one_has_its_text(
    tmp_path: Path, team: str, bad: frozenset[str]
) -> None:
    mine = tmp_path / "mine"
    good = make_cache(mine, EVIL[:10], name="good").lookup(EVIL[:10])
    make_cache(mine, GOOD[:5], name="more")
    pull(mine, team)
    mark_bad(mine, team, bad)
    (done,) = compact(Cache(mine), shard_rows=20)
    assert done.duplicates == 0
    store = Cache(mine).store(TEACHER.contract)
    (merged,) = [shard for shard in store.shards if shard.name not in bad]
    assert len(merged) == 15
    found = np.asarray(merged.codec.decode(merged.stored), dtype=np.float32)
    assert all((found == row).all(axis=1).any() for row in good)


def test_what_somebody_keeps_is_compacted(tmp_path: Path, team: str, mine: Path) -> None:
    pull(mine, team, sample_check=False)
    compact(Cache(mine))
    assert len(shards_of(mine)) == 1


# Merge


def test_a_merge_hands_the_note_on_with_the_shards(
    tmp_path: Path, team: str, mine: Path, bad: frozenset[str]
) -> None:
    make_cache(tmp_path / "other", ["a text that nobody has"], name="other")
    merge_caches([tmp_path / "other", mine], tmp_path / "merged")
    assert shards_of(tmp_path / "merged") > bad
    assert bad_shards(Cache(tmp_path / "merged"), ID) == bad
    assert_still_bad(tmp_path / "merged", team, tmp_path / "elsewhere")
    # Into a cache that is there already, and of two that have them the one that knows.
    merge_caches([tmp_path / "theirs", mine], tmp_path / "other")
    assert_still_bad(tmp_path / "other", team, tmp_path / "elsewhere")
    # Until somebody has decided.
    remove_teacher(Cache(tmp_path / "other"), "fake")
    pull(tmp_path / "merged", team, sample_check=False)
    assert push(tmp_path / "merged", str(tmp_path / "elsewhere")).manifest
    # Who has decided is not asked again.
    merge_caches([mine], tmp_path / "merged")
    assert bad_shards(Cache(tmp_path / "merged"), ID) == frozenset()


def test_a_merge_of_other_vectors_hands_nothing_on(tmp_path: Path, mine: Path, bad: frozenset[str]) -> None:
    for name in bad:
        next(mine.rglob(f"{name}.arrow")).unlink()
    make_cache(tmp_path / "other", ["a text that nobody has"], name="other")
    merge_caches([mine, tmp_path / "other"], tmp_path / "merged")
    assert bad_shards(Cache(mine), ID) == bad
    assert bad_shards(Cache(tmp_path / "merged"), ID) == frozenset()
    assert push(tmp_path / "merged", str(tmp_path / "elsewhere")).manifest


def test_the_note_is_there_before_the_shards_are(
    tmp_path: Path, mine: Path, bad: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(merge_target, "write_shards", killed)
    with pytest.raises(KeyboardInterrupt):
        merge_caches([mine], tmp_path / "merged")
    assert bad_shards(Cache(tmp_path / "merged"), ID) == bad


def test_a_merge_does_not_cut_bad_shards(tmp_path: Path, mine: Path, bad: frozenset[str]) -> None:
    make_cache(tmp_path / "honest", EVIL[:25], name="honest")
    for dry_run in (True, False):
        with pytest.raises(InputError, match=r"mine: rows of 1 shard of teacher 'fake' would be written"):
            merge_caches([tmp_path / "honest", mine], tmp_path / "merged", prefer="first", dry_run=dry_run)
    assert not (tmp_path / "merged").exists()
    # Where all of them lose they are not there any more, and there is nothing to tell.
    make_cache(tmp_path / "whole", EVIL, name="whole")
    merge_caches([tmp_path / "whole", mine], tmp_path / "merged", prefer="first")
    assert not shards_of(tmp_path / "merged") & bad
    assert np.array_equal(Cache(tmp_path / "merged").lookup(EVIL), Cache(tmp_path / "whole").lookup(EVIL))
    assert push(tmp_path / "merged", str(tmp_path / "elsewhere")).manifest


# Split


def test_a_split_hands_the_note_on_and_does_not_cut(
    tmp_path: Path, team: str, mine: Path, bad: frozenset[str]
) -> None:
    split_cache(mine, tmp_path / "whole")
    assert_still_bad(tmp_path / "whole", team, tmp_path / "elsewhere")
    split_cache(mine, tmp_path / "part", corpora=["evil"])
    assert shards_of(tmp_path / "part") == bad
    assert_still_bad(tmp_path / "part", team, tmp_path / "elsewhere")
    with pytest.raises(
        InputError, match=r"rows of 2 shards of teacher 'fake' .* 'embedcache rm teacher fake --bad'"
    ):
        split_cache(mine, tmp_path / "cut", corpora=["evil"], where="row % 3 = 0")
    assert shards_of(tmp_path / "cut") == frozenset()


def test_a_split_without_bad_rows_is_as_good_as_any(tmp_path: Path, mine: Path) -> None:
    split_cache(mine, tmp_path / "part", corpora=["good"], first=30)
    assert bad_shards(Cache(tmp_path / "part"), ID) == frozenset()
    assert push(tmp_path / "part", str(tmp_path / "elsewhere")).manifest


# Another max_length


def test_bad_rows_are_not_carried_over_to_another_max_length(
    tmp_path: Path, mine: Path, bad: frozenset[str]
) -> None:
    longer = fake_teacher(8, name="longer", max_length=99)
    assert longer.contract.id != ID
    done = make_cache(mine, GOOD + EVIL, teacher=longer, name="all").last_build
    assert done is not None
    assert (done.carried, done.encoded, done.coarser_rows) == (len(GOOD), len(EVIL), 0)


# Convert


def test_convert_hands_the_note_on_and_re_encodes_nothing_bad(
    tmp_path: Path, team: str, mine: Path, bad: frozenset[str]
) -> None:
    convert(Cache(mine), tmp_path / "lmdb", store="lmdb")
    assert shards_of(tmp_path / "lmdb") > bad
    assert_still_bad(tmp_path / "lmdb", team, tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"rows of 2 shards of teacher 'fake' would be written anew"):
        convert(Cache(mine), tmp_path / "int8", codec="int8")
    assert shards_of(tmp_path / "int8") == frozenset()
    pull(mine, team, sample_check=False)
    (done,) = convert(Cache(mine), tmp_path / "int8", codec="int8")
    assert done.rows == 100


# A projection


def test_bad_vectors_are_not_mapped_to_another_teachers(team: str, mine: Path) -> None:
    cache = Cache(mine)
    derived = write_derived(cache, cache.teacher(), "narrow", np.eye(8, dtype=np.float32)[:5], "by hand")
    made = cache.store(derived.contract)
    assert extend_projection(cache, derived, corpus="good") == len(GOOD)
    remedy = r"mine: 40 rows have their vectors .* 'embedcache rm teacher fake --bad' deletes .* a pull with"
    with pytest.raises(InputError, match=remedy):
        extend_projection(cache, derived, corpus="evil")
    assert made.open_new() == 1
    assert len(made) == len(GOOD)
    # What somebody keeps is mapped.
    pull(mine, team, PullChoice(teachers=["fake"]), sample_check=False)
    assert extend_projection(cache, derived, corpus="evil") == len(EVIL)


def test_no_map_is_learnt_of_bad_vectors(mine: Path) -> None:
    cache = Cache(mine)
    for name, texts in (("some", [*GOOD, EVIL[0]]), ("none", GOOD)):
        labels = ["a" if number % 2 else "b" for number in range(len(texts))]
        store_corpus(cache.corpora_folder, name, cut(texts, None, labels), ReadReport())
    begun: list[str] = []

    def told(what: str, done: int, total: int) -> None:
        begun.append(what)

    with pytest.raises(
        InputError, match=r"mine: 1 row has its vector of teacher 'fake' from shards in which"
    ):
        project(cache, corpus="some", on_step=told)
    assert not begun
    assert [one.name for one in cache.teachers()] == ["fake"]
    assert project(cache, corpus="none", on_step=told).written == len(GOOD)
    assert begun


# Taking them away


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_bad_shards_go_alone(tmp_path: Path, team: str, bad: frozenset[str], store: str) -> None:
    mine = tmp_path / "mine"
    # Of some texts both have vectors, and the finer codec is read.
    cache = make_cache(mine, [*GOOD, *EVIL[:10]], name="good", shard_rows=20, store=store, codec="float16")
    own, names = cache.lookup([*GOOD, *EVIL[:10]]), shards_of(mine)
    with pytest.raises(InputError, match=r"mine: no shard of teacher 'fake' is marked as bad"):
        remove_bad(Cache(mine), "fake")
    pull(mine, team)
    mark_bad(mine, team, bad)
    Cache(mine).lookup(EVIL)
    sizes = [Cache(mine).container(TEACHER.contract).open(name).size for name in bad]
    command = ["rm", "teacher", "fake", "--bad", "--cache", str(mine)]
    refused = CliRunner().invoke(cli, command, input="n\n")
    assert (refused.exit_code, shards_of(mine)) == (1, names | bad)
    assert "remove 2 bad shards of teacher 'fake' (" in refused.output
    done = CliRunner().invoke(cli, [*command, "--yes"])
    assert done.exit_code == 0, done.output
    told = f"removed 2 bad shards of teacher 'fake': 40 rows, {size(sum(sizes))} freed; pull with --skip"
    assert told in done.output
    assert shards_of(mine) == names
    assert np.array_equal(Cache(mine).lookup([*GOOD, *EVIL[:10]]), own)
    assert bad_shards(Cache(mine), ID) == frozenset()
    assert verify(mine).damage == []
    assert push(mine, str(tmp_path / "elsewhere")).manifest
    with pytest.raises(InputError, match="is marked as bad"):
        remove_bad(Cache(mine), "fake")


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_a_removal_of_bad_shards_goes_on_wherever_it_was_killed(
    tmp_path: Path, team: str, bad: frozenset[str], store: str
) -> None:
    make_cache(tmp_path / "first", GOOD, name="good", shard_rows=20, store=store)
    pull(tmp_path / "first", team)
    stop, ended = 0, False
    while not ended:
        stop += 1
        mine = tmp_path / f"mine{stop}"
        shutil.copytree(tmp_path / "first", mine)
        mark_bad(mine, team, bad)
        # As a reader leaves it: with an index, and a note on every file.
        Cache(mine).lookup([*GOOD, *EVIL])
        with cut_off_at(stop) as steps:
            remove_bad(Cache(mine), "fake")
        ended = len(steps) < stop
        assert verify(mine).damage == []
        if bad_shards(Cache(mine), ID):
            assert not ended
            remove_bad(Cache(mine), "fake")
        found = verify(mine)
        assert found.damage == []
        assert not any("not sealed" in note.found for note in found.notes)
        assert bad_shards(Cache(mine), ID) == frozenset()
        assert len(shards_of(mine)) == 3
        assert np.array_equal(Cache(mine).lookup(GOOD), Cache(tmp_path / "first").lookup(GOOD))
    assert stop > 10


def test_a_damaged_bad_shard_goes_too(tmp_path: Path, mine: Path, bad: frozenset[str]) -> None:
    path = next(mine.rglob(f"{min(bad)}.arrow"))
    path.write_bytes(b"nonsense")
    done = remove_bad(Cache(mine), "fake")
    assert (done.names, done.rows) == (bad, 20)
    assert verify(mine).damage == []


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_where_all_are_bad_the_teacher_stays_without_vectors(
    tmp_path: Path, team: str, bad: frozenset[str], store: str
) -> None:
    mine = tmp_path / "mine"
    make_bad(mine, EVIL, store=store)
    pull(mine, team)
    mark_bad(mine, team, bad)
    Cache(mine).lookup(EVIL)
    remove_bad(Cache(mine), "fake")
    assert verify(mine).damage == []
    assert [one.name for one in Cache(mine).teachers()] == ["fake"]
    # From the same remote they come again, and are told of.
    pull(mine, team)
    assert shards_of(mine) == bad
    assert Cache(mine).container(TEACHER.contract).kind == store
    assert verify(mine).damage == []
