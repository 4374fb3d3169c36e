"""Reading through: a build fetches what teammates have encoded and encodes only the rest."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pair_helpers import classifier_folder, joined, pair_file
from share_helpers import (
    content,
    files_of,
    make_cache,
    manifest_bytes,
    manifest_of,
    objects_of,
    put_manifest,
    put_object,
    without_indexes,
)

from embedcache import builder, fsio
from embedcache.build_lender import SAMPLE, SAMPLE_RUNS, sample_places
from embedcache.build_remote import RemoteOptions
from embedcache.build_report import BuildProgress, RemoteSummary
from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.cli.main import main
from embedcache.codecs import pq
from embedcache.errors import ContractMismatchError, InputError, RemoteError, StorageError, TeacherError
from embedcache.share import PullChoice, limits, pull, push
from embedcache.share.places import parse_location
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pulling.sample import note_sampled
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.shard_index import BLOCK_BYTES
from embedcache.store.base import TAKEN_AS
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.views.plan import ViewOptions

pytestmark = pytest.mark.usefixtures("no_pauses")


TEACHER = fake_teacher(64)
TEXTS = sentences(1050, seed=8)
THEIRS, MINE = TEXTS[:1000], TEXTS[50:]
"""Of the second, 950 of 1000 stand in the first."""

_FORKS = multiprocessing.get_context("fork")


def built(
    folder: Path,
    texts: Sequence[str],
    remote: Path | RemoteOptions | None,
    *,
    teacher: Teacher = TEACHER,
    encoder: FakeEncoder | None = None,
    sample: bool = True,
    **settings: Any,
) -> Cache:
    """Build a corpus of ``texts`` into ``folder``, reading through to ``remote``."""
    source = folder.parent / f"{folder.name}-{settings.get('name', 'corpus')}.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return build(
        source,
        teacher=teacher,
        encoder=encoder or FakeEncoder(teacher),  # type: ignore[arg-type]
        cache=folder,
        remote=RemoteOptions(str(remote), sample_check=sample) if isinstance(remote, Path) else remote,
        **{"name": "corpus", "shard_rows": 100, **settings},
    )


def remote_of(cache: Cache) -> RemoteSummary:
    assert cache.last_build is not None
    assert cache.last_build.remote is not None
    return cache.last_build.remote


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """Return a remote that a teammate has pushed to."""
    theirs = built(tmp_path / "theirs", THEIRS, None)
    push(theirs, str(tmp_path / "team"))
    return tmp_path / "team"


def test_an_overlapping_corpus_encodes_what_is_new_and_nothing_else(team: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder(TEACHER)
    mine = built(tmp_path / "mine", MINE, team, encoder=encoder, sample=False)
    summary, remote = mine.last_build, remote_of(mine)
    assert summary is not None
    assert encoder.rows_encoded == summary.encoded == 50
    assert (summary.distinct, summary.reused, remote.rows, remote.texts_saved) == (1000, 0, 950, 950)
    assert remote.checked == 0
    assert remote.encode_seconds_saved is not None
    assert remote.encode_seconds_saved > 0
    alone = built(tmp_path / "alone", MINE, None)
    assert np.array_equal(mine.lookup(MINE), alone.lookup(MINE))
    assert not verify(mine.folder).damage
    # Once more, nothing is left to do, neither to fetch nor to encode.
    again = built(tmp_path / "mine", MINE, team, encoder=encoder, sample=False)
    assert encoder.rows_encoded == 50
    assert remote_of(again).rows == 0


def test_scattered_rows_come_alone(team: Path, tmp_path: Path) -> None:
    # A fifth of every shard: none comes whole.
    wanted = [*THEIRS[::5], *TEXTS[1000:1010]]
    encoder = FakeEncoder(TEACHER)
    mine = built(tmp_path / "mine", wanted, team, encoder=encoder, sample=False)
    assert encoder.rows_encoded == 10
    remote = remote_of(mine)
    assert (remote.rows, remote.whole_shards) == (200, 0)
    store = mine.store(TEACHER.contract)
    assert len(store) == 210
    assert [TAKEN_AS in shard.header.provenance for shard in store.shards].count(True) == 2
    assert np.array_equal(mine.lookup(wanted), built(tmp_path / "alone", wanted, None).lookup(wanted))


def test_the_first_time_a_sample_is_compared_with_the_live_teacher(team: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder(TEACHER)
    mine = built(tmp_path / "mine", TEXTS[100:], team, encoder=encoder)
    assert remote_of(mine).checked == SAMPLE
    assert encoder.rows_encoded == 50 + 2 * SAMPLE
    assert mine.last_build is not None
    # What is encoded to compare is no part of the build.
    assert (mine.last_build.encoded, mine.last_build.outputs[0].stored) == (50, 50)
    more = built(tmp_path / "mine", TEXTS[:60], team, encoder=encoder, name="more")
    assert (remote_of(more).checked, remote_of(more).rows) == (0, 60)
    assert encoder.rows_encoded == 50 + 2 * SAMPLE


def test_a_sample_lies_beside_the_cache_until_it_is_compared(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, made = Cache.create, []

    def noted(folder: Path) -> Cache:
        made.append(folder)
        return create(folder)

    monkeypatch.setattr(Cache, "create", noted)
    mine = built(tmp_path / "mine", MINE, team)
    # Folders for temporary files are small on many machines, and a shard of the sample may come whole.
    assert made[0] == mine.folder
    assert all(folder.is_relative_to(mine.folder) for folder in made[1:])
    assert len(made) == 1 + bool(remote_of(mine).checked)
    assert not list(mine.folder.rglob(".tmp-*"))


def test_a_sample_costs_little_of_what_comes(tmp_path: Path) -> None:
    wide = fake_teacher(1024)
    theirs = built(tmp_path / "theirs", TEXTS, None, teacher=wide, shard_rows=1050)
    push(theirs, str(tmp_path / "team"))
    size = {
        sample: remote_of(
            built(tmp_path / str(sample), TEXTS, tmp_path / "team", teacher=wide, sample=sample)
        )
        for sample in (True, False)
    }
    assert size[False].whole_shards == size[True].whole_shards == 1
    compared = size[True].bytes - size[False].bytes
    # Each run of neighbours lies in two blocks at most.
    assert 0 < compared <= 2 * SAMPLE_RUNS * BLOCK_BYTES < size[False].bytes / 8


@pytest.mark.parametrize("rows", [1, SAMPLE - 1, SAMPLE, SAMPLE + 1, 2 * SAMPLE, 10_001])
@pytest.mark.parametrize("seed", [0, 1, 2**255])
def test_a_sample_is_a_run_of_neighbours_in_each_part_of_the_rows(rows: int, seed: int) -> None:
    places = sample_places(rows, seed)
    assert len(np.unique(places)) == len(places) == min(SAMPLE, rows)
    assert (np.diff(places) > 0).all()
    assert places[0] >= 0
    assert places[-1] < rows
    if rows > SAMPLE:
        runs = places.reshape(SAMPLE_RUNS, -1)
        assert (np.diff(runs, axis=1) == 1).all()
        parts = np.arange(SAMPLE_RUNS + 1) * rows / SAMPLE_RUNS
        assert (runs[:, 0] >= np.floor(parts[:-1])).all()
        assert (runs[:, -1] < np.ceil(parts[1:])).all()


def test_nobody_knows_which_rows_a_sample_is_of() -> None:
    drawn = np.stack([sample_places(10_000, seed) for seed in range(2000)])
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], sample_places(10_000, 0))
    # Every row may be one of them: of pieces of fifty rows each is looked into.
    assert len(np.unique(drawn // 50)) == 200


@pytest.mark.parametrize("rows", [32, 100, 16384])
def test_of_eight_shards_a_sample_looks_into_each(rows: int) -> None:
    assert np.array_equal(np.unique(sample_places(8 * rows, seed=1) // rows), np.arange(8))


class _Other(FakeEncoder):
    """Says that it is one teacher and is another."""

    def encode(self, texts: Sequence[str]) -> Any:
        return FakeEncoder(fake_teacher(64, seed=9)).encode(texts)


def test_another_teachers_vectors_are_refused_and_none_is_kept(tmp_path: Path) -> None:
    liar = built(tmp_path / "theirs", THEIRS, None, encoder=_Other(TEACHER))
    push(liar, str(tmp_path / "team"))
    encoder = FakeEncoder(TEACHER)
    with pytest.raises(RemoteError, match=r"not the teacher's .*none were taken; build without --remote"):
        built(tmp_path / "mine", MINE, tmp_path / "team", encoder=encoder)
    assert encoder.rows_encoded == 2 * SAMPLE
    assert not list((tmp_path / "mine").rglob("shards/*"))
    with pytest.raises(RemoteError, match="none were taken"):
        built(tmp_path / "mine", MINE, tmp_path / "team")
    mine = built(tmp_path / "mine", MINE, None)
    assert np.array_equal(mine.lookup(MINE), FakeEncoder(TEACHER).encode(MINE).vectors.astype(np.float16))


def test_what_a_pull_has_found_bad_is_compared_again(tmp_path: Path) -> None:
    liar = built(tmp_path / "theirs", THEIRS, None, encoder=_Other(TEACHER))
    push(liar, str(tmp_path / "team"))
    mine = built(tmp_path / "mine", TEXTS[1000:], None, name="own")
    remote = Remote(parse_location(str(tmp_path / "team")))
    note_sampled(mine, remote, TEACHER.contract.id, "bad")
    with pytest.raises(RemoteError, match="none were taken"):
        built(tmp_path / "mine", MINE, tmp_path / "team")
    note_sampled(mine, remote, TEACHER.contract.id, "look")
    assert remote_of(built(tmp_path / "mine", MINE, tmp_path / "team")).checked == 0


def test_what_the_teacher_has_at_hand_comes_first(team: Path, tmp_path: Path) -> None:
    shorter = fake_teacher(64, name="short", max_length=60)
    built(tmp_path / "mine", THEIRS[:100], None)
    built(tmp_path / "mine", THEIRS[100:300], None, teacher=shorter, name="other")
    mine = built(tmp_path / "mine", THEIRS[:500], team, name="more", sample=False)
    summary = mine.last_build
    assert summary is not None
    assert (summary.reused, summary.carried, remote_of(mine).rows, summary.encoded) == (100, 200, 200, 0)
    assert remote_of(mine).encode_seconds_saved is None


def test_views_are_fetched_like_texts(tmp_path: Path) -> None:
    options: dict[str, Any] = {"views": ViewOptions(("crop",), embed=("crop",))}
    theirs = built(tmp_path / "theirs", THEIRS[:300], None, **options)
    push(theirs, str(tmp_path / "team"))
    encoder = FakeEncoder(TEACHER)
    mine = built(tmp_path / "mine", THEIRS[:300], tmp_path / "team", encoder=encoder, sample=False, **options)
    assert encoder.rows_encoded == 0
    assert mine.last_build is not None
    assert remote_of(mine).rows == mine.last_build.distinct > 300
    view = mine.corpus().view("crop").texts()
    assert np.array_equal(mine.lookup(view), theirs.lookup(view))


def test_both_outputs_of_a_classifier_are_fetched(tmp_path: Path) -> None:
    folder, texts = classifier_folder(tmp_path / "model"), joined(40)
    file = pair_file(tmp_path / "pairs.tsv", 40)
    settings: dict[str, Any] = {
        "teacher": folder,
        "text_column": "premise",
        "text2_column": "hypothesis",
        "output": "embedding,logits",
        "compute_dtype": "float32",
        "codec": "float32",
        "threads": 1,
    }
    theirs = build(file, cache=tmp_path / "theirs", limit=36, **settings)
    push(theirs, str(tmp_path / "team"))
    mine = build(file, cache=tmp_path / "mine", remote=str(tmp_path / "team"), **settings)
    assert mine.last_build is not None
    assert [(one.taken, one.stored) for one in mine.last_build.outputs] == [(36, 4), (36, 4)]
    assert (mine.last_build.encoded, remote_of(mine).texts_saved) == (4, 36)
    # Both were compared, each on its own.
    assert remote_of(mine).checked == 2 * SAMPLE
    alone = build(file, cache=tmp_path / "alone", **settings)
    for name in ("model", "model.logits"):
        np.testing.assert_allclose(mine.lookup(texts, name), alone.lookup(texts, name), atol=1e-5)


# Codecs


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_an_empty_cache_takes_the_floats_of_the_remote_as_they_are(tmp_path: Path, codec: str) -> None:
    theirs = built(tmp_path / "theirs", THEIRS, None, codec=codec)
    push(theirs, str(tmp_path / "team"))
    mine = built(tmp_path / "mine", MINE, tmp_path / "team", sample=False)
    assert {shard.header.codec for shard in mine.store(TEACHER.contract).shards} == {codec}
    assert mine.last_build is not None
    assert mine.last_build.encoded == 50
    assert np.array_equal(mine.lookup(MINE[:950]), theirs.lookup(MINE[:950]))


@pytest.mark.parametrize("codec", ["int8", "pq"])
def test_what_loses_something_comes_only_where_it_is_named(tmp_path: Path, codec: str) -> None:
    theirs = built(tmp_path / "theirs", THEIRS, None, codec=codec, shard_rows=500)
    push(theirs, str(tmp_path / "team"))
    settings: dict[str, Any] = {"sample": False, "shard_rows": 500}
    encoder = FakeEncoder(TEACHER)
    message = rf"1,000 of 1,000 rows that .*team has .* stored as {codec}.*--codec {codec}, .*--codec float16"
    with pytest.raises(InputError, match=message):
        built(tmp_path / "mine", MINE, tmp_path / "team", encoder=encoder, **settings)
    assert encoder.rows_encoded == 0
    # Nor is a cache left behind that nothing was built into.
    assert not (tmp_path / "mine").exists()
    # Named, it is taken; the one codebook does for what is encoded, too.
    mine = built(tmp_path / "mine", MINE, tmp_path / "team", codec=codec, **settings)
    shards = mine.store(TEACHER.contract).shards
    assert ({shard.header.codec for shard in shards}, remote_of(mine).rows) == ({codec}, 950)
    assert len({shard.header.codebook for shard in shards}) == 1
    assert np.array_equal(mine.lookup(MINE[:950]), theirs.lookup(MINE[:950]))
    # Another named, the texts are encoded, and that is counted.
    other = built(tmp_path / "other", MINE, tmp_path / "team", codec="float16", **settings)
    assert (remote_of(other).rows, remote_of(other).coarser_rows) == (0, 950)
    # What is in the cache already says how it is kept; nothing has to be named.
    more = built(tmp_path / "other", THEIRS[:50], tmp_path / "team", name="more", **settings)
    assert {shard.header.codec for shard in more.store(TEACHER.contract).shards} == {"float16"}


def test_rows_that_keep_less_are_encoded_and_rows_that_keep_all_are_converted(tmp_path: Path) -> None:
    push(built(tmp_path / "coarse", THEIRS[:500], None, codec="int8"), str(tmp_path / "team"))
    push(built(tmp_path / "fine", THEIRS[400:], None, codec="float32", name="fine"), str(tmp_path / "team"))
    mine = built(tmp_path / "mine", THEIRS, tmp_path / "team", codec="float16", sample=False)
    summary, remote = mine.last_build, remote_of(mine)
    assert summary is not None
    # Of the keys that both have, the ones that keep every bit are taken.
    assert (summary.encoded, remote.rows, remote.coarser_rows) == (400, 600, 400)
    alone = built(tmp_path / "alone", THEIRS, None, codec="float16")
    assert np.array_equal(mine.lookup(THEIRS), alone.lookup(THEIRS))
    assert {shard.header.codec for shard in mine.store(TEACHER.contract).shards} == {"float16"}


# Pushing on


def test_what_was_taken_is_not_sent_back(team: Path, tmp_path: Path) -> None:
    wanted = [*THEIRS[::5], *THEIRS[100:200], *TEXTS[1000:1010]]
    mine = built(tmp_path / "mine", wanted, team, sample=False)
    before = files_of(team, "objects")
    pushed = push(mine, str(team))
    # The rows that were encoded here with their index, the part and its description.
    assert pushed.sent == 4
    fresh = files_of(team, "objects").keys() - before.keys()
    assert len(fresh) == 4
    assert push(mine, str(team)).sent == 0
    # Another remote gets all of it.
    assert push(mine, str(tmp_path / "other")).sent == len(objects_of(mine.folder))
    pull(tmp_path / "there", str(tmp_path / "other"))
    assert content(tmp_path / "there") == content(mine.folder)
    # Whoever pulls from the first has everything as well.
    pull(tmp_path / "fourth", str(team), PullChoice(text=False))
    assert np.array_equal(Cache(tmp_path / "fourth").lookup(wanted), mine.lookup(wanted))


def test_what_was_taken_is_sent_where_a_key_of_it_is_missing(team: Path, tmp_path: Path) -> None:
    mine = built(tmp_path / "mine", THEIRS[::5], team, sample=False)
    other = tmp_path / "other"
    push(built(tmp_path / "few", THEIRS[:500], None), str(other))
    taken = len(mine.store(TEACHER.contract).shards)
    assert taken == 2
    assert len(mine.store(TEACHER.contract)) == 200
    push(mine, str(other))
    pull(tmp_path / "there", str(other), PullChoice(text=False))
    assert len(Cache(tmp_path / "there").lookup(THEIRS[::5])) == 200


# What goes wrong


def test_a_remote_that_is_not_there_is_told_before_anything_is_done(tmp_path: Path) -> None:
    encoder = FakeEncoder(TEACHER)
    with pytest.raises(RemoteError, match="no remote at"):
        built(tmp_path / "mine", MINE, tmp_path / "nowhere", encoder=encoder)
    assert encoder.rows_encoded == 0
    assert not (tmp_path / "mine").exists()


def test_a_remote_without_the_teacher_lends_nothing(team: Path, tmp_path: Path) -> None:
    other = fake_teacher(64, seed=4, name="another")
    mine = built(tmp_path / "mine", MINE[:100], team, teacher=other)
    assert mine.last_build is not None
    assert (mine.last_build.encoded, remote_of(mine).rows, remote_of(mine).checked) == (100, 0, 0)


def test_what_shards_without_row_indexes_cost_is_said_before_it_is_paid(team: Path, tmp_path: Path) -> None:
    files = without_indexes(team)
    size = sum(file["bytes"] for file in files if "/shards/" in file["path"])
    fetched, notes = [0], []

    def note(line: str) -> None:
        notes.append((line, fetched[-1]))

    def watch(progress: BuildProgress) -> None:
        if progress.phase == "remote: read row indexes":
            fetched.append(progress.rows)

    options = RemoteOptions(str(team), sample_check=False, on_note=note)
    mine = built(tmp_path / "mine", MINE, options, on_progress=watch)
    assert remote_of(mine).rows == 950
    (told,) = remote_of(mine).told
    assert told.startswith(f"10 shards of {team} without a row index: fetched whole")
    assert f", {size:,} bytes;" in told
    assert notes == [(told, 0)]
    assert max(fetched) == size
    # Now they are known, and nothing is told that is not paid.
    again = built(tmp_path / "mine", TEXTS, options, name="again")
    assert (remote_of(again).told, len(notes)) == ([], 1)


def test_a_teacher_that_is_not_there_is_known_of_first(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untouched(*arguments: object, **settings: object) -> Any:
        raise AssertionError("something was read")

    monkeypatch.setattr(builder.RemoteRows, "open", untouched)
    monkeypatch.setattr(builder, "plan", untouched)
    monkeypatch.setattr(builder, "SourceRows", untouched)
    source = tmp_path / "texts.txt"
    source.write_text("a text\n")
    with pytest.raises(TeacherError, match="no teacher 'nowhere'"):
        build(source, teacher="nowhere", cache=tmp_path / "mine", remote=str(team), views=["crop"])
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("remote", ["taem", "folder/that/is/none"])
def test_a_remote_that_is_not_there_is_known_of_before_the_teacher_is_loaded(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untouched(*arguments: object, **settings: object) -> Any:
        raise AssertionError("the teacher was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embedcache.teacher.load.load_teacher", untouched)
    source = tmp_path / "texts.txt"
    source.write_text("a text\n")
    with pytest.raises((InputError, RemoteError), match=f"no remote .*{remote}"):
        build(source, teacher="minilm-l6", cache=tmp_path / "mine", remote=remote)
    assert not (tmp_path / "mine").exists()


def test_a_name_of_another_teacher_is_refused_before_anything_is_fetched(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path / "mine", THEIRS[:20], None, teacher=fake_teacher(64, seed=5))

    def untouched(*arguments: object) -> Any:
        raise AssertionError("rows were looked for")

    monkeypatch.setattr(builder.Output, "open", untouched)
    with pytest.raises(ContractMismatchError, match="--teacher-name"):
        built(tmp_path / "mine", MINE, team)


def test_no_more_is_fetched_than_was_allowed(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = remote_of(built(tmp_path / "one", MINE, team, sample=False)).bytes
    fetched = rows + manifest_bytes(team)

    def limited(name: str, most: int) -> Cache:
        return built(tmp_path / name, MINE, RemoteOptions(str(team), sample_check=False, max_bytes=most))

    assert remote_of(limited("two", fetched)).bytes == rows
    # Row indexes fit into it, and rows do not; then not even those.
    for name, most in (("three", fetched - 1), ("four", fetched - rows)):
        with pytest.raises(InputError, match=r"more than the .* of --max-bytes: .*build without --remote"):
            limited(name, most)
        assert not list((tmp_path / name).rglob("shards/*"))
    assert list((tmp_path / "three").rglob("*.index"))
    assert not list((tmp_path / "four").rglob("*.index"))
    monkeypatch.setattr(limits, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"are free, of which .* make room, or build without --remote"):
        built(tmp_path / "five", MINE, team, sample=False)


@pytest.mark.parametrize("sample", [False, True])
def test_no_more_is_fetched_than_was_allowed_where_a_remote_gives_no_parts_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: bool
) -> None:
    team = tmp_path / "team"
    push(built(tmp_path / "theirs", THEIRS, None, shard_rows=1000), str(team))
    wanted = THEIRS[::20]
    by_range = remote_of(built(tmp_path / "ranges", wanted, team, sample=sample)).bytes

    def no_ranges(self: FolderPlace, path: str, start: int, length: int) -> bytes:
        raise RangesNotServedError("whole files alone")

    monkeypatch.setattr(FolderPlace, "read_range", no_ranges)
    whole = remote_of(built(tmp_path / "whole", wanted, team, sample=sample)).bytes + manifest_bytes(team)
    assert whole > by_range

    def limited(most: int) -> Cache:
        options = RemoteOptions(str(team), sample_check=sample, max_bytes=most)
        return built(tmp_path / "limited", wanted, options)

    with pytest.raises(InputError, match=f"{whole:,} bytes .*gives no parts of files, so whole shards"):
        limited(whole - 1)
    assert not list((tmp_path / "limited").rglob("shards/*"))
    limited(whole)


def test_a_remote_in_pq_serves_a_corpus_too_small_to_learn_a_codebook_from(tmp_path: Path) -> None:
    theirs = built(tmp_path / "theirs", THEIRS, None, codec="pq", shard_rows=1000)
    push(theirs, str(tmp_path / "team"))
    few = [*THEIRS[::10], *TEXTS[1000:1010]]
    mine = built(tmp_path / "mine", few, tmp_path / "team", codec="pq", sample=False)
    assert remote_of(mine).rows == 100
    assert {shard.header.codec for shard in mine.store(TEACHER.contract).shards} == {"pq"}
    assert np.array_equal(mine.lookup(THEIRS[::10]), theirs.lookup(THEIRS[::10]))


def few_in_pq(folder: Path, texts: Sequence[str], team: Path, **settings: Any) -> Cache:
    return built(folder, texts, team, codec="pq", sample=False, **settings)


def test_codebooks_count_for_what_may_be_fetched(tmp_path: Path) -> None:
    team, wanted = tmp_path / "team", THEIRS[::10]
    push(built(tmp_path / "theirs", THEIRS, None, codec="pq", shard_rows=1000), str(team))
    needed = remote_of(few_in_pq(tmp_path / "free", wanted, team)).bytes + manifest_bytes(team)

    def limited(name: str, most: int) -> Cache:
        options = RemoteOptions(str(team), sample_check=False, max_bytes=most)
        return built(tmp_path / name, wanted, options, codec="pq")

    with pytest.raises(InputError, match=f"{needed:,} bytes would have to be fetched"):
        limited("less", needed - 1)
    assert not list((tmp_path / "less").rglob("codebooks/*"))
    limited("enough", needed)


def test_a_remote_in_pq_lends_its_codebook_where_it_has_none_of_the_texts(tmp_path: Path) -> None:
    theirs = built(tmp_path / "theirs", THEIRS, None, codec="pq", shard_rows=1000)
    push(theirs, str(tmp_path / "team"))
    (book,) = {shard.header.codebook for shard in theirs.store(TEACHER.contract).shards}
    few = TEXTS[1000:1040]
    mine = few_in_pq(tmp_path / "mine", few, tmp_path / "team")
    assert remote_of(mine).rows == 0
    assert [line for line in remote_of(mine).told if "too few texts to learn a codebook" in line]
    assert {shard.header.codebook for shard in mine.store(TEACHER.contract).shards} == {book}
    assert mine.lookup(few).shape == (40, 64)
    assert not verify(mine.folder).damage
    # The next build finds it in the cache.
    more = few_in_pq(tmp_path / "mine", TEXTS[1040:], tmp_path / "team", name="more")
    assert not remote_of(more).told
    assert {shard.header.codebook for shard in more.store(TEACHER.contract).shards} == {book}
    # Where there are enough, they teach one that fits them.
    many = few_in_pq(tmp_path / "many", sentences(300, seed=77), tmp_path / "team", shard_rows=300)
    assert not remote_of(many).told
    assert book not in {shard.header.codebook for shard in many.store(TEACHER.contract).shards}


def test_of_several_codebooks_that_of_most_rows_is_lent(tmp_path: Path) -> None:
    for name, texts in (("more", THEIRS[:600]), ("fewer", THEIRS[600:])):
        cache = built(tmp_path / name, texts, None, codec="pq", shard_rows=1000, name=name)
        push(cache, str(tmp_path / "team"))
    (book,) = {shard.header.codebook for shard in Cache(tmp_path / "more").store(TEACHER.contract).shards}
    mine = few_in_pq(tmp_path / "mine", TEXTS[1000:1040], tmp_path / "team")
    assert {shard.header.codebook for shard in mine.store(TEACHER.contract).shards} == {book}


def _number(value: float) -> NDArray[np.float32]:
    found = np.ones((16, 256, 4), np.float32)
    found[3, 100, 2] = value
    return found


@pytest.mark.parametrize(
    ("centroids", "why"),
    [
        (np.ones((8, 256, 4), np.float32), "is for vectors of width 32 in 8 parts, not 64 in 16"),
        (np.ones((64, 256, 1), np.float32), "is for vectors of width 64 in 64 parts, not 64 in 16"),
        (np.ones((16, 255, 4), np.float32), r"refused .*is no array of float32 of shape \(m, 256, 1 to 4\)"),
        (np.ones((8, 256, 8), np.float32), r"refused .*is no array of float32 of shape \(m, 256, 1 to 4\)"),
        (_number(np.nan), "refused .*not finite"),
        (_number(np.inf), "refused .*not finite"),
        (_number(1e19), "refused .*not finite, or above 1e[+]18"),
    ],
)
def test_what_is_no_codebook_of_the_teacher_is_not_lent(
    tmp_path: Path, centroids: NDArray[np.float32], why: str
) -> None:
    team = tmp_path / "team"
    push(built(tmp_path / "theirs", THEIRS, None, codec="pq", shard_rows=1000), str(team))
    data = pq.PQCodec(centroids).codebook_bytes()
    name = put_object(team, data)
    value = manifest_of(team)
    (file,) = [one for one in value["files"] if "/codebooks/" in one["path"]]
    file.update(path=f"{file['path'].rpartition('/')[0]}/{name}.npy", sha256=name, bytes=len(data))
    put_manifest(team, value)
    for _ in range(2):
        with pytest.raises(RemoteError, match=why):
            few_in_pq(tmp_path / "mine", TEXTS[1000:1040], team)
    assert not Cache(tmp_path / "mine").store(TEACHER.contract).shards


def test_a_new_cache_keeps_what_was_read_before_it_was_there(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    blocks = FolderPlace.blocks

    def counted(place: FolderPlace, path: str, *rest: Any) -> Any:
        read.append(path)
        return blocks(place, path, *rest)

    monkeypatch.setattr(FolderPlace, "blocks", counted)
    mine = built(tmp_path / "mine", MINE, team, sample=False)
    kept = sorted(path.stem for path in mine.derived_folder.rglob("*.index"))
    indexes = {file["index"]["sha256"] for file in manifest_of(team)["files"] if "index" in file}
    assert kept == sorted(indexes)
    assert [sum(name in path for path in read) for name in kept] == [1] * len(kept)


def test_a_damaged_remote_stops_the_build(team: Path, tmp_path: Path) -> None:
    for file in manifest_of(team)["files"]:
        if "/shards/" in file["path"]:
            place = team / "objects" / file["sha256"][:2] / file["sha256"]
            place.write_bytes(bytes(file["bytes"]))
    encoder = FakeEncoder(TEACHER)
    with pytest.raises(RemoteError, match="arrived"):
        built(tmp_path / "mine", MINE, team, encoder=encoder)
    assert encoder.rows_encoded == 2 * SAMPLE or encoder.rows_encoded == 0
    assert not list((tmp_path / "mine").rglob("shards/*.arrow"))


def _killed(at: int, folder: Path, texts: Sequence[str], team: Path) -> bool:
    def run() -> None:
        count = iter(range(1 << 30))

        def step(name: str, path: Path) -> None:
            if next(count) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        fsio.on_write_step = step
        built(folder, texts, team, sample=False)

    child = _FORKS.Process(target=run)
    child.start()
    child.join(120)
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def _steps(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    steps: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(fsio, "on_write_step", lambda *step: steps.append(step))
        work()
    return len(steps)


def test_a_build_killed_at_any_step_is_finished_by_the_next(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Some rows come alone, some shards whole, some rows are encoded.
    texts = [*THEIRS[:100:3], *THEIRS[100:200], *THEIRS[200:400:3], *TEXTS[1000:]]
    count = _steps(monkeypatch, lambda: built(tmp_path / "whole", texts, team, sample=False))
    expected = content(tmp_path / "whole")
    slow = request.config.getoption("--slow")
    chosen = range(count) if slow else np.random.default_rng(1).choice(count, 5, replace=False).tolist()
    for at in chosen:
        folder = tmp_path / f"killed-{at}"
        if _killed(at, folder, texts, team) and folder.exists():
            assert content(folder).items() <= expected.items()
        built(folder, texts, team, sample=False)
        assert content(folder) == expected


# The command


def _shell(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["embedcache", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize(
    "flag",
    [
        ("--require-signature", "key"),
        ("--skip-manifest", "ab"),
        ("--no-sample-check",),
        ("--max-bytes", "1GB"),
    ],
)
def test_what_says_how_to_trust_a_remote_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: tuple[str, ...]
) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    arguments = ("build", tmp_path / "a.txt", "--teacher", "x", "--cache", tmp_path / "cache", *flag)
    assert _shell(monkeypatch, *arguments) == 2
    assert "give --remote too" in capsys.readouterr().err


def test_the_command_tells_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = classifier_folder(tmp_path / "model")
    for name, texts in (("theirs", THEIRS[:60]), ("mine", THEIRS[20:80])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    common = ("--teacher", folder, "--compute-dtype", "float32")
    build_theirs = ("build", tmp_path / "theirs.txt", "--cache", tmp_path / "theirs", *common)
    assert _shell(monkeypatch, *build_theirs) == 0
    assert _shell(monkeypatch, "push", tmp_path / "team", "--cache", tmp_path / "theirs") == 0
    capsys.readouterr()
    build_mine = ("build", tmp_path / "mine.txt", "--cache", tmp_path / "mine", *common)
    assert _shell(monkeypatch, *build_mine, "--remote", tmp_path / "team", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["encoded"], found["remote"]["rows"], found["remote"]["checked"]) == (20, 40, SAMPLE)
    assert found["remote"]["encode_seconds_saved"] > 0
    monkeypatch.setenv("COLUMNS", "200")
    build_again = ("build", tmp_path / "mine.txt", "--cache", tmp_path / "again", *common)
    assert _shell(monkeypatch, *build_again, "--remote", tmp_path / "team") == 0
    out = capsys.readouterr().out
    assert "40 rows (1 whole shard)" in out
    assert "40 texts need not be encoded" in out
    assert "32 texts of the remote with the live teacher" in out


def test_progress_says_what_is_fetched(team: Path, tmp_path: Path) -> None:
    seen: list[BuildProgress] = []
    built(tmp_path / "mine", MINE, team, on_progress=lambda one: seen.append(replace(one)))
    phases = list(dict.fromkeys(one.phase for one in seen))
    units = {
        "remote: read row indexes": "bytes",
        "read": "rows",
        "remote: compare with the live teacher": "rows",
        "remote: fetch shards": "bytes",
        "remote: fetch rows": "bytes",
        "encode": "rows",
    }
    assert set(phases) == {"remote: read the remote", *units}
    # Nothing is counted where nothing has to be fetched.
    assert {(one.phase, one.unit) for one in seen if one.unit} == set(units.items())
    assert max(one.rows for one in seen if one.phase == "remote: fetch shards") > 1000
    # What one phase has counted is not taken for the next one's.
    assert all(one.rows <= len(MINE) for one in seen if one.unit == "rows")


def test_what_is_trusted_can_be_said(team: Path, tmp_path: Path) -> None:
    key = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    public = key.Ed25519PrivateKey.generate().public_key()
    serial = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    (tmp_path / "key.pub").write_bytes(
        public.public_bytes(serial.Encoding.OpenSSH, serial.PublicFormat.OpenSSH)
    )
    source = tmp_path / "mine.txt"
    source.write_text("".join(f"{text}\n" for text in MINE[:20]))
    for options, error, message in (
        (RemoteOptions(str(team), require_signature=tmp_path / "key.pub"), RemoteError, "is signed by"),
        (RemoteOptions(str(team), skip_manifests=("0" * 64,)), InputError, "manifest"),
    ):
        with pytest.raises(error, match=message):
            build(
                source,
                teacher=TEACHER,
                encoder=FakeEncoder(TEACHER),  # type: ignore[arg-type]
                cache=tmp_path / "mine",
                remote=options,
            )
    assert not (tmp_path / "mine").exists()


def test_a_cache_that_pulled_everything_fetches_no_index(team: Path, tmp_path: Path) -> None:
    pull(tmp_path / "mine", str(team), PullChoice(text=False), sample_check=False)
    mine = built(tmp_path / "mine", MINE, team, sample=False)
    assert mine.last_build is not None
    assert (mine.last_build.reused, mine.last_build.encoded, remote_of(mine).bytes) == (950, 50, 0)
    assert not list(mine.derived_folder.rglob("*.index"))


def test_make_cache_builds_what_this_file_builds(tmp_path: Path) -> None:
    # The helper of the other files and the one here make the same shards.
    one = make_cache(tmp_path / "one", THEIRS[:100], teacher=TEACHER, shard_rows=100)
    two = built(tmp_path / "two", THEIRS[:100], None)
    assert content(one.folder) == content(two.folder)


def test_a_remote_that_has_the_model_under_other_settings_says_which(team: Path, tmp_path: Path) -> None:
    contract = replace(TEACHER.contract, pooling="cls", max_length=32)
    mine = built(tmp_path / "mine", MINE[:40], team, teacher=replace(TEACHER, contract=contract))
    assert remote_of(mine).rows == 0
    (told,) = remote_of(mine).told
    assert f"no rows of this teacher's contract {contract.id[:12]}, and 0 are taken" in told
    assert "it has fake (pooling 'mean' -> 'cls', max_length 64 -> 32)" in told
    # Of another model nothing is told but that there is none.
    other = fake_teacher(64, name="stranger", seed=7)
    (told,) = remote_of(built(tmp_path / "other", MINE[:40], team, teacher=other)).told
    assert told.endswith("0 are taken")
    # Where the contract is there, and none of the texts, that is no other contract.
    assert not remote_of(built(tmp_path / "third", TEXTS[1000:], team)).told
