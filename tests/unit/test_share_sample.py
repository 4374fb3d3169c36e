"""The sample of what a pull has brought: what it is drawn from, and what becomes of what it finds."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from share_helpers import SHARD_ROWS, TEXTS, OtherVectors, bad_cache, cut_short, make_cache

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.verify.deep import BAD, OK, check_deep
from embedcache.cli.main import cli, main
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, RemoteError
from embedcache.fsio import write_sealed_json
from embedcache.housekeeping import compact, remove_teacher
from embedcache.keys import key_array
from embedcache.merge import merge_caches
from embedcache.sample_notes import bad_shards
from embedcache.sampling import KeySample
from embedcache.share import PullChoice, PullResult, PushChoice, pull, push, sync
from embedcache.share.pulling import models_at_hand, sample
from embedcache.share.pulling.sample import ArrivalSamples
from embedcache.share.pulling.sample_check import NOT_COMPARED
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEACHER = fake_teacher(8)
SECOND = fake_teacher(8, seed=4, name="second")
MORE = sentences(400, seed=12)


class _Live(FakeEncoder):
    """A live teacher that costs nothing, and remembers what it has read."""

    batch_tokens = 100

    def __init__(self, teacher: Teacher = TEACHER) -> None:
        super().__init__(teacher)
        self.read: set[str] = set()

    @property
    def provenance(self) -> dict[str, object]:
        return {"compute_dtype": "float32"}

    def encode(self, texts: Sequence[str]) -> Any:
        self.read |= set(texts)
        return super().encode(texts)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> _Live:
    """Return the live teacher, which is at hand."""
    encoder = _Live()
    monkeypatch.setattr(Computing, "encoder", lambda self, contract, **_: encoder)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)
    return encoder


def shards_of(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("teachers/*/shards/*.arrow")}


def verdicts(done: PullResult) -> list[str]:
    return [check.verdict for check in done.samples]


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    return result.exit_code, result.output


# What it is drawn from


def test_the_sample_is_of_what_came_and_not_of_what_was_there(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE", 12)
    mine = make_cache(tmp_path / "mine", MORE, name="mine")
    push(bad_cache(tmp_path / "theirs", TEXTS[:13]), str(tmp_path / "team"))
    done = pull(mine, str(tmp_path / "team"))
    assert verdicts(done) == [BAD]
    assert done.samples[0].sampled == 12
    assert live.read <= set(TEXTS[:13])
    # As many of all texts that are here now find nothing.
    (whole,) = check_deep(mine.folder, teacher="fake", sample=12)
    assert whole.worst == OK


def test_nobody_knows_which_texts_will_be_compared(tmp_path: Path, live: _Live) -> None:
    """Or else who pushes could have the right vectors of these, and any others."""
    foreseen = KeySample(sample.SAMPLE, 0)
    foreseen.add(key_array(MORE))
    drawn = foreseen.keys()

    class Sly(FakeEncoder):
        def encode(self, texts: Sequence[str]) -> Any:
            good, bad = super().encode(texts), OtherVectors(TEACHER).encode(texts)
            is_drawn = np.isin(key_array(texts), drawn)
            bad.vectors[is_drawn] = good.vectors[is_drawn]
            return bad

    source = tmp_path / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in MORE), encoding="utf-8")
    push(
        build(source, teacher=TEACHER, encoder=Sly(TEACHER), cache=tmp_path / "theirs"),
        str(tmp_path / "team"),
    )
    assert BAD in verdicts(pull(tmp_path / "mine", str(tmp_path / "team")))
    assert bad_shards(Cache(tmp_path / "mine"), TEACHER.contract.id)


def test_every_pull_compares_what_it_brings(tmp_path: Path, live: _Live) -> None:
    remote = str(tmp_path / "team")
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    assert verdicts(pull(tmp_path / "there", remote)) == [OK]
    live.read.clear()
    assert pull(tmp_path / "there", remote).samples == ()
    assert live.read == set()
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(tmp_path / "there", remote)) == [BAD]
    assert live.read <= set(TEXTS[:SHARD_ROWS])


@pytest.mark.parametrize(
    "choice",
    [
        {"codec": "float16"},
        {"corpora": ["bad"], "rows": 20},
        {"corpora": ["bad"], "rows": 20, "codec": "int8"},
    ],
)
def test_vectors_that_are_kept_otherwise_than_they_came_are_compared_too(
    tmp_path: Path, live: _Live, choice: dict[str, Any]
) -> None:
    mine = make_cache(tmp_path / "mine", MORE, name="mine", codec="float16")
    push(bad_cache(tmp_path / "theirs"), str(tmp_path / "team"))
    assert verdicts(pull(mine, str(tmp_path / "team"), PullChoice(**choice))) == [BAD]
    assert not live.read & set(MORE)


def test_what_a_pull_that_was_killed_had_brought_is_compared_by_the_next(tmp_path: Path, live: _Live) -> None:
    remote = str(tmp_path / "team")
    push(bad_cache(tmp_path / "theirs"), remote)
    mine = make_cache(tmp_path / "mine", MORE, name="mine")
    with cut_short():
        pull(mine, remote)
    done = pull(mine, remote)
    assert (done.fetched, verdicts(done)) == (0, [BAD])
    assert not live.read & set(MORE)


def test_what_could_not_be_compared_is_compared_once_the_model_is_here(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(tmp_path / "team")
    push(bad_cache(tmp_path / "theirs"), remote)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: False)
    assert verdicts(pull(tmp_path / "there", remote)) == [NOT_COMPARED]
    # Once is enough where nothing came since.
    assert pull(tmp_path / "there", remote).samples == ()
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)
    done = pull(tmp_path / "there", remote)
    assert (done.fetched, verdicts(done)) == (0, [BAD])


@pytest.mark.parametrize("own_are_good", [True, False])
def test_ones_own_do_not_become_bad_for_what_came_before_them(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch, own_are_good: bool
) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: False)
    assert verdicts(pull(there, remote)) == [NOT_COMPARED]
    if own_are_good:
        make_cache(there, MORE, name="mine")
    else:
        bad_cache(there, MORE, "mine")
    came = shards_of(tmp_path / "theirs")
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)
    assert set(verdicts(pull(there, remote))) == {BAD}
    assert bad_shards(Cache(there), TEACHER.contract.id) == (came if own_are_good else shards_of(there))
    assert shards_of(there) > came


def test_that_a_model_is_not_here_is_told_again_with_what_comes(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: False)
    assert verdicts(pull(there, remote)) == [NOT_COMPARED]
    # What is built here changes nothing about that.
    make_cache(there, TEXTS[:30], name="mine")
    make_cache(there, TEXTS[30:60], name="second", teacher=SECOND)
    assert pull(there, remote).samples == ()
    push(make_cache(tmp_path / "more", TEXTS[100:140], name="more"), remote)
    (check,) = pull(there, remote).samples
    assert (check.verdict, "is not on this machine" in check.told) == (NOT_COMPARED, True)
    assert pull(there, remote).samples == ()
    # A model that came and went is told of anew, for all is compared in between.
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)
    assert verdicts(pull(there, remote)) == [OK]
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: False)
    assert pull(there, remote).samples == ()
    push(make_cache(tmp_path / "last", TEXTS[140:180], name="last"), remote)
    assert verdicts(pull(there, remote)) == [NOT_COMPARED]


def test_too_few_texts_are_told_of_and_compared_with_the_next(tmp_path: Path, live: _Live) -> None:
    remote = str(tmp_path / "team")
    push(make_cache(tmp_path / "honest", TEXTS[:5], name="few"), remote)
    (few,) = pull(tmp_path / "there", remote).samples
    assert few.verdict == NOT_COMPARED
    assert "5 texts of 1 shard here, expected at least 12" in few.told
    # Once is enough where nothing can be done about it.
    assert pull(tmp_path / "there", remote).samples == ()
    push(make_cache(tmp_path / "honest", TEXTS[5:20], name="more"), remote)
    (check,) = pull(tmp_path / "there", remote).samples
    assert (check.verdict, check.sampled) == (OK, 20)


def test_shards_that_are_no_ones_cannot_be_sampled(tmp_path: Path, live: _Live) -> None:
    cache = make_cache(tmp_path / "mine")
    with pytest.raises(InputError, match=r"0 texts of the corpora .* in the 1 shard to be checked"):
        check_deep(cache.folder, teacher="fake", shards=["ab" * 32])


# What was found bad


def test_what_was_found_bad_is_told_again_until_it_is_gone(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    code, out = run("pull", remote, "--cache", there)
    assert code == 1
    assert f"fake: {SHARD_ROWS} texts compared: bad; other vectors than the teacher's" in out
    live.read.clear()
    for command in ("pull", "sync"):
        code, out = run(command, remote, "--cache", there)
        assert code == 1
        assert "fake: bad; an earlier pull found other vectors than the teacher's, or than those" in out
        assert "in 1 shard still here, which manifest " in out
        assert "'embedcache rm teacher fake --bad'" in out
    # Nothing was encoded for that.
    assert live.read == set()
    remove_teacher(Cache(there), "fake")
    shutil.rmtree(remote)
    push(make_cache(tmp_path / "honest", name="honest"), remote)
    code, out = run("pull", remote, "--cache", there)
    assert (code, "compared: ok" in out) == (0, True)
    assert run("pull", remote, "--cache", there)[0] == 0


def test_what_was_removed_and_comes_again_is_compared_again(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    bad = push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    remove_teacher(Cache(there), "fake")
    # The same ones are as bad as they were.
    assert verdicts(pull(there, remote)) == [BAD]
    remove_teacher(Cache(there), "fake")
    without = PullChoice(skip_manifests=[bad.manifest[:12]])
    assert verdicts(pull(there, remote, without)) == [OK]
    assert pull(there, remote, without).samples == ()
    assert push(there, str(tmp_path / "others")).manifest


def test_shards_in_which_the_sample_shows_it_are_bad_and_the_others_are_not(
    tmp_path: Path, live: _Live
) -> None:
    # Under a second name of the remote nothing tells that the honest shard is the cache's own.
    remote, again, there = tmp_path / "team", tmp_path / "x" / ".." / "team", tmp_path / "honest"
    (tmp_path / "x").mkdir()
    push(make_cache(there, MORE, name="honest"), str(remote))
    honest = shards_of(there)
    bad = push(bad_cache(tmp_path / "theirs"), str(remote))
    (check,) = pull(there, str(again)).samples
    assert check.verdict == BAD
    assert f"in 1 shard, which manifest {bad.manifest[:12]} lists: " in check.told
    assert bad_shards(Cache(there), TEACHER.contract.id) == shards_of(there) - honest
    # The others were compared to the end: nothing is left to be compared.
    live.read.clear()
    assert [check.sampled for check in pull(there, str(again)).samples] == [0]
    assert live.read == set()


def test_if_each_sample_finds_more_nothing_is_believed(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "_MOST_SAMPLES", 1)
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    assert bad_shards(Cache(there), TEACHER.contract.id) == shards_of(there)


def test_what_comes_while_something_bad_is_here_is_compared(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    first, second = pull(there, remote).samples
    assert (first.verdict, first.sampled) == (BAD, 0)
    assert (second.verdict, second.sampled) == (OK, sample.SAMPLE)
    assert live.read <= set(MORE) | set(TEXTS[:SHARD_ROWS])
    push(bad_cache(tmp_path / "more", TEXTS[SHARD_ROWS : 2 * SHARD_ROWS], "two"), remote)
    assert verdicts(pull(there, remote)) == [BAD, BAD]
    (check,) = pull(there, remote).samples
    assert "in 2 shards still here, which manifests " in check.told


def test_merging_shards_does_not_make_bad_vectors_good(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs", TEXTS[:20], "one"), remote)
    push(bad_cache(tmp_path / "more", TEXTS[20:40], "two"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    before = shards_of(there)
    compact(Cache(there))
    assert shards_of(there) == before
    assert verdicts(pull(there, remote)) == [BAD]


def test_a_merged_cache_knows_what_was_found_bad_and_compares_the_rest(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    make_cache(there, MORE, name="mine")
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    live.read.clear()
    merge_caches([there], tmp_path / "merged")
    (told,) = pull(tmp_path / "merged", remote).samples
    assert (told.verdict, told.sampled, live.read) == (BAD, 0, set())
    push(bad_cache(tmp_path / "more", TEXTS[SHARD_ROWS : 2 * SHARD_ROWS], "two"), remote)
    assert verdicts(pull(tmp_path / "merged", remote)) == [BAD, BAD]
    # The cache's own are still its own.
    assert live.read == set(TEXTS[SHARD_ROWS : 2 * SHARD_ROWS])
    remove_teacher(Cache(tmp_path / "merged"), "fake")
    push(make_cache(tmp_path / "honest", MORE, name="honest"), str(tmp_path / "others"))
    assert verdicts(pull(tmp_path / "merged", str(tmp_path / "others"))) == [OK]


def test_bad_vectors_are_kept_where_somebody_says_so(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    assert run("pull", remote, "--cache", there)[0] == 1
    code, out = run("pull", remote, "--cache", there, "--no-sample-check")
    assert code == 0
    assert "fake: 1 shard that an earlier sample found bad kept, as --no-sample-check asks" in out
    code, out = run("pull", remote, "--cache", there)
    assert (code, "fake: " in out) == (0, False)
    # That is no word for what comes later.
    push(bad_cache(tmp_path / "more", TEXTS[SHARD_ROWS : 2 * SHARD_ROWS], "two"), remote)
    assert run("pull", remote, "--cache", there)[0] == 1


def test_what_one_remote_brought_is_not_told_of_another(tmp_path: Path, live: _Live) -> None:
    push(bad_cache(tmp_path / "theirs"), str(tmp_path / "team"))
    push(make_cache(tmp_path / "honest", MORE, name="honest"), str(tmp_path / "others"))
    assert verdicts(pull(tmp_path / "there", str(tmp_path / "team"))) == [BAD]
    assert verdicts(pull(tmp_path / "there", str(tmp_path / "others"))) == [OK]


# What is not sent on


def manifests_of(remote: str) -> set[str]:
    return {path.name for path in Path(remote, "manifests").iterdir()}


def test_a_sync_does_not_send_bad_vectors_back(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    make_cache(there, MORE, name="mine")
    before = manifests_of(remote)
    for _ in range(2):
        code, out = run("sync", remote, "--cache", there, "--by", "Bob")
        assert (code, "nothing was pushed: bad vectors must not be sent on" in out) == (1, True)
    result = CliRunner().invoke(cli, ["sync", remote, "--cache", str(there), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["pushed"]) == (1, None)
    assert manifests_of(remote) == before


def test_a_push_sends_bad_vectors_nowhere(tmp_path: Path, live: _Live) -> None:
    remote, others, there = str(tmp_path / "team"), str(tmp_path / "others"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    other = fake_teacher(8, seed=4, name="second")
    make_cache(there, MORE, name="mine", teacher=other)
    assert BAD in verdicts(pull(there, remote))
    before = manifests_of(remote)
    for target in (remote, others):
        with pytest.raises(InputError, match=r"fake: a pull found other vectors .* in 1 shard, so nothing"):
            push(there, target)
    assert not Path(others).exists()
    assert manifests_of(remote) == before
    assert push(there, others, PushChoice(teachers=["second"])).manifest
    # Somebody has decided.
    pull(there, remote, sample_check=False)
    assert push(there, others).manifest


@pytest.mark.parametrize("as_json", [False, True])
def test_a_sync_that_may_not_push_says_what_it_has_pulled(
    tmp_path: Path,
    live: _Live,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    remote, others, there = str(tmp_path / "team"), str(tmp_path / "others"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    push(make_cache(tmp_path / "honest", MORE, name="honest"), others)
    assert verdicts(pull(there, remote)) == [BAD]
    before = manifests_of(others)
    told: list[PullResult] = []
    with pytest.raises(InputError, match="in 1 shard, so nothing was sent"):
        sync(there, others, on_pulled=told.append)
    assert [done.fetched_vectors for done in told] == [len(MORE)]
    push(make_cache(tmp_path / "more", TEXTS[100:140], name="more"), others)
    words = ["sync", others, "--cache", str(there), *(["--json"] if as_json else [])]
    monkeypatch.setattr("sys.argv", ["embedcache", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert "before, in 1 shard, so nothing was sent" in err
    if as_json:
        found = json.loads(out)
        assert (found["pulled"]["fetched_vectors"], found["pushed"]) == (40, None)
    else:
        assert "40 rows of texts and 40 vectors fetched" in out
        assert "push to" not in out
    assert len(manifests_of(others) - before) == 1


@pytest.mark.parametrize("error", [RemoteError("gone"), KeyboardInterrupt()])
def test_a_sync_whose_push_ends_early_says_what_it_has_pulled(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    remote = str(tmp_path / "team")
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    monkeypatch.setattr(sys.modules["embedcache.share.sync"], "push", failing)
    result = CliRunner().invoke(cli, ["sync", remote, "--cache", str(tmp_path / "there"), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout.removesuffix("Aborted!\n"))["pulled"]["fetched_vectors"] == len(MORE)


# What is noted, and where that counts


def test_what_was_pushed_is_not_compared_when_others_add_to_it(tmp_path: Path, live: _Live) -> None:
    remote = str(tmp_path / "team")
    mine = make_cache(tmp_path / "mine", MORE, name="mine")
    push(mine, remote)
    assert pull(mine, remote).samples == ()
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(mine, remote)) == [BAD]
    assert live.read == set(TEXTS[:SHARD_ROWS])


def test_what_was_built_between_pulls_is_not_compared(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", name="honest"), remote)
    assert verdicts(pull(there, remote)) == [OK]
    live.read.clear()
    make_cache(there, MORE, name="mine")
    assert pull(there, remote).samples == ()
    push(bad_cache(tmp_path / "theirs", sentences(40, seed=33)), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    assert not live.read & set(MORE)


def test_what_another_pull_notes_while_this_one_compares_is_kept(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    check, done = sample._check, []

    def compare(*args: Any) -> Any:
        if not done:
            done.append("begun")
            push(bad_cache(tmp_path / "theirs"), remote)
            assert verdicts(pull(there, remote)) == [BAD]
        return check(*args)

    monkeypatch.setattr(sample, "_check", compare)
    assert verdicts(pull(there, remote)) == [OK]
    with pytest.raises(InputError, match=r"a pull found other vectors .* so nothing was sent"):
        push(there, str(tmp_path / "others"))


def lose(note: Path) -> None:
    shutil.rmtree(note.parents[2])


def damage(note: Path) -> None:
    note.write_bytes(note.read_bytes()[:-9])


def put_old(note: Path) -> None:
    write_sealed_json(note, {TEACHER.contract.id: "ok"})


def put_unvouched(note: Path) -> None:
    said = json.loads(note.read_text())
    said["notes"][TEACHER.contract.id]["bad"] = []
    write_sealed_json(note, {"anchor": [1, 2], "notes": said["notes"]})


def put_nonsense(note: Path) -> None:
    said = json.loads(note.read_text())
    said["notes"][TEACHER.contract.id]["known"] = ["../x", 3]
    write_sealed_json(note, {"anchor": said["anchor"], "notes": said["notes"]})


@pytest.mark.parametrize(
    ("change", "skip"),
    [*((one, False) for one in (lose, damage, put_old, put_unvouched, put_nonsense)), (lose, True)],
)
def test_where_no_note_counts_what_the_remote_has_is_compared_again(
    tmp_path: Path, live: _Live, change: Callable[[Path], None], skip: bool
) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    make_cache(there, MORE, name="mine")
    push(make_cache(tmp_path / "honest", TEXTS[40:], name="honest"), remote)
    bad = push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    (note,) = there.glob("derived/remotes/*/sampled.json")
    change(note)
    live.read.clear()
    # Not even the manifest that lists them has to be among those that are pulled.
    assert verdicts(pull(there, remote, PullChoice(skip_manifests=[bad.manifest[:12]] if skip else []))) == [
        BAD
    ]
    assert not live.read & set(MORE)


def test_notes_that_came_with_a_cache_vouch_for_nothing(tmp_path: Path, live: _Live) -> None:
    remote, ready = str(tmp_path / "team"), tmp_path / "ready"
    push(bad_cache(tmp_path / "theirs"), remote)
    pull(ready, remote, sample_check=False)
    assert pull(ready, remote).samples == ()
    shutil.copytree(ready, tmp_path / "copy")
    assert verdicts(pull(tmp_path / "copy", remote)) == [BAD]


@pytest.mark.parametrize("choice", [{"codec": "int8"}, {"corpora": ["bad"], "rows": 15}])
def test_what_was_made_of_what_came_is_compared_where_no_note_counts(
    tmp_path: Path, live: _Live, choice: dict[str, Any]
) -> None:
    team, there = tmp_path / "team", tmp_path / "there"
    make_cache(there, MORE, name="mine")
    theirs = bad_cache(tmp_path / "theirs")
    push(theirs, str(team))
    pull(there, str(team), PullChoice(**choice), sample_check=False)
    assert not shards_of(there) & shards_of(theirs.folder)
    shutil.rmtree(there / "derived")
    remote = Remote(location_of(str(team)))
    (check,) = ArrivalSamples(Cache(there), remote, {TEACHER.contract.id: TEACHER.contract}).compare(
        Computing()
    )
    assert check.verdict == BAD
    assert not live.read & set(MORE)


def test_of_two_pulls_at_once_the_one_that_ends_says_nothing_of_what_the_other_brings(
    tmp_path: Path, live: _Live
) -> None:
    team, there = tmp_path / "team", tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), str(team))
    assert verdicts(pull(there, str(team))) == [OK]
    theirs = bad_cache(tmp_path / "theirs")
    push(theirs, str(team))
    remote, contracts = Remote(location_of(str(team))), {TEACHER.contract.id: TEACHER.contract}
    killed = ArrivalSamples(Cache(there), remote, contracts)
    other = ArrivalSamples(Cache(there), remote, contracts)
    assert other.compare(Computing()) == ()
    # Now the first brings something, and is killed.
    del killed
    shutil.copytree(theirs.folder, there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("derived"))
    assert verdicts(pull(there, str(team))) == [BAD]


def test_what_two_pulls_have_compared_is_not_compared_again(tmp_path: Path, live: _Live) -> None:
    team, there = tmp_path / "team", tmp_path / "there"
    honest = make_cache(tmp_path / "honest", MORE, name="honest")
    push(honest, str(team))
    Cache.create(there)
    remote, contracts = Remote(location_of(str(team))), {TEACHER.contract.id: TEACHER.contract}
    first = ArrivalSamples(Cache(there), remote, contracts)
    second = ArrivalSamples(Cache(there), remote, contracts)
    shutil.copytree(honest.folder, there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("derived"))
    assert [check.verdict for check in first.compare(Computing())] == [OK]
    assert second.compare(Computing()) == ()


# Texts that are not here


def test_vectors_without_their_texts_are_told_of_once_and_compared_with_them(
    tmp_path: Path, live: _Live
) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(make_cache(tmp_path / "honest", MORE, name="honest"), remote)
    theirs = bad_cache(tmp_path / "theirs")
    push(theirs, remote, PushChoice(text=False))
    first, second = pull(there, remote).samples
    assert (first.verdict, second.verdict) == (OK, NOT_COMPARED)
    assert "no text here is read from 1 shard, for their texts are not here" in second.told
    live.read.clear()
    assert pull(there, remote).samples == ()
    assert live.read == set()
    # What is compared next to them does not make them good.
    push(make_cache(tmp_path / "other", TEXTS[100:140], name="other"), remote)
    assert verdicts(pull(there, remote)) == [OK, NOT_COMPARED]
    push(theirs, remote)
    assert verdicts(pull(there, remote)) == [BAD]


# Where the model is not here


def without_model(monkeypatch: pytest.MonkeyPatch, live: _Live) -> list[Any]:
    """Let no model be here but those in folders; return which are loaded. ``live`` is what a folder holds."""
    asked: list[Any] = []

    def encoder(self: Computing, contract: Contract, *, name: str, **_: Any) -> FakeEncoder:
        asked.append(self.teacher_model)
        if self.teacher_model is not None and contract != live.teacher.contract:
            raise ContractMismatchError("it is another teacher", {})
        return live if contract == live.teacher.contract else _Live(SECOND)

    monkeypatch.setattr(Computing, "encoder", encoder)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: False)
    return asked


def test_a_model_that_is_not_here_is_told_of_with_what_to_do(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = without_model(monkeypatch, live)
    remote, there = tmp_path / "remote", tmp_path / "there"
    push(make_cache(tmp_path / "mine"), str(remote))
    words = ("pull", remote, "--cache", there)
    code, out = run(*words)
    assert code == 0
    assert "fake: not compared; the model 'fake' is not on this machine; the same command with" in out
    assert (asked, live.read) == ([], set())
    # That option is there, wants a folder, and does what it is said to.
    code, out = run(*words, "--teacher-model", tmp_path / "nowhere")
    assert code != 0
    (tmp_path / "model").mkdir()
    code, out = run(*words, "--teacher-model", tmp_path / "model")
    assert code == 0
    assert "fake: 100 texts compared: ok" in out
    assert asked == [str(tmp_path / "model")]
    assert len(live.read) == 100
    # Once it was compared, nothing is said or compared any more.
    for more in ((), ("--teacher-model", tmp_path / "model")):
        code, out = run(*words, *more)
        assert (code, "compared" in out) == (0, False)
    assert len(asked) == 1


def test_what_a_named_model_could_not_be_compared_with_is_told_of_once(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_model(monkeypatch, live)
    remote, there, model = str(tmp_path / "team"), tmp_path / "there", tmp_path / "model"
    model.mkdir()
    push(make_cache(tmp_path / "mine"), remote)
    push(make_cache(tmp_path / "textless", MORE[:40], name="textless"), remote, PushChoice(text=False))
    first, second = pull(there, remote, computing=Computing(model)).samples
    assert (first.verdict, second.verdict) == (OK, NOT_COMPARED)
    assert "no text here is read from 1 shard" in second.told
    for computing in (None, Computing(model)):
        assert pull(there, remote, computing=computing).samples == ()
    # Of what comes since it is told again.
    push(make_cache(tmp_path / "more", MORE[40:80], name="more"), remote)
    (check,) = pull(there, remote).samples
    assert "--teacher-model FOLDER" in check.told


def test_a_sync_compares_with_the_model_that_is_named_and_sends_nothing_bad_back(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = without_model(monkeypatch, live)
    remote, mine = str(tmp_path / "team"), make_cache(tmp_path / "mine", MORE[:20], name="mine")
    push(bad_cache(tmp_path / "theirs"), remote)
    (tmp_path / "model").mkdir()
    done = sync(mine, remote, computing=Computing(tmp_path / "model"))
    assert done.pushed is None
    code, out = run("sync", remote, "--cache", tmp_path / "there", "--teacher-model", tmp_path / "model")
    assert (code, "nothing was pushed" in out) == (1, True)
    assert asked == [tmp_path / "model", str(tmp_path / "model")]


def test_a_model_that_is_named_is_used_for_the_teacher_that_it_is(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, model = str(tmp_path / "team"), tmp_path / "model"
    model.mkdir()
    push(make_cache(tmp_path / "theirs"), remote)
    push(make_cache(tmp_path / "second", TEXTS[:120], teacher=SECOND, name="second"), remote)
    asked = without_model(monkeypatch, live)
    # Of the other teacher no model is here: that this one is not its is told.
    found = {one.teacher: one for one in pull(tmp_path / "one", remote, computing=Computing(model)).samples}
    assert {name: one.verdict for name, one in found.items()} == {"fake": OK, "second": NOT_COMPARED}
    assert "it is another teacher" in found["second"].told
    # Where it is, it is compared with its own.
    asked.clear()
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: spec == "second")
    found = {one.teacher: one for one in pull(tmp_path / "two", remote, computing=Computing(model)).samples}
    assert {name: one.verdict for name, one in found.items()} == {"fake": OK, "second": OK}
    assert found["second"].told.startswith("compared with its own model, for that of --teacher-model is")
    assert "its own model" not in found["fake"].told
    assert sorted(asked, key=str) == [model, model, None]


def test_a_folder_that_holds_another_teacher_vouches_for_nothing(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, model = str(tmp_path / "team"), tmp_path / "model"
    model.mkdir()
    push(make_cache(tmp_path / "theirs"), remote)
    without_model(monkeypatch, _Live(SECOND))
    there = tmp_path / "there"
    (check,) = pull(there, remote, computing=Computing(model)).samples
    assert (check.verdict, "it is another teacher" in check.told) == (NOT_COMPARED, True)
    # It is still to be compared.
    assert verdicts(pull(there, remote)) == [NOT_COMPARED]


@pytest.mark.parametrize("command", ["pull", "sync"])
def test_a_model_to_compare_with_and_no_comparison_do_not_go_together(tmp_path: Path, command: str) -> None:
    push(make_cache(tmp_path / "mine"), str(tmp_path / "team"))
    words = [command, str(tmp_path / "team"), "--cache", str(tmp_path / "there"), "--no-sample-check"]
    result = CliRunner().invoke(cli, [*words, "--teacher-model", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert "--teacher-model together with --no-sample-check" in str(result.exception)
    assert not (tmp_path / "there").exists()
