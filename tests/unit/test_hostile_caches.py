"""A cache from a stranger: whatever its names and links say, and whoever put it together, it does no harm."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from hostile_child import TEACHER
from hostile_helpers import (
    EVERYTHING,
    KINDS,
    NAMING_A_TEACHER,
    OPENING,
    READING_A_CORPUS,
    VECTORS,
    honest,
    judge,
    one,
    received,
    recontract,
    reseal,
    rewritten,
)

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.fsio import write_sealed_json
from embedcache.testing import example_contract


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_cache_does_everybody_good(tmp_path: Path, kind: str) -> None:
    judgement = judge(received(tmp_path, kind), EVERYTHING)
    assert judgement.refused == {}
    assert judgement.damage == []
    assert judgement.result("texts") is True
    assert judgement.result("lookup") < (0.3 if kind == "pq" else 0.01)
    assert judgement.result("build") == 0


# Names that lead elsewhere


@pytest.mark.parametrize("name", ["../../../{}", "{}/../../../x", "/{}", "..", "", "a/b"])
def test_a_part_is_never_looked_for_elsewhere(tmp_path: Path, name: str) -> None:
    cache = received(tmp_path)
    part = one(cache, "corpora/words/*.arrow")
    shutil.copy(part, tmp_path)
    led = name.format(part.stem)
    reseal(cache / "corpora/words/corpus.json", lambda value: value["parts"][0].update(sha256=led))
    judge(cache).assert_refused(READING_A_CORPUS, "is no sha256", "--replace")


def test_a_corpus_of_another_name_than_its_folder_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    reseal(cache / "corpora/words/corpus.json", lambda value: value.update(name="../../../outside"))
    judge(cache, EVERYTHING).assert_refused(READING_A_CORPUS, "describes a corpus called", "--replace")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", ".hidden", "", "a b", "a\n", "[red]", "\x1b[31m"])  # noqa: S108
def test_no_teacher_gets_a_name_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    cache = Cache.create(tmp_path / "cache")
    with pytest.raises(InputError, match=r"cannot name a teacher: use letters.* --teacher-name"):
        cache.register_teacher(name, example_contract(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert not (cache.folder / "teachers").exists()


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "[link=x]", os.fsdecode(b"\xff\xfe"), ".x"])
def test_files_of_names_that_nothing_has_are_not_read(tmp_path: Path, name: str) -> None:
    cache = received(tmp_path)
    shutil.copytree(cache / "corpora/words", cache / "corpora" / name)
    names = one(cache, "teachers/*/names")
    shutil.copy(names / f"{TEACHER}.json", names / f"{name}.json")
    judgement = judge(cache, EVERYTHING)
    judgement.assert_unharmed()
    assert any("does not know what it is" in line for line in judgement.result("verify"))


@pytest.mark.parametrize("folder", ["f" * 63, "F" * 64, "..f"])
def test_a_teacher_whose_folder_has_no_contract_id_for_a_name_is_not_read(
    tmp_path: Path, folder: str
) -> None:
    cache = received(tmp_path)
    shutil.copytree(one(cache, "teachers/*"), cache / "teachers" / folder)
    judge(cache).assert_unharmed()


# Links and devices

DEEP = 1200
"""More folders in each other than Python lets functions call each other."""

PLACES = [
    "cache.json",
    "corpora",
    "corpora/words",
    "corpora/words/corpus.json",
    "corpora/words/*.arrow",
    "teachers",
    "teachers/*",
    "teachers/*/contract.json",
    "teachers/*/names",
    "teachers/*/names/*.json",
    "teachers/*/shards",
    "teachers/*/shards/*.arrow",
    "derived",
    "derived/index",
    "derived/index/*/*.mdb",
    "derived/index/*/checked.bin",
    "derived/sources/words.json",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_link_is_followed_nowhere(tmp_path: Path, place: str) -> None:
    cache = received(tmp_path)
    linked = one(cache, place)
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    judgement = judge(cache)
    judgement.assert_refused(
        OPENING, "symbolic link", "repair" if place == "cache.json" else "delete the link"
    )
    assert any("symbolic link" in line for line in judgement.damage)


@pytest.mark.parametrize(
    "place", ["teachers/*/vectors.mdb", "teachers/*/vectors.mdb-lock", "teachers/*/vectors.seal.json"]
)
def test_a_link_in_the_place_of_an_lmdb_file_is_followed_nowhere(tmp_path: Path, place: str) -> None:
    cache = received(tmp_path, "lmdb")
    linked = one(cache, place)
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    judge(cache).assert_refused(OPENING, "symbolic link", "delete the link")


@pytest.mark.parametrize("target", ["/dev/zero", "nowhere", "loop", "."])
@pytest.mark.parametrize("place", ["derived/tokens", "teachers/loop", "corpora/words/more.arrow"])
def test_a_link_to_anything_is_refused(tmp_path: Path, place: str, target: str) -> None:
    cache = received(tmp_path)
    (cache / place).symlink_to(target)
    judge(cache).assert_refused(OPENING, "symbolic link", "delete the link")


def test_a_pipe_or_a_socket_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for number, make in enumerate((os.mkfifo, bound_socket)):
        cache = received(tmp_path / str(number))
        part = one(cache, "corpora/words/*.arrow")
        part.unlink()
        make(part)
        judge(cache).assert_refused(OPENING, "neither a file nor a folder", "delete it")


def bound_socket(path: Path) -> None:
    # The path of a socket may have 108 bytes.
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name[:50])
    os.chdir(before)
    Path(path.parent, path.name[:50]).rename(path)


def test_a_pipe_in_the_place_of_the_marker_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    (cache / "cache.json").unlink()
    os.mkfifo(cache / "cache.json")
    judge(cache).assert_refused(OPENING, "no regular file", "repair")


@pytest.mark.parametrize(
    "place", ["corpora/words/corpus.json", "teachers/*/contract.json", "teachers/*/names/*.json"]
)
def test_a_folder_in_the_place_of_a_small_file_is_refused(tmp_path: Path, place: str) -> None:
    cache = received(tmp_path)
    path = one(cache, place)
    path.unlink()
    path.mkdir()
    refused = READING_A_CORPUS if "corpora" in place else NAMING_A_TEACHER
    judge(cache).assert_refused(refused, "no regular file")


def test_folders_a_thousand_deep_are_no_harm(tmp_path: Path) -> None:
    cache = received(tmp_path)
    before = Path.cwd()
    os.chdir(cache)
    for _ in range(DEEP):
        Path("d").mkdir()
        os.chdir("d")
    os.chdir(before)
    try:
        judge(cache, {"open", "verify"}).assert_refused(())
    finally:
        # What clears up after the tests gives up on such folders.
        os.removedirs(Path(cache, *["d"] * DEEP))


# Other versions, and what was put together by hand


def test_a_cache_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    cache = received(tmp_path)
    write_sealed_json(cache / "cache.json", {"format": "embedcache", "version": 3, "more": {}})
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(OPENING, "format version 3", "reads version 2", "upgrade embedcache")
    assert any("version 3" in line for line in judgement.damage)


@pytest.mark.parametrize("version", [10**4000, "2" * 100_000, ["2"] * 100_000, 1.5, -1, True, None])
def test_a_senseless_version_makes_no_long_message(tmp_path: Path, version: object) -> None:
    cache = received(tmp_path)
    write_sealed_json(cache / "cache.json", {"version": version})
    judge(cache).assert_refused(OPENING, "format version", "reads version 2")


def test_a_corpus_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    cache = received(tmp_path)
    reseal(cache / "corpora/words/corpus.json", lambda value: value.update(version=3))
    judge(cache, EVERYTHING).assert_refused(READING_A_CORPUS, "format version 3", "upgrade embedcache")


def test_a_shard_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    cache = received(tmp_path)
    rewritten(one(cache, "teachers/*/shards/*"), version=3)
    judge(cache, EVERYTHING).assert_refused(VECTORS, "format version 3", "upgrade embedcache")


@pytest.mark.parametrize("shards", [True, False])
def test_a_contract_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path, shards: bool) -> None:
    cache = received(tmp_path)
    recontract(cache, shards=shards, version=2)
    judge(cache).assert_refused(NAMING_A_TEACHER, "has version 2", "upgrade embedcache")


def test_two_teachers_under_one_name_are_told_apart(tmp_path: Path) -> None:
    cache = received(tmp_path)
    recontract(cache, shards=True, pooling="cls")
    shutil.copytree(honest("arrow") / "cache/teachers", cache / "teachers", dirs_exist_ok=True)
    judgement = judge(cache, EVERYTHING)
    assert set(judgement.refused) == {"lookup", "info", "build"}
    for name in ("lookup", "info"):
        assert "two teachers are called 'fake'" in judgement.refused[name]
        assert "choose by contract id" in judgement.refused[name]
    assert "pooling 'cls' -> 'mean'" in judgement.refused["build"]
    assert "--teacher-name" in judgement.refused["build"]


def test_a_shard_of_another_contract_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    other = received(tmp_path / "other")
    recontract(other, shards=True, pooling="cls")
    shutil.copy(one(other, "teachers/*/shards/*"), one(cache, "teachers/*/shards"))
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(VECTORS, "belongs to another teacher", "pooling 'mean' -> 'cls'", "move it away")
    assert len(judgement.damage) == 1


def test_a_half_copied_shard_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    shard = one(cache, "teachers/*/shards/*")
    shard.write_bytes(shard.read_bytes()[:-2000])
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(VECTORS, str(shard), "repair")
    assert any("cut off" in line for line in judgement.damage)


def test_a_shard_still_being_copied_is_not_read(tmp_path: Path) -> None:
    cache = received(tmp_path)
    shard = one(cache, "teachers/*/shards/*")
    shard.with_name(f"{shard.name}.part").write_bytes(shard.read_bytes()[:2000])
    judge(cache).assert_unharmed()


def test_vectors_in_both_kinds_of_store_are_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    shutil.copy(one(honest("lmdb") / "cache", "teachers/*/vectors.mdb"), one(cache, "teachers/*"))
    judge(cache, EVERYTHING).assert_refused(
        VECTORS, "both as shards/ and in vectors.mdb", "move one of them out of the cache"
    )
