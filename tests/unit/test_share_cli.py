"""The commands of sharing: exit codes, JSON, and one line an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from damage import flip_middle
from sharing import (
    content,
    digests_of,
    make_cache,
    objects_in,
    other_vectors,
    set_teacher,
)

from embedcache.cache import Cache
from embedcache.share import push
from embedcache.share.location import CONFIG_VARIABLE

if TYPE_CHECKING:
    from shell import Shell

pytest_plugins = ["shell"]


@pytest.fixture(autouse=True)
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the names of remotes apart from the user's."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings" / "remotes.json"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache; push from it only."""
    return make_cache(tmp_path_factory.mktemp("caches") / "cache").folder


@pytest.fixture
def remote(cache: Path, tmp_path: Path) -> Path:
    push(cache, str(tmp_path / "remote"), by="Ann", message="first", licence="CC0")
    return tmp_path / "remote"


def test_push_and_pull_through_a_name(shell: Shell, cache: Path, tmp_path: Path) -> None:
    remote, mine = tmp_path / "remote", tmp_path / "mine"
    assert shell("remote", "add", "team", remote).code == 0
    assert shell("remote", "ls", "--json").json == {"team": str(remote)}
    dry = shell("push", "team", "--cache", cache, "--dry-run", "--json").json
    assert not remote.exists()
    pushed = shell("push", "team", "--cache", cache, "--json").json
    assert pushed == {**dry, "manifest": digests_of(remote)[0]}
    assert pushed["sent"] == len(objects_in(remote))
    dry = shell("pull", "team", "--cache", mine, "--dry-run", "--json").json
    assert not mine.exists()
    pulled = shell("pull", "team", "--cache", mine, "--json").json
    assert {**pulled, "samples": []} == dry
    assert pulled["samples"][0]["verdict"] == "not compared"
    assert content(mine) == content(cache)
    for command in ("push", "pull"):
        again = shell(command, "team", "--cache", mine)
        assert (again.code, again.err) == (0, "")
    assert shell("remote", "add", "team", "--remove").code == 0
    assert shell("push", "team", "--cache", cache).code == 2


def test_ls_shows_cards(shell: Shell, remote: Path) -> None:
    (digest,) = digests_of(remote)
    card = shell("remote", "ls", remote, "--json").json[digest]
    assert (card["by"], card["message"], card["licence"]) == ("Ann", "first", "CC0")
    assert card["teachers"][0]["rows"] == card["corpora"][0]["rows"] == 120
    table = shell("remote", "ls", remote).out
    assert all(word in table for word in (digest[:12], "Ann", "first", "CC0"))


def test_a_card_cannot_rewrite_the_terminal(shell: Shell, cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shell("push", remote, "--cache", cache, "--by", "Mal\x1b[2Jlory", "-m", "\x9b2J\u202e")
    for path in objects_in(remote).values():
        path.write_bytes(b"")
    for command in (("remote", "ls"), ("remote", "verify"), ("pull", "--cache", tmp_path / "mine")):
        done = shell(*command, remote)
        assert "Mal" in done.out + done.err
        assert all(one.isprintable() for one in (done.out + done.err).replace("\n", ""))


def test_verify_finds_damage(shell: Shell, cache: Path, remote: Path) -> None:
    assert shell("remote", "verify", remote).code == 0
    first, second, *_ = objects_in(remote).values()
    flip_middle(first)
    second.unlink()
    found = shell("remote", "verify", remote, "--json")
    assert found.code == 1
    assert list(found.json["missing"]) == [second.name]
    assert "Ann" in found.json["damaged"][first.name]
    assert shell("remote", "verify", remote, "--delete-damaged").code == 1
    assert shell("push", remote, "--cache", cache, "--json").json["sent"] == 2
    assert shell("remote", "verify", remote).code == 0


def test_bad_vectors_exit_with_1(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    shell("push", remote, "--cache", other_vectors(tmp_path / "bad").folder, "--by", "Mallory")
    set_teacher(monkeypatch)
    bad = shell("pull", remote, "--cache", tmp_path / "mine")
    assert (bad.code, "Mallory" in bad.out) == (1, True)
    assert Cache(tmp_path / "mine").teachers() == []
