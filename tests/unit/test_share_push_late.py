"""A push decides while nobody can delete, and sends again what is deleted while it stands still."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import flip_middle
from share_helpers import TEXTS, content, files_of, make_cache

from embedcache.errors import CorruptCacheError
from embedcache.share import PullChoice, collect_remote, pull, push
from embedcache.share.remote.claims import Claims

_push = sys.modules["embedcache.share.push"]


@pytest.fixture
def team(tmp_path: Path) -> str:
    return str(tmp_path / "team")


def shards_on(team: str) -> set[str]:
    return {path.name for path in Path(team).glob("objects/??/*")}


def a_copy(team: str, cache: Path) -> None:
    pull(cache, team, PullChoice(codec="int8"), sample_check=False)


def taken_rows(team: str, cache: Path) -> None:
    pull(cache, team, PullChoice(corpora=["corpus"], rows=10), sample_check=False)


def coarser_rows(team: str, cache: Path) -> None:
    make_cache(cache, TEXTS[:80], codec="int8", name="own")


@pytest.mark.parametrize("bring", [a_copy, taken_rows, coarser_rows])
def test_what_makes_shards_superfluous_may_be_deleted_until_the_push_is_announced(
    tmp_path: Path, team: str, monkeypatch: pytest.MonkeyPatch, bring: Callable[[str, Path], None]
) -> None:
    finer = push(make_cache(tmp_path / "theirs", codec="float16"), team).manifest
    bring(team, tmp_path / "mine")
    shards = {path.stem for path in (tmp_path / "mine").glob("teachers/*/shards/*.arrow")}
    alive = Claims.alive

    def late(claims: Claims, *arguments: Any) -> object:
        # The last moment at which nothing keeps anybody from deleting.
        monkeypatch.undo()
        collect_remote(team, hours=0.0, drop=[finer], delete=True)
        return alive(claims, *arguments)

    monkeypatch.setattr(Claims, "alive", late)
    assert push(tmp_path / "mine", team).manifest
    assert shards <= shards_on(team)


def test_a_refused_push_leaves_no_new_remote(tmp_path: Path, team: str) -> None:
    cache = make_cache(tmp_path / "cache")
    shard = next(cache.folder.glob("teachers/*/shards/*.arrow"))
    flip_middle(shard)
    with pytest.raises(CorruptCacheError, match="is damaged"):
        push(cache.folder, team)
    assert not Path(team).exists()


@pytest.mark.parametrize("step", ["_is_listed", "_declare"])
def test_what_is_deleted_while_a_push_stands_still_is_sent_again(
    tmp_path: Path, team: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    cache = make_cache(tmp_path / "cache")
    begun: list[str] = []
    act, alive = getattr(_push, step), Claims.alive

    def sleep(*arguments: Any) -> object:
        monkeypatch.setattr(_push, step, act)
        for path in Path(team).glob("objects/??/*"):
            path.unlink()
        return act(*arguments)

    def noted(claims: Claims, *arguments: Any) -> object:
        begun.append(claims.mark)
        return alive(claims, *arguments)

    monkeypatch.setattr(_push, step, sleep)
    monkeypatch.setattr(Claims, "alive", noted)
    # Once it has begun anew, it stands still no more.
    monkeypatch.setattr(Claims, "overslept", property(lambda claims: claims.mark == begun[0]))
    done = push(cache, team)
    assert len(begun) == 2
    assert [name.removesuffix(".json") for name in files_of(Path(team), "manifests")] == [done.manifest]
    assert (done.sent, done.present, done.others) == (len(shards_on(team)), 0, 0)
    pull(tmp_path / "there", team)
    assert content(tmp_path / "there") == content(cache.folder)
