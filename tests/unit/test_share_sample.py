"""The sample of what a pull has brought: what it is drawn from, and what becomes of what it finds bad."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from share_helpers import SHARD_ROWS, TEXTS, make_cache

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.verify.deep import BAD, OK, check_deep
from embedcache.cli.main import cli
from embedcache.errors import InputError
from embedcache.fsio import write_sealed_json
from embedcache.housekeeping import compact, remove_teacher
from embedcache.share import PullResult, pull, push, sample
from embedcache.share.arrive import Arrivals
from embedcache.share.sample import NOT_COMPARED
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEACHER = fake_teacher(8)
MORE = sentences(400, seed=12)


class _Live(FakeEncoder):
    """A live teacher that costs nothing, and remembers what it has read."""

    batch_tokens = 100

    def __init__(self) -> None:
        super().__init__(TEACHER)
        self.read: set[str] = set()

    @property
    def provenance(self) -> dict[str, object]:
        return {"compute_dtype": "float32"}

    def encode(self, texts: Sequence[str]) -> Any:
        self.read |= set(texts)
        return super().encode(texts)


class _Other(FakeEncoder):
    """Says that it is the teacher and is another."""

    def encode(self, texts: Sequence[str]) -> Any:
        return FakeEncoder(fake_teacher(8, seed=9)).encode(texts)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> _Live:
    """Return the live teacher, which is at hand."""
    encoder = _Live()
    monkeypatch.setattr(Computing, "encoder", lambda self, contract, **_: encoder)
    monkeypatch.setattr(sample, "is_at_hand", lambda spec: True)
    return encoder


def bad_cache(folder: Path, texts: Sequence[str] = TEXTS[:SHARD_ROWS], name: str = "bad") -> Cache:
    """Build a cache whose vectors are another teacher's."""
    source = folder.parent / f"{folder.name}.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return build(source, teacher=TEACHER, encoder=_Other(TEACHER), cache=folder, name=name)


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
    assert verdicts(pull(mine, str(tmp_path / "team"), **choice)) == [BAD]
    assert not live.read & set(MORE)


def test_what_a_pull_that_was_killed_had_brought_is_compared_by_the_next(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(tmp_path / "team")
    push(bad_cache(tmp_path / "theirs"), remote)
    mine = make_cache(tmp_path / "mine", MORE, name="mine")

    class Cut(BaseException):
        pass

    def cut(arrivals: Arrivals) -> None:
        raise Cut

    # All files have arrived by then.
    monkeypatch.setattr(Arrivals, "finish", cut)
    with pytest.raises(Cut):
        pull(mine, remote)
    monkeypatch.undo()
    monkeypatch.setattr(Computing, "encoder", lambda self, contract, **_: live)
    monkeypatch.setattr(sample, "is_at_hand", lambda spec: True)
    done = pull(mine, remote)
    assert (done.fetched, verdicts(done)) == (0, [BAD])
    assert not live.read & set(MORE)


def test_what_could_not_be_compared_is_compared_once_the_model_is_here(
    tmp_path: Path, live: _Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(tmp_path / "team")
    push(bad_cache(tmp_path / "theirs"), remote)
    monkeypatch.setattr(sample, "is_at_hand", lambda spec: False)
    for _ in range(2):
        assert verdicts(pull(tmp_path / "there", remote)) == [NOT_COMPARED]
    monkeypatch.setattr(sample, "is_at_hand", lambda spec: True)
    done = pull(tmp_path / "there", remote)
    assert (done.fetched, verdicts(done)) == (0, [BAD])


def test_too_few_texts_are_told_of_and_compared_with_the_next(tmp_path: Path, live: _Live) -> None:
    remote = str(tmp_path / "team")
    push(make_cache(tmp_path / "honest", TEXTS[:5], name="few"), remote)
    (few,) = pull(tmp_path / "there", remote).samples
    assert few.verdict == NOT_COMPARED
    assert "5 texts of the corpora have a vector of 'fake' in the 1 shard to be checked" in few.told
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
        assert "fake: bad; an earlier pull found other vectors than the teacher's; still here" in out
        assert "of what came with them: 1 shard; " in out
        assert "'embedcache rm teacher fake'" in out
    # Nothing was encoded for that.
    assert live.read == set()
    remove_teacher(Cache(there), "fake")
    shutil.rmtree(remote)
    push(make_cache(tmp_path / "honest", name="honest"), remote)
    code, out = run("pull", remote, "--cache", there)
    assert (code, "compared: ok" in out) == (0, True)
    assert run("pull", remote, "--cache", there)[0] == 0


def test_bad_vectors_that_come_again_are_known(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    remove_teacher(Cache(there), "fake")
    live.read.clear()
    assert verdicts(pull(there, remote)) == [BAD]
    assert live.read == set()


def test_merging_shards_does_not_make_bad_vectors_good(tmp_path: Path, live: _Live) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs", TEXTS[:20], "one"), remote)
    push(bad_cache(tmp_path / "more", TEXTS[20:40], "two"), remote)
    assert verdicts(pull(there, remote)) == [BAD]
    before = shards_of(there)
    compact(Cache(there))
    assert not shards_of(there) & before
    assert verdicts(pull(there, remote)) == [BAD]


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


@pytest.mark.parametrize(
    "said", [{}, {"x": 1}, {"verdict": 1}, {"verdict": "ok", "before": 7, "bad": ["../x", 3]}]
)
def test_notes_that_are_none_are_as_good_as_no_notes(tmp_path: Path, live: _Live, said: object) -> None:
    remote, there = str(tmp_path / "team"), tmp_path / "there"
    push(bad_cache(tmp_path / "theirs"), remote)
    pull(there, remote, sample_check=False)
    (note,) = there.glob("derived/remotes/*/sampled.json")
    assert set(json.loads(note.read_text())) == {"sha256", TEACHER.contract.id}
    write_sealed_json(note, {TEACHER.contract.id: said})
    done = pull(there, remote)
    assert set(verdicts(done)) <= {BAD}
    assert done.fetched == 0


# Where the model is not here


def test_a_model_that_is_not_here_is_told_of_with_what_to_do(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "mine")
    push(cache, str(tmp_path / "remote"))
    (check,) = pull(tmp_path / "there", str(tmp_path / "remote")).samples
    (teacher,) = cache.teachers()
    assert (check.verdict, check.sampled) == ("not compared", 0)
    told = f"verify --deep --teacher {teacher.contract.id[:12]} --teacher-model FOLDER"
    assert told in check.told
    # That command is there, and gets as far as to look for the model.
    words = ["--cache", str(tmp_path / "there"), *told.replace("FOLDER", str(tmp_path / "no")).split()[1:]]
    result = CliRunner().invoke(cli, ["verify", *words])
    assert result.exit_code != 0
    assert "there is no such folder" in f"{result.output}{result.exception}"
