"""Vectors that come from a remote are compared before they are admitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharing import TEXTS, content, digests_of, make_cache, other_vectors, set_teacher

from embedcache.cache import Cache
from embedcache.share import Selection, pull, push
from embedcache.share.sample import SAMPLE
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.testing import FakeEncoder, fake_teacher

CONTRACT = fake_teacher(8).contract


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str]]:
    """Have pulls find the teacher's model on this machine; return a list that gets each sample."""
    samples: list[frozenset[str]] = []

    class Noting(FakeEncoder):
        def encode(self, texts: Any) -> Any:
            samples.append(frozenset(texts))
            return super().encode(texts)

    set_teacher(monkeypatch, Noting(fake_teacher(8)))
    return samples


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def bad(tmp_path: Path, remote: str) -> str:
    """Return a remote with another teacher's vectors under right digests."""
    push(other_vectors(tmp_path / "bad", name="bad").folder, remote, by="Mallory")
    return remote


def test_nothing_of_a_teacher_with_bad_vectors_enters(tmp_path: Path, bad: str, drawn: list[Any]) -> None:
    good = make_cache(tmp_path / "good", TEXTS[200:203], teacher=fake_teacher(8, name="good", seed=3))
    push(good.folder, bad, Selection(text=False), by="Ann")
    done = pull(tmp_path / "mine", bad)
    mine = Cache(tmp_path / "mine")
    assert [one.name for one in mine.teachers()] == ["good"]
    assert not mine.teacher_folder(CONTRACT).exists()
    assert (done.corpora, done.vectors) == (["bad"], {"good": 3})
    (sample,) = [one for one in done.samples if one.is_bad]
    assert sample.sampled == SAMPLE
    assert all(word in sample.message for word in (digests_of(bad)[0][:12], "Mallory", "skip_manifests"))
    assert "Ann" not in sample.message


def test_right_vectors_pass_and_each_time_others_are_drawn(
    tmp_path: Path, remote: str, drawn: list[Any]
) -> None:
    push(make_cache(tmp_path / "theirs", TEXTS, codec="int8").folder, remote)
    mine = make_cache(tmp_path / "mine", TEXTS[5:65], codec="float32", name="mine")
    for folder, own in ((mine.folder, 60), (tmp_path / "new", 0)):
        (sample,) = pull(folder, remote).samples
        assert (sample.verdict, sample.sampled, sample.own) == ("ok", SAMPLE, own)
    assert len({one for one in drawn if len(one) == SAMPLE}) > 1


def test_vectors_that_contradict_ones_own_are_found_without_a_model(tmp_path: Path, bad: str) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[100:140])
    before = content(mine.folder)
    (sample,) = pull(mine.folder, bad).samples
    assert (sample.is_bad, sample.sampled, sample.own) == (True, 0, 20)
    assert all("corpora/bad/" in path for path in content(mine.folder).keys() - before.keys())


@pytest.mark.parametrize("has_model", [True, False])
def test_bad_vectors_among_right_ones_are_found(
    tmp_path: Path, remote: str, has_model: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are another teacher's, and a model tells; or two pushes contradict each other."""
    if has_model:
        set_teacher(monkeypatch)
    push(make_cache(tmp_path / "theirs", TEXTS[:180]).folder, remote, by="Ann")
    wrong = TEXTS[180:] if has_model else TEXTS[:120]
    push(other_vectors(tmp_path / "bad", wrong, name="bad").folder, remote, by="Mallory")
    (sample,) = pull(tmp_path / "mine", remote).samples
    assert sample.is_bad
    assert "Mallory" in sample.message
    assert Cache(tmp_path / "mine").teachers() == []
    assert pull(tmp_path / "mine", remote, skip_manifests=[digests_of(remote)[1]]).vectors


def test_no_model_is_loaded_from_a_folder_that_the_remote_names(
    tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "bad")
    (cache.teacher_folder(CONTRACT) / "names" / "fake.json").unlink()
    cache.register_teacher("fake", CONTRACT, {"spec": str(tmp_path)})
    push(cache.folder, str(tmp_path / "team"))
    monkeypatch.setattr("embedcache.live.Computing.encoder", lambda *_, **__: pytest.fail("loaded"))
    (sample,) = pull(tmp_path / "mine", str(tmp_path / "team")).samples
    assert sample.verdict == "not compared"
    assert len(Cache(tmp_path / "mine").teachers()) == 1


def test_a_wrong_token_table_is_refused(
    tmp_path: Path, remote: str, drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TokenTable(np.ones((2, 4), np.float32), ("a", "b"))
    monkeypatch.setattr("embedcache.teacher.token_table.token_table_of", lambda teacher: own)
    cache = make_cache(tmp_path / "theirs")
    other_words: Any = {"word": np.full((2, 4), 1.01, np.float32)}
    for number, forged in enumerate(({}, other_words, {"tokens": ("b", "a")})):
        table_path(cache.folder, CONTRACT).unlink(missing_ok=True)
        replace(own, **forged).write(table_path(cache.folder, CONTRACT), CONTRACT)
        place, mine = str(tmp_path / f"remote{number}"), tmp_path / f"mine{number}"
        push(cache.folder, place)
        assert pull(mine, place).is_bad is bool(forged)
        assert table_path(mine, CONTRACT).exists() is not bool(forged)
