"""The commands of sharing: exit codes, JSON, and one line an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from damage import flip_middle
from sharing import (
    content,
    digests_of,
    make_cache,
    make_key,
    objects_in,
    other_vectors,
    put_manifest,
    set_teacher,
)

from embedcache.cache import Cache
from embedcache.cli.main import main
from embedcache.share.names import CONFIG_VARIABLE


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs ``embedcache``."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings" / "remotes.json"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["embedcache", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return make_cache(tmp_path / "cache").folder


def test_push_and_pull_through_a_name(shell: Any, cache: Path, tmp_path: Path) -> None:
    assert shell("remote", "add", "team", tmp_path / "remote").code == 0
    assert shell("remote", "ls", "--json").json == {"team": str(tmp_path / "remote")}
    dry = shell("push", "team", "--cache", cache, "--dry-run", "--json").json
    assert not (tmp_path / "remote").exists()
    pushed = shell(
        "push", "team", "--cache", cache, "--by", "Ann", "-m", "first", "--licence", "CC0", "--json"
    )
    assert pushed.code == 0
    assert pushed.json.keys() == dry.keys()
    assert pushed.json.keys() == {
        *("remote", "manifests", "files", "sent", "sent_bytes", "present"),
    }
    assert pushed.json["sent"] == dry["sent"] == len(objects_in(tmp_path / "remote"))
    preview = shell("pull", "team", "--cache", tmp_path / "mine", "--dry-run", "--json").json
    assert not (tmp_path / "mine").exists()
    pulled = shell("pull", "team", "--cache", tmp_path / "mine", "--json")
    assert pulled.code == 0
    assert pulled.json.keys() == preview.keys()
    assert pulled.json.keys() >= {"files", "bytes", "corpora", "vectors", "left_out", "samples"}
    assert (pulled.json["files"], pulled.json["bytes"]) == (preview["files"], preview["bytes"])
    assert pulled.json["samples"][0]["verdict"] == "not compared"
    assert content(tmp_path / "mine") == content(cache)
    for command in ("push", "pull"):
        again = shell(command, "team", "--cache", tmp_path / "mine")
        assert (again.code, again.err) == (0, "")
    assert shell("remote", "add", "team", "--remove").code == 0
    assert shell("remote", "ls").code == 0
    assert shell("push", "team", "--cache", cache).code == 2


def test_ls_shows_pushes_and_a_card(shell: Any, cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    private, _ = make_key(tmp_path, "key")
    shell(
        "push", remote, "--cache", cache, "--by", "Ann", "-m", "first", "--licence", "CC0", "--sign", private
    )
    (digest,) = digests_of(remote)
    (push,) = shell("remote", "ls", remote, "--json").json["pushes"]
    assert push["manifest"] == digest
    assert (push["by"], push["message"], push["licence"], push["signatures"]) == ("Ann", "first", "CC0", 1)
    assert push["teachers"][0]["rows"] == push["corpora"][0]["rows"] == 120
    assert "files" in push
    table, card = shell("remote", "ls", remote), shell("remote", "ls", remote, digest[:8])
    assert (table.code, card.code) == (0, 0)
    for word in (digest[:12], "Ann", "first"):
        assert word in table.out
        assert word in card.out
    assert "CC0" in card.out
    assert shell("remote", "ls", remote, "000000").code == 2
    bad = put_manifest(remote, b"{}", alone=False)
    refused = shell("remote", "ls", remote, "--json")
    assert refused.code == 1
    assert list(refused.json["refused"]) == [bad]
    assert len(refused.json["pushes"]) == 1


def test_verify_finds_damage(shell: Any, cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shell("push", remote, "--cache", cache, "--by", "Ann")
    sound = shell("remote", "verify", remote, "--json")
    assert (sound.code, sound.json["missing"], sound.json["damaged"]) == (0, {}, {})
    assert sound.json["objects"] == len(objects_in(remote))
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


def test_gc_and_drop(shell: Any, cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shell("push", remote, "--cache", cache)
    (digest,) = digests_of(remote)
    shape = {"remote", "files", "bytes", "manifests", "kept"}
    told = shell("remote", "gc", remote, "--grace", "1d", "--dry-run", "--json")
    assert (told.code, told.json.keys(), told.json["files"]) == (0, shape, 0)
    for grace in ("0.5d", "soon", "nan"):
        assert shell("remote", "gc", remote, "--grace", grace).code == 2
    dropped = shell("remote", "drop", remote, digest[:8], "--now", "--json")
    assert (dropped.code, dropped.json.keys(), dropped.json["manifests"]) == (0, shape, [digest])
    assert objects_in(remote) == {}
    assert shell("remote", "drop", remote, digest[:8]).code == 2
    assert shell("pull", remote, "--cache", tmp_path / "mine").code == 1


def test_bad_vectors_exit_with_1(shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = tmp_path / "remote"
    shell("push", remote, "--cache", other_vectors(tmp_path / "bad").folder, "--by", "Mallory")
    set_teacher(monkeypatch)
    bad = shell("pull", remote, "--cache", tmp_path / "mine")
    assert bad.code == 1
    assert "Mallory" in bad.out
    assert digests_of(remote)[0][:12] in bad.out
    assert Cache(tmp_path / "mine").teachers() == []
    assert shell("pull", remote, "--cache", tmp_path / "other", "--no-sample-check").code == 0


def test_options_of_pull(shell: Any, cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    _, public = make_key(tmp_path, "key")
    shell("push", remote, "--cache", cache)
    mine = ("--cache", tmp_path / "mine")
    part = shell("pull", remote, *mine, "--corpus", "corpus", "--where", "row < 5", "--json")
    assert len(part.json["corpora"]) == 1
    assert part.json["vectors"] == {"fake": 40}
    codes = {
        ("--max-bytes", "1KB"): 2,
        ("--where", "row < 5"): 2,
        ("--corpus", "none"): 2,
        ("--teacher", "none"): 2,
        ("--skip-manifest", "000000"): 2,
        ("--require-signature", tmp_path / "none"): 2,
        ("--require-signature", public): 1,
    }
    for options, code in codes.items():
        done = shell("pull", remote, "--cache", tmp_path / "new", *options)
        assert done.code == code, options
        assert len(done.err.splitlines()) == 1, done.err
    assert shell("pull", tmp_path / "nowhere", *mine).code == 1
    assert shell("pull", "nowhere", *mine).code == 2
    assert shell("remote", "add", "team").code == 2
