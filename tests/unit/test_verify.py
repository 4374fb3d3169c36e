"""Verify: missing and contradictory files are found, nothing else is damage, nothing is written.

That flipped bytes and cut files are found, tests/gate/test_flips.py asserts; two stores, lost names and files
of newer versions, test_repair.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from check_helpers import KINDS, SHARD_ROWS, TEXTS, MakeCopy, flip, only, own_files, reseal, run

from embedcache.corpus.description import read_info
from embedcache.errors import CacheFormatError, MissingInputError
from embedcache.fsio import sha256_file
from embedcache.verify import verify

pytest_plugins = ["check_fixtures"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_cache_is_sound_and_not_written_to(sound_caches: dict[str, Path], kind: str) -> None:
    cache = sound_caches[kind]
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    done = verify(cache)
    assert done.findings == ()
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert done.bytes == sum((cache / name).stat().st_size for name in own_files(cache))


@pytest.mark.parametrize("kind", KINDS)
def test_any_deleted_file_is_named(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    for name in own_files(cache):
        # That a teacher had a second name, or a file a seal, no other file tells; nor what a shard held.
        if "/names/" in name or name.endswith("seal.json") or "/shards/" in name:
            continue
        data = (cache / name).read_bytes()
        (cache / name).unlink()
        assert any(one.path == name or Path(name).stem in one.what for one in verify(cache).findings), name
        (cache / name).write_bytes(data)


def test_derived_unknown_and_unfinished_files_are_not_damage(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    for path in (cache / "derived").rglob("*"):
        if path.is_file():
            path.write_bytes(b"anything")
    assert verify(cache).findings == ()
    (cache / "README\n\x1b[2J").write_text("hello")
    (only(cache, "teachers/*/shards") / ".tmp-1234-x.arrow").write_bytes(b"x")
    (cache / "corpora" / "corpus" / "copy.arrow.part").write_bytes(b"x")
    found = verify(cache).findings
    assert [(one.kind, one.is_damage) for one in found] == [("unknown file", False)] * 2
    assert all(one.path.isprintable() for one in found)


def test_links_and_pipes_are_damage_and_not_followed(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    (tmp_path / "outside").mkdir()
    (cache / "corpora" / "linked").symlink_to(tmp_path / "outside")
    (cache / "derived" / "linked").symlink_to("/etc/passwd")
    os.mkfifo(cache / "pipe")
    assert [one.path for one in verify(cache).damage] == ["corpora/linked", "derived/linked", "pipe"]


def test_a_text_that_is_not_its_keys_is_found(fresh: MakeCopy) -> None:
    """Digests are all right: the writer lied."""
    cache = fresh("arrow")
    folder = cache / "corpora" / "corpus"
    (part,) = read_info(folder).parts
    data = (folder / part.file_name).read_bytes()
    (folder / "new").write_bytes(data.replace(TEXTS[5].encode(), TEXTS[5].upper().encode()))
    name = sha256_file(folder / "new")
    (folder / "new").rename(folder / f"{name}.arrow")
    (folder / part.file_name).unlink()
    reseal(folder / "corpus.json", lambda value: value["parts"][0].update(sha256=name))
    (one,) = verify(cache).damage
    assert one.path == f"corpora/corpus/{name}.arrow"
    assert "row 5" in one.what


def test_views_are_compared_with_recipe_and_corpus(fresh: MakeCopy) -> None:
    cache = fresh("views")
    views = cache / "corpora" / "corpus" / "views"
    reseal(views / "crop" / "recipe.json", lambda value: value.update(digest="0" * 64))
    reseal(views / "delete-words-0.3" / "recipe.json", lambda value: value.update(of="0" * 64))
    (views / "delete-one-word" / "recipe.json").unlink()
    done = verify(cache)
    assert [one.path for one in done.damage] == ["corpora/corpus/views/crop/corpus.json"]
    others = {Path(one.path).parent.name for one in done.findings if not one.is_damage}
    assert others == {"delete-one-word", "delete-words-0.3"}


def test_texts_without_a_vector_are_a_note(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    only(cache, "teachers/*/shards/*.arrow").unlink()
    (found,) = verify(cache).findings
    assert not found.is_damage
    assert f"{SHARD_ROWS} of {len(TEXTS)} texts" in found.what


def test_shards_of_an_unsealed_lmdb_file_are_checked(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    only(cache, "teachers/*/vectors.seal.json").unlink()
    assert verify(cache).findings == ()
    store = only(cache, "teachers/*/vectors.mdb")
    flip(store, store.read_bytes().index(b"ARROW1", 8192) + 3000)
    assert verify(cache).damage


def test_a_folder_without_a_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        verify(tmp_path / "missing")
    with pytest.raises(CacheFormatError):
        verify(tmp_path)
    (tmp_path / "embedcache-remote.json").write_text("{}")
    with pytest.raises(CacheFormatError, match="remote"):
        verify(tmp_path)


def test_the_command_reports_damage(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    assert run("verify", "--cache", cache)[0] == 0
    shard = only(cache, "teachers/*/shards/*.arrow")
    flip(shard, 1000)
    code, shown = run("verify", "--cache", cache)
    assert code == 1
    assert shard.name[:12] in shown
    assert "embedcache repair" in shown
    code, shown = run("verify", "--cache", cache, "--json")
    assert code == 1
    assert [one["path"] for one in json.loads(shown)["findings"]] == [shard.relative_to(cache).as_posix()]
