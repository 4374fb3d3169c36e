"""Manifests that say of a sound object what is not so: who says it is named, and others are believed."""

from __future__ import annotations

import copy
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_helpers import TEXTS, content, make_cache, manifest_of

from embedcache.cli.main import main
from embedcache.errors import RemoteError
from embedcache.fsio import canonical_json
from embedcache.share import PullChoice, check_remote, pull, push, retry
from embedcache.share.mirror.mirror import Mirror

SHARD = r"/shards/"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    return tmp_path / "remote"


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tell_lies(remote: Path, change: Callable[[dict[str, Any]], None], *, alone: bool = False) -> str:
    """Put a manifest beside the only one, or in its place, whose first shard is changed; return its name."""
    (right,) = (remote / "manifests").iterdir()
    value = copy.deepcopy(manifest_of(remote))
    change(next(file for file in value["files"] if re.search(SHARD, file["path"])))
    # Whose name comes first is listed first.
    numbers = (canonical_json(value | {"message": f"lie {number}"}) for number in range(1000))
    data = next(data for data in numbers if digest_of(data) < right.stem)
    (remote / "manifests" / f"{digest_of(data)}.json").write_bytes(data)
    if alone:
        right.unlink()
    return digest_of(data)


def larger(file: dict[str, Any]) -> None:
    file["bytes"] += 1000


def smaller(file: dict[str, Any]) -> None:
    file["bytes"] -= 1000


def more_rows(file: dict[str, Any]) -> None:
    file["rows"] += 1


@pytest.mark.parametrize("change", [larger, smaller])
def test_of_two_sizes_the_one_that_the_object_has_is_believed(
    remote: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    liar = tell_lies(remote, change)
    pull(tmp_path / "there", str(remote))
    assert content(tmp_path / "there") == content(tmp_path / "cache")
    pull(tmp_path / "part", str(remote), PullChoice(corpora=["corpus"], rows=60))
    with Mirror.open(str(remote), tmp_path / "mirror") as mirror:
        assert len(mirror.store(mirror.cache.teacher().contract)) == len(TEXTS)
    found = check_remote(str(remote))
    assert not found.is_sound
    (wrong,) = found.wrong
    shard = next((tmp_path / "cache").glob(f"teachers/*/shards/{Path(wrong.path).name}"))
    assert (wrong.manifest, wrong.found) == (liar, f"{shard.stat().st_size:,} bytes")
    assert wrong.said != wrong.found


def test_no_document_has_the_size_of_an_object_that_is_too_large_for_one(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SHARD", "/contract.json")

    def lie(file: dict[str, Any]) -> None:
        file["bytes"] += 1
        with (remote / "objects" / file["sha256"][:2] / file["sha256"]).open("ab") as sink:
            sink.truncate(1 << 31)

    tell_lies(remote, lie)
    with pytest.raises(RemoteError, match=r"contract\.json"):
        pull(tmp_path / "there", str(remote))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (larger, r"which are right, and not the [\d,]+ that a manifest says; manifest {liar} lists it so"),
        (
            smaller,
            r"or that size is wrong, which 'embedcache remote verify' tells: manifest {liar} lists it so",
        ),
    ],
)
def test_a_manifest_that_lies_about_a_size_is_named(
    remote: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    told: str,
) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.01)
    liar = tell_lies(remote, change, alone=True)[:12]
    with pytest.raises(
        RemoteError, match=f"{told.format(liar=liar)}, and --skip-manifest {liar} does without"
    ):
        pull(tmp_path / "there", str(remote))
    assert [line.manifest[:12] for line in check_remote(str(remote)).wrong] == [liar]


def test_a_manifest_that_lies_about_rows_is_named(remote: Path, tmp_path: Path) -> None:
    liar = tell_lies(remote, more_rows)
    part = PullChoice(corpora=["corpus"], rows=60)
    told = f"manifest {liar[:12]} lists it so, and --skip-manifest {liar[:12]} does without"
    with pytest.raises(RemoteError, match=told):
        pull(tmp_path / "part", str(remote), part)
    without = PullChoice(corpora=["corpus"], rows=60, skip_manifests=[liar])
    assert pull(tmp_path / "part", str(remote), without).part is not None
    found = check_remote(str(remote))
    assert {line.manifest for line in found.wrong} == {path.stem for path in (remote / "manifests").iterdir()}
    assert {(line.said, line.found) for line in found.wrong} == {
        ("41 rows", "40 as others say"),
        ("40 rows", "41 as others say"),
    }


def test_verify_prints_what_a_manifest_says_wrongly(
    remote: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    liar = tell_lies(remote, larger)[:12]
    monkeypatch.setattr("sys.argv", ["embedcache", "remote", "verify", str(remote)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    printed = capsys.readouterr().out
    assert f"manifest {liar} says " in printed
    assert f"--skip-manifest {liar} does without it" in printed
