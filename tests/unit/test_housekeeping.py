"""Removing and collecting garbage lose nothing that anybody needs, wherever they are cut off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from flat_build import build
from kill_helpers import cut_off_at

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import InputError
from embedcache.housekeeping import collect_garbage, remove_corpus, remove_teacher
from embedcache.repair import repair
from embedcache.testing import FakeEncoder, example_batch, example_contract, fake_teacher, sentences
from embedcache.verify import verify

CONTRACT = example_contract()
OTHER = example_contract(pooling="cls")
TEXTS = sentences(100)


def add_corpus(cache: Cache, name: str, texts: list[str], *, replace: bool = False) -> None:
    store_corpus(cache.corpora_folder, name, [RowBatch(texts, None, None)], ReadReport(), replace=replace)


def filled(folder: Path, rows_a_shard: int = 7, codec: str = "float16", kind: str = "arrow") -> Cache:
    cache = Cache.create(folder)
    add_corpus(cache, "words", TEXTS)
    cache.register_teacher("tiny", CONTRACT, {"spec": "tiny"})
    store = cache.store(CONTRACT, codec, kind)
    for start in range(0, len(TEXTS), rows_a_shard):
        store.put(example_batch(TEXTS[start : start + rows_a_shard], seed=start))
    store.finish()
    return cache


def age(folder: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def test_a_removed_corpus_is_gone_and_its_vectors_are_not(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    add_corpus(cache, "more", ["x"])
    size = sum(path.stat().st_size for path in (tmp_path / "corpora" / "words").iterdir())
    assert remove_corpus(cache, "words") == size
    assert cache.corpus_names() == ["more"]
    assert not (tmp_path / "corpora" / "words").exists()
    assert cache.lookup(TEXTS).shape == (100, 8)
    with pytest.raises(InputError, match=r"no corpus 'words' .* it holds more"):
        remove_corpus(cache, "words")


def test_a_damaged_corpus_can_be_removed(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (tmp_path / "corpora" / "words" / "corpus.json").write_text("{")
    remove_corpus(cache, "words")
    assert cache.corpora() == []


def test_a_teacher_goes_with_its_last_name(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.register_teacher("alias", CONTRACT, {"spec": "tiny"})
    cache.register_teacher("other", OTHER, {"spec": "other"})
    assert remove_teacher(cache, "alias") == 0
    assert cache.lookup(TEXTS, "tiny").shape == (100, 8)
    assert remove_teacher(cache, "tiny") > 0
    assert [teacher.name for teacher in cache.teachers()] == ["other"]
    assert not cache.teacher_folder(CONTRACT).exists()
    assert not (tmp_path / "derived" / "index" / CONTRACT.id).exists()
    with pytest.raises(InputError, match="no teacher 'tiny'"):
        remove_teacher(cache, "tiny")


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize("what", ["corpus", "teacher"])
def test_a_removal_cut_off_anywhere_leaves_no_half_and_gc_finishes_it(
    tmp_path: Path, what: str, stop: int
) -> None:
    cache = filled(tmp_path)
    with cut_off_at(stop):
        remove_corpus(cache, "words") if what == "corpus" else remove_teacher(cache, "tiny")
    names = cache.corpus_names() if what == "corpus" else [teacher.name for teacher in cache.teachers()]
    if names:
        assert stop == 1
        assert cache.corpus().texts() == TEXTS
        assert len(cache.lookup(TEXTS)) == 100
        return
    collect_garbage(cache, hours=0, unused_vectors=True)
    folder = tmp_path / ("corpora" if what == "corpus" else "teachers")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("folder", ["incoming", "remotes"])
def test_what_a_pull_leaves_is_not_verified_and_goes_as_a_whole_once_all_of_it_is_old(
    tmp_path: Path, folder: str
) -> None:
    cache = filled(tmp_path)
    place = cache.derived_folder / folder
    for name in ("old", "some/young"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"anything")
    assert not verify(tmp_path).findings
    age(tmp_path, 25)
    os.utime(place / "some" / "young")
    assert collect_garbage(cache) == []
    age(tmp_path, 25)
    (found,) = collect_garbage(cache)
    assert (found.path, found.bytes) == (str(place), 16)
    assert not place.exists()


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_what_was_collected_on_purpose_is_not_missed_afterwards(tmp_path: Path, kind: str) -> None:
    cache = filled(tmp_path, kind=kind)
    cache.lookup(TEXTS[:3])
    add_corpus(cache, "words", TEXTS[:30], replace=True)
    age(tmp_path, 100)
    assert len(collect_garbage(cache, hours=0, unused_vectors=True)) >= 9
    assert verify(tmp_path).damage == []
    assert repair(tmp_path).fixes == ()
    np.testing.assert_array_equal(
        Cache(tmp_path).lookup(TEXTS[:30]), filled(tmp_path / "x").lookup(TEXTS[:30])
    )


def test_a_healthy_cache_has_no_garbage(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    age(tmp_path, 100)
    assert collect_garbage(cache, hours=0) == []
    assert collect_garbage(cache, hours=0, unused_vectors=True) == []


def test_garbage_is_found_deleted_and_only_when_it_is_old(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    part = next((tmp_path / "corpora" / "words").glob("*.arrow"))
    leftovers = [
        tmp_path / "corpora" / "words" / ("0" * 64 + ".arrow"),
        tmp_path / "corpora" / "words" / ".tmp-1-corpus.json",
        tmp_path / "corpora" / "never" / part.name,
        tmp_path / "teachers" / OTHER.id / "shards" / ".tmp-2-x.arrow",
        tmp_path / "teachers" / CONTRACT.id / "codebooks" / ("1" * 64 + ".npy"),
        tmp_path / "derived" / "index" / OTHER.id / "x.mdb",
        tmp_path / "derived" / "models" / f"{OTHER.id}.json",
        tmp_path / "derived" / "sources" / "gone.json",
        tmp_path / "derived" / "tokens" / ".tmp-3" / "ids.bin",
    ]
    kept = {path for path in tmp_path.rglob("*") if path.is_file()}
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left over")
    assert collect_garbage(cache, hours=1) == []
    age(tmp_path, 2)
    seen = collect_garbage(cache, hours=1, dry_run=True)
    assert all(path.exists() for path in leftovers)
    assert collect_garbage(cache, hours=1) == seen
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert sum(one.bytes for one in seen) == len(leftovers) * len(b"left over")
    assert collect_garbage(cache, hours=0) == []
    assert len(cache.lookup(TEXTS)) == 100


def test_vectors_of_a_teacher_that_lost_its_name_go_only_when_asked(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (cache.teacher_folder(CONTRACT) / "names" / "tiny.json").unlink()
    age(tmp_path, 50)
    assert collect_garbage(cache, dry_run=True) != []
    collect_garbage(cache)
    cache.register_teacher("tiny", CONTRACT, {"spec": "tiny"})
    assert len(cache.lookup(TEXTS)) == 100
    (cache.teacher_folder(CONTRACT) / "names" / "tiny.json").unlink()
    collect_garbage(cache, hours=0, unused_vectors=True)
    assert not cache.teacher_folder(CONTRACT).exists()


def test_what_repair_moved_aside_goes_only_when_asked(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    aside = tmp_path / "derived" / "quarantine" / "corpora" / "notes.txt"
    aside.parent.mkdir(parents=True)
    aside.write_bytes(b"12345")
    age(tmp_path, 50)
    assert collect_garbage(cache) == []
    (found,) = collect_garbage(cache, quarantine=True)
    assert (found.reason, found.bytes) == ("moved aside by repair", 5)
    assert not (tmp_path / "derived" / "quarantine").exists()


def test_token_arrays_go_with_their_corpus(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    digest = cache.corpus("words").info.digest
    for name, value in (("mine", {"corpus": digest}), ("gone", {"corpus": "0" * 64}), ("older", {})):
        fsio.write_sealed_json(tmp_path / "derived" / "tokens" / name / "tokens.json", value)
    age(tmp_path, 50)
    found = collect_garbage(cache)
    assert [Path(one.path).name for one in found] == ["gone", "older"]
    assert [path.name for path in (tmp_path / "derived" / "tokens").iterdir()] == ["mine"]


def test_a_text_in_two_shards_keeps_both(tmp_path: Path) -> None:
    cache = filled(tmp_path, rows_a_shard=100)
    for seed in range(4):
        cache.store(CONTRACT).put(example_batch([TEXTS[0]], seed=seed + 50))
    assert collect_garbage(cache, hours=0, unused_vectors=True) == []
    assert len(cache.store(CONTRACT).shards) == 5


def test_parts_of_a_replaced_corpus_are_garbage_only_while_unnamed(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    old = {path.name for path in (tmp_path / "corpora" / "words").glob("*.arrow")}
    kept = {path: path.read_bytes() for path in (tmp_path / "corpora" / "words").glob("*.arrow")}
    add_corpus(cache, "words", TEXTS[:50], replace=True)
    for path, data in kept.items():
        path.write_bytes(data)
    age(tmp_path, 50)
    assert {Path(one.path).name for one in collect_garbage(cache)} == old
    assert len(cache.corpus("words").texts()) == 50


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_vectors_of_no_corpus_go_only_when_asked(tmp_path: Path, kind: str) -> None:
    cache = filled(tmp_path, rows_a_shard=10, kind=kind)
    add_corpus(cache, "words", TEXTS[:15], replace=True)
    age(tmp_path, 50)
    assert collect_garbage(cache) == []
    assert len(cache.store(CONTRACT)) == 100
    assert len(collect_garbage(cache, unused_vectors=True, dry_run=True)) == 8
    assert len(cache.store(CONTRACT)) == 100
    assert len(collect_garbage(cache, unused_vectors=True)) == 8
    # The shard that holds one text of the corpus stays whole.
    assert len(cache.store(CONTRACT)) == 20


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_vectors_whose_corpus_may_be_still_to_come_are_left_alone(tmp_path: Path, kind: str) -> None:
    cache = filled(tmp_path, rows_a_shard=10, kind=kind)
    remove_corpus(cache, "words")
    assert collect_garbage(cache, hours=1, unused_vectors=True) == []
    assert len(cache.store(CONTRACT)) == 100
    age(tmp_path, 2)
    assert len(collect_garbage(cache, hours=1, unused_vectors=True)) == 10
    assert len(cache.store(CONTRACT)) == 0


def build_words(folder: Path, texts: list[str], name: str = "words", kind: str = "arrow") -> Cache:
    """Build a corpus of ``texts`` with a fake teacher, ten rows a shard."""
    source = folder.with_name(f"{name}.txt")
    source.write_text("".join(f"{text}\n" for text in texts))
    teacher = fake_teacher(8, name="fake")
    return build(
        source, teacher=teacher, encoder=FakeEncoder(teacher), cache=folder, shard_rows=10, store=kind
    )


def at_step(
    monkeypatch: pytest.MonkeyPatch, reached: Callable[[str, Path], bool], then: Callable[[], object]
) -> list[Path]:
    """Do ``then`` at the first write step that is ``reached``; return a list that then holds its file."""
    seen: list[Path] = []

    def hook(step: str, path: Path) -> None:
        if not seen and reached(step, path):
            seen.append(path)
            then()

    monkeypatch.setattr(fsio, "on_write_step", hook)
    return seen


def assert_all_there(folder: Path, texts: list[str]) -> None:
    expected = FakeEncoder(fake_teacher(8, name="fake")).encode(texts).vectors
    np.testing.assert_allclose(Cache(folder).lookup(texts, "fake"), expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
@pytest.mark.parametrize("forgotten", ["corpus", "name"])
def test_a_build_that_ends_while_vectors_are_collected_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, forgotten: str
) -> None:
    folder = tmp_path / "cache"
    cache = build_words(folder, TEXTS, kind=kind)
    contract = cache.teacher().contract
    if forgotten == "corpus":
        remove_corpus(cache, "words")
        path = folder / "teachers" / contract.id / ("shards" if kind == "arrow" else "vectors.mdb")
        first = "remove" if kind == "arrow" else "lmdb-committed"
        seen = at_step(
            monkeypatch,
            lambda step, at: step == first and at.is_relative_to(path),
            lambda: build_words(folder, TEXTS, kind=kind),
        )
    else:
        (folder / "teachers" / contract.id / "names" / "fake.json").unlink()
        (folder / ".tmp-0").write_text("deleted before the teacher")
        seen = at_step(
            monkeypatch,
            lambda step, at: step == "remove" and at == folder / ".tmp-0",
            lambda: build_words(folder, TEXTS, kind=kind),
        )
    age(folder, 1)
    collect_garbage(cache, hours=0.5, unused_vectors=True)
    assert seen
    assert_all_there(folder, TEXTS)
    monkeypatch.undo()
    assert build_words(folder, TEXTS, kind=kind).result.encoded == 0  # type: ignore[union-attr]
    assert not list(folder.glob("teachers/.tmp-*"))


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
@pytest.mark.parametrize("forgotten", ["corpus", "name"])
def test_a_build_does_not_count_on_vectors_that_are_collected_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, forgotten: str
) -> None:
    folder = tmp_path / "cache"
    cache = build_words(folder, TEXTS, kind=kind)
    contract = cache.teacher().contract
    remove_corpus(cache, "words")
    if forgotten == "name":
        (folder / "teachers" / contract.id / "names" / "fake.json").unlink()
    freed: list[object] = []

    def collect() -> None:
        # To open an LMDB file touches its lock.
        age(folder / "teachers", 1)
        freed.extend(collect_garbage(Cache(folder), hours=0.5, unused_vectors=True))

    # The build has opened its store by then, and has described no corpus yet.
    seen = at_step(monkeypatch, lambda step, at: step == "create" and at.name == "corpus.json", collect)
    again = build_words(folder, TEXTS, kind=kind)
    assert seen
    assert freed
    assert again.result is not None
    assert again.result.encoded == 100
    assert_all_there(folder, TEXTS)


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_what_a_build_has_just_written_is_never_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "cache"
    freed: list[object] = []
    committed: list[Path] = []

    def collect(step: str, path: Path) -> None:
        if (step, path.parent.name) == ("recorded", "shards") or step == "lmdb-committed":
            committed.append(path)
            # However young or old they are: that their corpus is described is enough.
            freed.extend(collect_garbage(Cache(folder), hours=0, unused_vectors=True))

    with monkeypatch.context() as patch:
        patch.setattr(fsio, "on_write_step", collect)
        build_words(folder, TEXTS, kind=kind)
    assert len(committed) >= 10
    assert freed == []
    assert_all_there(folder, TEXTS)


def test_the_commands(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    add_corpus(cache, "more", ["x"])
    runner = CliRunner()

    def run(*arguments: str, code: int = 0, answer: str | None = None) -> str:
        result = runner.invoke(cli, [*arguments, "--cache", str(tmp_path)], input=answer)
        assert result.exit_code == code, result.output
        return result.output

    aside = tmp_path / "derived" / "quarantine" / "x"
    aside.parent.mkdir(parents=True)
    aside.write_bytes(b"1")
    assert "0 found" in run("gc", "--older", "0")
    assert "1 found, 1 B freed" in run("gc", "--older", "0", "--quarantine")
    (tmp_path / ".tmp-left").write_bytes(b"12345")
    assert "0 found, 0 B freed; 1 more touched within 24 hours left alone, see --older" in run("gc")
    assert "1 found, 5 B would be freed" in run("gc", "--older", "0", "--dry-run")
    (left,) = json.loads(run("gc", "--older", "0", "--json"))
    assert left["reason"] == "left by a crash"
    assert not (tmp_path / ".tmp-left").exists()
    run("rm", "corpus", "more", answer="n\n", code=1)
    assert cache.corpus_names() == ["more", "words"]
    run("rm", "corpus", "more", answer="y\n")
    assert cache.corpus_names() == ["words"]
    assert "1 found" not in run("gc", "--older", "0", "--unused-vectors")
    run("rm", "corpus", "words", "--yes")
    assert "none of its texts is in a corpus" in run("gc", "--older", "0", "--unused-vectors")
    damaged = cache.teacher_folder(CONTRACT) / "shards" / f"{'0' * 64}.arrow"
    damaged.write_bytes(b"damaged" * 1000)
    assert "kB with its vectors) from" in run("rm", "teacher", "tiny", answer="n\n", code=1)
    assert [teacher.name for teacher in cache.teachers()] == ["tiny"]
    run("rm", "teacher", "tiny", "--yes")
    assert cache.teachers() == []
