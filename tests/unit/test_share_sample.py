"""Vectors that come from a remote are compared before they are admitted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharing import TEXTS, content, digests_of, make_cache, other_vectors, set_teacher

from embedcache.cache import Cache
from embedcache.errors import TeacherError
from embedcache.share import Selection, pull, push
from embedcache.share.sample import SAMPLE
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.testing import FakeEncoder, fake_teacher

CONTRACT = fake_teacher(8).contract


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    set_teacher(monkeypatch)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    """Return a remote with another teacher's vectors under right digests."""
    cache = other_vectors(tmp_path / "bad", TEXTS[:120], name="bad")
    push(cache.folder, str(tmp_path / "remote"), by="Mallory")
    return str(tmp_path / "remote")


@pytest.mark.usefixtures("alive")
def test_nothing_of_a_teacher_with_bad_vectors_enters(tmp_path: Path, bad: str) -> None:
    # Without a text of its own that is here, the other one is not compared.
    good = fake_teacher(8, name="good", seed=3)
    ann = make_cache(tmp_path / "good", TEXTS[200:203], teacher=good, name="good")
    push(ann.folder, bad, Selection(text=False), by="Ann")
    done = pull(tmp_path / "mine", bad)
    mine = Cache(tmp_path / "mine")
    assert [one.name for one in mine.teachers()] == ["good"]
    assert not (mine.folder / "teachers" / CONTRACT.id).exists()
    assert mine.corpus_names() == ["bad"]
    assert done.vectors == {"good": 3}
    (sample,) = [one for one in done.samples if one.is_bad]
    assert sample.sampled == SAMPLE
    for word in (digests_of(bad)[0][:12], "Mallory", "skip_manifests"):
        assert word in sample.message
    assert "Ann" not in sample.message


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_right_vectors_pass_in_every_codec(tmp_path: Path, codec: str) -> None:
    push(make_cache(tmp_path / "theirs", codec=codec).folder, str(tmp_path / "remote"))
    mine = make_cache(tmp_path / "mine", TEXTS[5:65], codec="float32", name="mine")
    (sample,) = pull(mine.folder, str(tmp_path / "remote")).samples
    assert (sample.verdict, sample.sampled, sample.own) == ("ok", SAMPLE, 60)


def test_vectors_that_contradict_ones_own_are_found_without_a_model(tmp_path: Path, bad: str) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[100:140])
    before = content(mine.folder)
    (sample,) = pull(mine.folder, bad).samples
    assert (sample.is_bad, sample.sampled, sample.own) == (True, 0, 20)
    after = content(mine.folder)
    assert {path for path in after if path not in before} == {p for p in after if "corpora/bad/" in p}


@pytest.mark.parametrize("how", ["absent", "broken", "named by the remote"])
def test_without_a_model_vectors_are_not_compared(
    tmp_path: Path, bad: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that a remote names is not where a model is loaded from."""

    def fails(*_: object, **__: object) -> None:
        assert how == "broken"
        raise TeacherError("no weights")

    cache = Cache(tmp_path / "bad")
    if how == "broken":
        monkeypatch.setattr(sys.modules["embedcache.share.pull"], "local_encoder", fails)
    if how == "named by the remote":
        (cache.teacher_folder(CONTRACT) / "names" / "fake.json").unlink()
        cache.register_teacher("fake", CONTRACT, {"spec": str(tmp_path)})
        bad = str(tmp_path / "team")
        push(cache.folder, bad)
    monkeypatch.setattr("embedcache.live.Computing.encoder", fails)
    (sample,) = pull(tmp_path / "mine", bad).samples
    assert sample.verdict == "not compared"
    assert ("no weights" in sample.message) == (how == "broken")
    assert len(Cache(tmp_path / "mine").teachers()) == 1


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    ("selection", "verdict"),
    [({"text": False}, "not compared"), ({"corpora": ["bad"], "where": "row = 0"}, "bad")],
)
def test_one_text_is_a_comparison_and_none_is_not(
    tmp_path: Path, bad: str, selection: Any, verdict: str
) -> None:
    (sample,) = pull(tmp_path / "mine", bad, Selection(**selection)).samples
    assert sample.verdict == verdict


@pytest.mark.parametrize(
    "forged",
    [
        {},
        {"word": np.full((2, 4), 1.01, np.float32)},
        {"tokens": ("b", "a")},
        {"type_row": np.ones(4, np.float32)},
        {"project_weight": np.eye(4, dtype=np.float32) * 2, "project_bias": np.zeros(4, np.float32)},
    ],
    ids=["right", "word", "tokens", "type", "project"],
)
def test_a_wrong_token_table_is_refused(
    tmp_path: Path, forged: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_teacher(monkeypatch)
    own = TokenTable(np.ones((2, 4), np.float32), ("a", "b"))
    monkeypatch.setattr("embedcache.teacher.token_table.token_table_of", lambda teacher: own)
    cache = make_cache(tmp_path / "theirs")
    replace(own, **forged).write(table_path(cache.folder, CONTRACT), CONTRACT)
    push(cache.folder, str(tmp_path / "remote"))
    assert pull(tmp_path / "mine", str(tmp_path / "remote")).is_bad is bool(forged)
    assert table_path(tmp_path / "mine", CONTRACT).exists() is not bool(forged)


def test_every_comparison_draws_another_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[frozenset[str]] = []

    class Noting(FakeEncoder):
        def encode(self, texts: Any) -> Any:
            drawn.append(frozenset(texts))
            return super().encode(texts)

    set_teacher(monkeypatch, Noting(fake_teacher(8)))
    push(make_cache(tmp_path / "more", TEXTS, name="more").folder, str(tmp_path / "remote"))
    for place in ("a", "b"):
        pull(tmp_path / place, str(tmp_path / "remote"))
    assert len({one for one in drawn if len(one) == SAMPLE}) > 1


@pytest.mark.parametrize("texts", [TEXTS[180:], TEXTS[:120]], ids=["of other texts", "of the same texts"])
def test_bad_vectors_among_right_ones_are_found(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the vectors is another teacher's; or two pushes contradict each other, without a model."""
    if texts != TEXTS[:120]:
        set_teacher(monkeypatch)
    remote = str(tmp_path / "remote")
    push(make_cache(tmp_path / "theirs", TEXTS[:180]).folder, remote, by="Ann")
    push(other_vectors(tmp_path / "bad", texts, name="bad").folder, remote, by="Mallory")
    (sample,) = pull(tmp_path / "mine", remote).samples
    assert sample.is_bad
    assert "Mallory" in sample.message
    assert Cache(tmp_path / "mine").teachers() == []
    assert pull(tmp_path / "mine", remote, skip_manifests=[digests_of(remote)[1]]).vectors
