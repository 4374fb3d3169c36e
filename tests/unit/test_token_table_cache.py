"""Token embeddings in a cache: every command knows the file, and nothing is encoded for it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from check_helpers import content_of, copy_of, flip, run
from hostile_helpers import EVERYTHING, judge, one, received

from embedcache import build
from embedcache.cache import Cache
from embedcache.check import Computing, repair, verify
from embedcache.check.findings import UPGRADE
from embedcache.check.repair.mending import IDENTICAL, MOVED, NOT_REPAIRED, RIGHT, TO_ENCODE
from embedcache.convert import convert
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, TeacherError
from embedcache.housekeeping import collect_garbage, compact, remove_teacher
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences, tiny_encoder
from embedcache.token_table import TABLE_FILE, TokenTable, table_path

TEXTS = sentences(40, seed=2)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, loaded_teacher: Teacher) -> Path:
    """A sound cache with token embeddings; not to be changed."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "words.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    built_into(folder / "cache", folder / "words.txt", loaded_teacher, token_embeddings=True)
    return folder / "cache"


@pytest.fixture
def cache(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return copy_of(built, tmp_path / "cache")


def built_into(folder: Path, source: Path, teacher: Teacher, *, token_embeddings: bool) -> Cache:
    encoder = Encoder(teacher, compute_dtype="float32", threads=1)
    return build(
        source,
        teacher=teacher,
        encoder=encoder,
        cache=folder,
        shard_rows=16,
        token_embeddings=token_embeddings,
    )


def table_of(cache: Path) -> Path:
    return one(cache, f"teachers/*/{TABLE_FILE}")


# Building


def test_a_build_stores_them_once(built: Path, tmp_path: Path, loaded_teacher: Teacher) -> None:
    source = built.with_name("words.txt")
    cache = built_into(tmp_path / "c", source, loaded_teacher, token_embeddings=True)
    file = table_path(cache.folder, loaded_teacher.contract)
    assert cache.last_build is not None
    kept = cache.last_build.token_embeddings
    assert kept is not None
    embedding = loaded_teacher.model[0].model.get_input_embeddings()
    assert (kept.tokens, kept.width) == (embedding.num_embeddings, embedding.embedding_dim)
    assert (kept.bytes, kept.outcome) == (file.stat().st_size, "stored now")
    assert file.read_bytes() == table_of(built).read_bytes()
    before = file.stat()
    again = built_into(tmp_path / "c", source, loaded_teacher, token_embeddings=True).last_build
    assert again is not None
    assert again.token_embeddings is not None
    assert (again.encoded, again.token_embeddings.outcome) == (0, "there already")
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    table = cache.token_table(cache.teacher())
    np.testing.assert_array_equal(table.word, embedding.weight.numpy())


def test_they_are_added_later_and_nothing_is_encoded_again(
    built: Path, tmp_path: Path, loaded_teacher: Teacher
) -> None:
    source = built.with_name("words.txt")
    cache = built_into(tmp_path / "c", source, loaded_teacher, token_embeddings=False)
    assert cache.last_build is not None
    assert cache.last_build.token_embeddings is None
    with pytest.raises(InputError) as caught:
        cache.token_table(cache.teacher())
    source_of = cache.model_source(cache.teacher())
    assert source_of != "tiny"
    command = (
        f"embedcache build CORPUS --teacher {source_of} --teacher-name tiny --cache {cache.folder} "
        "--token-embeddings"
    )
    assert "no token embeddings of 'tiny' in" in str(caught.value)
    assert command in str(caught.value)
    before = content_of(cache.folder)
    later = built_into(tmp_path / "c", source, loaded_teacher, token_embeddings=True).last_build
    assert later is not None
    assert (later.encoded, later.bytes_written) == (0, 0)
    after = content_of(cache.folder)
    assert {name for name in after if name not in before} == {
        f"teachers/{later.contract_id}/{TABLE_FILE}",
    }
    assert after == content_of(built)


def test_a_teacher_without_any_is_refused_before_anything_is_written(built: Path, tmp_path: Path) -> None:
    teacher = fake_teacher(8)
    with pytest.raises(TeacherError, match="fake has no table of token embeddings"):
        build(
            built.with_name("words.txt"),
            teacher=teacher,
            encoder=FakeEncoder(teacher),  # type: ignore[arg-type]  # a fake one does as well
            cache=tmp_path / "c",
            token_embeddings=True,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_build_does_not_count_on_damaged_ones(cache: Path, loaded_teacher: Teacher, built: Path) -> None:
    flip(table_of(cache), 900, 1)
    with pytest.raises(CorruptCacheError, match="'embedcache repair' makes it anew"):
        built_into(cache, built.with_name("words.txt"), loaded_teacher, token_embeddings=True)
    # Who does not ask for them does not need them.
    done = built_into(cache, built.with_name("words.txt"), loaded_teacher, token_embeddings=False).last_build
    assert done is not None
    assert done.encoded == 0


def test_the_command_line_says_what_became_of_them(built: Path, tmp_path: Path, tiny_teacher: Path) -> None:
    words = ["build", built.with_name("words.txt"), "--teacher", tiny_teacher, "--cache", tmp_path / "c"]
    words += ["--device", "cpu", "--compute-dtype", "float32", "--threads", 1]
    code, shown = run(*words, "--token-embeddings")
    assert code == 0, shown
    with_them = TokenTable.read(table_of(built), one(built, "teachers/*").name)
    shape = "{} x {}".format(*with_them.word.shape)
    assert f"{shape}, {table_of(built).stat().st_size / 1000:.1f} kB (stored now)" in shown
    assert "(there already)" in run(*words, "--token-embeddings")[1]
    assert "token embeddings" not in run(*words)[1]
    found = json.loads(run(*words, "--token-embeddings", "--json")[1].partition("{")[2].join(["{", ""]))
    assert found["token_embeddings"]["outcome"] == "there already"


# Looking


def test_ls_and_info_show_them(cache: Path) -> None:
    size = table_of(cache).stat().st_size
    (listed,) = json.loads(run("ls", "--cache", cache, "--json")[1])["teachers"]
    assert listed["token_embeddings"] == size
    assert f"{size / 1000:.1f} kB" in run("ls", "--cache", cache)[1]
    told = json.loads(run("info", "tiny", "--cache", cache, "--json")[1])["teacher"]["token_embeddings"]
    table = Cache(cache).token_table(Cache(cache).teacher())
    rows, width = table.word.shape
    assert told == {"tokens": rows, "width": width, "norm": True, "bytes": size}
    # Damage to them does not hide the teacher.
    damaged(table_of(cache), "header")
    told = json.loads(run("info", "tiny", "--cache", cache, "--json")[1])["teacher"]
    assert "header" in told["token_embeddings"]["damage"]
    assert told["vectors"] == len(TEXTS)
    table_of(cache).unlink()
    (listed,) = json.loads(run("ls", "--cache", cache, "--json")[1])["teachers"]
    assert listed["token_embeddings"] is None
    assert "token_embeddings" in run("info", "tiny", "--cache", cache)[1]


# Verifying and repairing


def test_a_sound_cache_is_sound_and_strange_files_stay_strange(cache: Path) -> None:
    found = verify(cache)
    assert found.findings == ()
    assert found.bytes >= table_of(cache).stat().st_size
    strange = [table_of(cache).with_name(name) for name in ("token_embeddings.bin", "tokens.safetensors")]
    strange.append(cache / TABLE_FILE)
    for path in strange:
        path.write_bytes(b"strange")
    found = verify(cache)
    assert found.damage == []
    assert sorted(note.path for note in found.notes) == sorted(
        path.relative_to(cache).as_posix() for path in strange
    )
    assert {note.kind for note in found.notes} == {"foreign file"}
    done = repair(cache, quarantine=True)
    assert {mend.outcome for mend in done.mends} == {MOVED}
    assert table_of(cache).exists()


def damaged(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "cut":
        os.truncate(path, size // 2)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "tensor":
        flip(path, size // 2, 8)
    elif how == "seal":
        flip(path, path.read_bytes().index(b'"sha256"') + 12, 1)
    else:
        path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    ("how", "outcome"),
    [("cut", IDENTICAL), ("tensor", IDENTICAL), ("empty", RIGHT), ("seal", RIGHT), ("header", RIGHT)],
)
def test_damage_is_named_and_mended(
    cache: Path, built: Path, loaded_teacher: Teacher, how: str, outcome: str
) -> None:
    damaged(table_of(cache), how)
    (finding,) = verify(cache).findings
    assert finding.is_damage
    assert (finding.path, finding.kind) == (
        table_of(cache).relative_to(cache).as_posix(),
        "token embeddings",
    )
    assert "is damaged (" in finding.found
    assert finding.way_out == "'embedcache repair' brings it back"
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    before = table_of(cache).read_bytes()
    (mend,) = repair(cache, encoder=encoder, dry_run=True).mends
    assert (mend.outcome, mend.rows) == (TO_ENCODE, 0)
    assert table_of(cache).read_bytes() == before
    done = repair(cache, encoder=encoder)
    (mend,) = done.mends
    assert (mend.outcome, done.rows_encoded) == (outcome, 0)
    assert content_of(cache) == content_of(built)
    assert verify(cache).findings == ()


def test_without_the_model_it_stays_and_says_what_to_do(
    cache: Path, built: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    damaged(table_of(cache), "cut")
    before = table_of(cache).read_bytes()
    other = tiny_encoder(tmp_path / "other", seed=1)
    (mend,) = repair(cache, computing=Computing(teacher_model=other, device="cpu")).mends
    assert mend.outcome == NOT_REPAIRED
    assert "--teacher-model" in mend.detail
    assert "or delete it: 'embedcache build' with --token-embeddings adds it again" in mend.detail
    assert table_of(cache).read_bytes() == before
    (mend,) = repair(cache, computing=Computing(teacher_model=tiny_teacher, device="cpu")).mends
    assert mend.outcome == IDENTICAL
    assert content_of(cache) == content_of(built)


def test_those_of_another_teacher_are_damage(cache: Path) -> None:
    table = Cache(cache).token_table(Cache(cache).teacher())
    table.write(table_of(cache), fake_teacher(8).contract)
    (finding,) = verify(cache).damage
    assert "another teacher" in finding.found
    assert "repair" not in finding.found


def test_those_of_a_newer_version_are_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Cache(cache)
    table = opened.token_table(opened.teacher())
    with monkeypatch.context() as newer:
        newer.setattr("embedcache.token_layout._WITHOUT_PROJECTION", 3)
        table.write(table_of(cache), opened.teacher().contract)
    (finding,) = verify(cache).damage
    assert finding.way_out == UPGRADE
    before = content_of(cache)
    assert [mend.outcome for mend in repair(cache).mends] == [NOT_REPAIRED]
    assert content_of(cache) == before
    with pytest.raises(CacheFormatError, match="upgrade embedcache"):
        opened.token_table(opened.teacher())


# Housekeeping and converting


def test_they_go_with_their_teacher_and_not_before(cache: Path) -> None:
    opened = Cache(cache)
    file, size = table_of(cache), table_of(cache).stat().st_size
    assert collect_garbage(opened, hours=-1, unused_vectors=True, dry_run=True) == []
    (merged,) = compact(opened)
    assert merged.shards_after < merged.shards_before
    assert file.exists()
    assert verify(cache).findings == ()
    shards = sum(path.stat().st_size for path in file.parent.glob("shards/*"))
    assert remove_teacher(opened, "tiny") > size + shards
    assert list((cache / "teachers").iterdir()) == []


def test_of_a_teacher_without_name_and_vectors_they_are_garbage(cache: Path) -> None:
    folder = table_of(cache).parent
    for part in ("shards", "names"):
        shutil.rmtree(folder / part)
    (found,) = [one for one in collect_garbage(Cache(cache), hours=-1) if one.path == str(folder)]
    assert found.bytes > 0
    assert not folder.exists()


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_they_are_converted_along(cache: Path, tmp_path: Path, store: str) -> None:
    convert(Cache(cache), tmp_path / "new", store=store, codec="int8")
    assert table_of(tmp_path / "new").read_bytes() == table_of(cache).read_bytes()
    assert verify(tmp_path / "new").damage == []
    damaged(table_of(cache), "tensor")
    with pytest.raises(CorruptCacheError, match=TABLE_FILE):
        convert(Cache(cache), tmp_path / "other")


def test_without_them_nothing_is_converted(cache: Path, tmp_path: Path) -> None:
    table_of(cache).unlink()
    convert(Cache(cache), tmp_path / "new")
    assert list((tmp_path / "new").rglob("*.safetensors")) == []


# From a stranger


@pytest.mark.parametrize("how", ["cut", "empty", "tensor", "header", "sparse"])
def test_hostile_ones_harm_nobody(tmp_path: Path, how: str) -> None:
    cache = received(tmp_path)
    contract = Cache(cache).teacher("fake").contract
    path = table_path(cache, contract)
    TokenTable(np.ones((50, 8), np.float32), tuple(f"t{i}" for i in range(50))).write(path, contract)
    if how == "sparse":
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    else:
        damaged(path, how)
    judged = judge(cache, EVERYTHING - {"query"})
    assert judged.refused == {}
    (line,) = judged.damage
    assert TABLE_FILE in line
    judged.assert_unharmed()
