"""Verify: files that are whole, each for itself, but do not belong together or say what is not so."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from check_helpers import TEACHER, TEXTS, MakeCopy
from damage import flip_middle
from flat_build import build

from embedcache.cache import Cache
from embedcache.check import Finding, Kind, verify
from embedcache.corpus.corpus import CorpusInfo, read_info
from embedcache.corpus.part import Part, key_column
from embedcache.fsio import write_json, write_sealed_json
from embedcache.housekeeping.gc import collect_garbage
from embedcache.keys import key_array
from embedcache.testing import FakeEncoder, fake_teacher, sentences

pytest_plugins = ["check_fixtures"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "more.txt"
    path.write_text("\n".join(sentences(50, seed=9)))
    return path


def the_damage(cache: Path) -> Finding:
    (one,) = verify(cache).damage
    return one


def folder_of(cache: Path) -> Path:
    return cache / "teachers" / TEACHER.contract.id


def test_a_shard_of_another_teacher(fresh: MakeCopy, source: Path, tmp_path: Path) -> None:
    other = fake_teacher(16, name="other", seed=1)
    build(source, teacher=other, encoder=FakeEncoder(other), cache=tmp_path / "there")
    (stranger,) = (tmp_path / "there" / "teachers").glob("*/shards/*")
    for kind in ("arrow", "pq"):
        cache = fresh(kind)
        shutil.copy(stranger, folder_of(cache) / "shards")
        found = the_damage(cache)
        assert found.kind == Kind.SHARD.value
        assert other.contract.id[:12] in found.found


def test_a_codebook_that_no_shard_needs_is_no_damage(fresh: MakeCopy) -> None:
    (book,) = (folder_of(fresh("pq")) / "codebooks").iterdir()
    cache = fresh("arrow")
    shutil.copytree(book.parent, folder_of(cache) / "codebooks")
    (note,) = verify(cache).findings
    assert not note.is_damage
    assert note.path.endswith(f"codebooks/{book.name}")


def test_vectors_in_two_kinds_of_store(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    other = folder_of(fresh("lmdb"))
    for name in ("vectors.mdb", "vectors.seal.json"):
        shutil.copy(other / name, folder_of(cache))
    found = the_damage(cache)
    assert found.kind == Kind.STORE.value
    assert "copy" in found.way_out


def test_two_teachers_of_one_name(fresh: MakeCopy, source: Path, tmp_path: Path) -> None:
    cache = fresh("arrow")
    other = fake_teacher(16, seed=1)
    build(source, teacher=other, encoder=FakeEncoder(other), cache=tmp_path / "there", name="more")
    shutil.copytree(tmp_path / "there" / "teachers", cache / "teachers", dirs_exist_ok=True)
    done = verify(cache)
    assert done.damage == []
    twins = [one for one in done.notes if one.kind == Kind.NAME.value]
    assert {one.path for one in twins} == {
        f"teachers/{teacher.contract.id}/names/fake.json" for teacher in (TEACHER, other)
    }
    assert all("choose by contract id" in one.way_out for one in twins)


def test_a_teacher_without_a_name_is_damaged(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shutil.rmtree(folder_of(cache) / "names")
    found = the_damage(cache)
    assert found.path == f"teachers/{TEACHER.contract.id}/names"
    assert "no name" in found.found
    assert "embedcache repair" in found.way_out
    assert "--teacher-model" in found.way_out


def test_a_teacher_whose_shards_are_all_gone_is_damaged(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shards = sorted((folder_of(cache) / "shards").iterdir())
    for shard in shards:
        shard.unlink()
    done = verify(cache)
    assert [one.path for one in done.damage] == [shard.relative_to(cache).as_posix() for shard in shards]
    assert all("embedcache repair" in one.way_out for one in done.damage)
    assert done.notes == []
    assert done.vectors == 0


def test_what_gc_deletes_is_not_missed(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    build(_texts(tmp_path / "rest"), teacher=TEACHER, encoder=FakeEncoder(TEACHER), cache=cache)
    Cache(cache).lookup(TEXTS[:1], "fake")
    shutil.rmtree(cache / "corpora" / "rest")
    freed = collect_garbage(Cache(cache), hours=0, unused_vectors=True)
    assert any("/shards/" in one.path for one in freed)
    # The same texts come back, without vectors.
    build(_texts(tmp_path / "again"), teacher=TEACHER, encoder=FakeEncoder(TEACHER), cache=tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "corpora", cache / "corpora", dirs_exist_ok=True)
    assert verify(cache).damage == []


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_teacher_without_vectors_is_noted_where_nothing_tells_of_any(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    for pattern in ("shards/*", "vectors.*"):
        for path in folder_of(cache).glob(pattern):
            path.unlink()
    shutil.rmtree(cache / "derived")
    (note,) = verify(cache).findings
    assert not note.is_damage
    assert "teacher fake or other-name has no vectors at all" in note.found


def _texts(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "rest.txt"
    path.write_text("\n".join(sentences(50, seed=77)))
    return path


def test_an_lmdb_file_gone_with_its_seal_is_damage(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    for path in folder_of(cache).glob("vectors.*"):
        path.unlink()
    found = the_damage(cache)
    assert found.path.endswith("vectors.mdb")
    assert "embedcache build" in found.way_out


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_texts_whose_vectors_lie_in_damaged_files_are_for_repair(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    path = min(folder_of(cache).glob("shards/*" if kind == "arrow" else "vectors.mdb"))
    flip_middle(path)
    (note,) = verify(cache).notes
    assert "have no vector of teacher" in note.found
    assert "embedcache repair" in note.way_out


def test_a_corpus_no_teacher_has_seen(fresh: MakeCopy, source: Path, tmp_path: Path) -> None:
    cache = fresh("lmdb")
    other = fake_teacher(16, name="other", seed=1)
    build(source, teacher=other, encoder=FakeEncoder(other), cache=tmp_path / "there", name="more")
    shutil.copytree(tmp_path / "there" / "corpora", cache / "corpora", dirs_exist_ok=True)
    (note,) = verify(cache).findings
    assert note.path == "corpora/more"
    assert note.found.startswith("50 of its 50 texts have no vector of teacher fake")


def test_parts_that_no_description_names(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    (part,) = (cache / "corpora" / "corpus").glob("*.arrow")
    extra = b"a part of a corpus that was replaced"
    part.with_name(f"{hashlib.sha256(extra).hexdigest()}.arrow").write_bytes(extra)
    (note,) = verify(cache).findings
    assert "does not name it" in note.found
    unfinished = cache / "corpora" / "unfinished"
    unfinished.mkdir()
    shutil.copy(part, unfinished)
    notes = verify(cache).findings
    assert [one.is_damage for one in notes] == [False, False]
    assert "corpora/unfinished/corpus.json" in {one.path for one in notes}


def rewrite_part(cache: Path, **columns: pa.Array) -> None:
    """Put other columns into the only part of a corpus, and seal everything as if it had been built so."""
    folder = cache / "corpora" / "corpus"
    info = read_info(folder)
    (part,) = info.parts
    with pa.memory_map(str(folder / part.file_name), "r") as file:
        batch = pa.ipc.open_file(file).get_batch(0)
        for name, column in columns.items():
            batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    fresh = Part(hashlib.sha256(data).hexdigest(), part.rows)
    (folder / part.file_name).unlink()
    (folder / fresh.file_name).write_bytes(data)
    write_sealed_json(
        folder / "corpus.json", CorpusInfo(info.name, (fresh,), info.columns, info.skipped).to_json()
    )


def test_keys_that_are_not_those_of_the_texts(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    rewrite_part(cache, key=key_column(key_array([*TEXTS[:9], "another", *TEXTS[10:]])))
    found = the_damage(cache)
    assert found.kind == Kind.PART.value
    assert "1 of its keys are not those of their texts (first: row 9)" in found.found


def test_rows_that_are_not_numbered_in_order(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    rewrite_part(cache, row=pa.array(np.arange(len(TEXTS))[::-1].copy()))
    assert "not numbered from 0" in the_damage(cache).found


def test_labels_that_are_not_those_of_the_description(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    rewrite_part(cache, label=pa.array(["7"] * len(TEXTS), pa.large_string()))
    found = the_damage(cache)
    assert found.kind == Kind.CORPUS.value
    assert "digests of its columns" in found.found


def test_a_contract_in_the_wrong_folder(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    write_json(folder_of(cache) / "contract.json", fake_teacher(16, seed=1).contract.to_json())
    found = the_damage(cache)
    assert found.kind == Kind.CONTRACT.value
    assert "does not match its folder" in found.found
