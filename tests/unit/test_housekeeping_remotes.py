"""Copies of what lies on a remote do not stay for ever, and garbage is looked for once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from share_helpers import TEXTS, make_cache

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.housekeeping import collect_garbage, gc, sweep
from embedcache.share import PullChoice, list_remote, pull, push
from embedcache.share.places import parse_location
from embedcache.share.remote.remote import Remote


def age(folder: Path, hours: float) -> None:
    when = time.time() - hours * 3600
    for path in folder.rglob("*"):
        os.utime(path, (when, when))


def copies(cache: Path) -> set[str]:
    return {path.stem for path in cache.glob("derived/remotes/*/*.json") if len(path.stem) == 64}


def test_copies_of_manifests_go_with_the_manifests(tmp_path: Path) -> None:
    remote, there = tmp_path / "remote", tmp_path / "there"
    push(make_cache(tmp_path / "one", TEXTS[:50], name="one"), str(remote))
    push(make_cache(tmp_path / "two", TEXTS[50:], name="two"), str(remote))
    pull(there, str(remote))
    # The first made the cache.
    pull(there, str(remote))
    assert len(copies(there)) == 2
    gone = min((remote / "manifests").iterdir())
    gone.unlink()
    (note,) = there.glob("derived/remotes/*/sampled.json")
    # Whatever is asked for: what counts is what the remote lists.
    Remote(parse_location(str(remote))).survey(Cache(there), only=[])
    assert copies(there) == {path.stem for path in (remote / "manifests").iterdir()} != set()
    assert note.is_file()
    assert len(list_remote(str(remote)).pushes) == 1


def test_row_indexes_that_nobody_has_used_for_a_day_go(tmp_path: Path) -> None:
    remote, there = str(tmp_path / "remote"), tmp_path / "there"
    push(make_cache(tmp_path / "mine", TEXTS), remote)
    pull(there, remote, PullChoice(corpora=["corpus"], rows=20))
    indexes = set(there.glob("derived/remotes/*/*.index"))
    assert indexes
    assert collect_garbage(Cache(there)) == []
    age(there, 25)
    # Who uses them keeps them; those of shards that are here as a whole are of no use.
    pull(there, remote, PullChoice(corpora=["corpus"], rows=100))
    assert indexes - {Path(one.path) for one in collect_garbage(Cache(there), dry_run=True)}
    age(there, 25)
    found = {Path(one.path): one.reason for one in collect_garbage(Cache(there))}
    assert {found[path] for path in indexes} == {"a row index of a shard on a remote"}
    assert not any(path.exists() for path in indexes)
    pull(there, remote, PullChoice(corpora=["corpus"], rows=200))


def test_garbage_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(tmp_path / "cache")
    for name, hours in (("old", 30), ("young", 1)):
        left = tmp_path / "cache" / f".tmp-{name}"
        left.mkdir()
        (left / ".tmp-inside").touch()
        age(tmp_path / "cache", hours)
        os.utime(left, (time.time() - hours * 3600,) * 2)
        if name == "old":
            continue
        os.utime(tmp_path / "cache" / ".tmp-old", (time.time() - 30 * 3600,) * 2)
        os.utime(tmp_path / "cache" / ".tmp-old" / ".tmp-inside", (time.time() - 30 * 3600,) * 2)
    looks: list[Cache] = []
    look = gc._candidates
    monkeypatch.setattr(gc, "_candidates", lambda cache, **said: looks.append(cache) or look(cache, **said))
    done = sweep(cache, dry_run=True)
    assert ([Path(one.path).name for one in done.found], done.young) == ([".tmp-old"], 1)
    looks.clear()
    said = CliRunner().invoke(cli, ["gc", "--cache", str(cache.folder)])
    assert "1 found" in said.output
    assert "1 more touched within 24 hours left alone" in said.output
    assert len(looks) == 1
