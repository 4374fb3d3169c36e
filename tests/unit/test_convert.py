"""Converting: lossless between the stores, honest between the codecs, and never in the source's way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cache_with_views import NAMES, build_all, build_views
from click.testing import CliRunner
from kill_helpers import cut_off_at

import embedcache.convert as convert_module
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.cli.main import cli
from embedcache.convert import convert
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.testing import example_batch, example_contract, sentences

CONTRACT = example_contract(16)
TEXTS = sentences(700)


def filled(folder: Path, codec: str = "float16", kind: str = "arrow", rows: int = len(TEXTS)) -> Cache:
    cache = Cache.create(folder)
    store_corpus(cache.corpora_folder, "words", [RowBatch(TEXTS[:rows], None, None)], ReadReport())
    cache.register_teacher("tiny", CONTRACT, {"spec": "tiny"})
    store = cache.store(CONTRACT, codec, kind)
    for start in range(0, rows, 300):
        store.put(example_batch(TEXTS[start : min(start + 300, rows)], 16, seed=start))
    store.finish()
    return cache


def files(cache: Cache) -> dict[str, bytes]:
    return {
        str(path.relative_to(cache.folder)): path.read_bytes()
        for path in cache.folder.rglob("*")
        if path.is_file() and "derived" not in path.parts
    }


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_to_lmdb_and_back_gives_the_same_files(tmp_path: Path, codec: str) -> None:
    source = filled(tmp_path / "source", codec)
    convert(source, tmp_path / "lmdb", store="lmdb")
    middle = Cache(tmp_path / "lmdb")
    assert middle.store(CONTRACT).kind == "lmdb"
    assert not (middle.teacher_folder(CONTRACT) / "shards").exists()
    assert middle.lookup(TEXTS).tobytes() == source.lookup(TEXTS).tobytes()
    convert(middle, tmp_path / "back", store="arrow")
    assert files(Cache(tmp_path / "back")) == files(source)


def test_views_come_along_and_nothing_else_changes(tmp_path: Path) -> None:
    source = build_all(tmp_path / "source", tmp_path)
    convert(source, tmp_path / "lmdb", store="lmdb")
    assert Cache(tmp_path / "lmdb").corpus().view("crop").texts() == source.corpus().view("crop").texts()
    convert(Cache(tmp_path / "lmdb"), tmp_path / "back", store="arrow")
    assert files(Cache(tmp_path / "back")) == files(source)
    assert "corpora/pairs/views/mask-fill/recipe.json" in files(source)
    # Again it has nothing to do.
    convert(source, tmp_path / "back")
    assert files(Cache(tmp_path / "back")) == files(source)


def test_a_view_of_other_rows_stays_behind(tmp_path: Path) -> None:
    source = build_all(tmp_path / "source", tmp_path)
    recipe = source.corpora_folder / "pairs" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    convert(source, tmp_path / "out")
    assert Cache(tmp_path / "out").corpus().view_names() == [name for name in NAMES if name != "crop"]


def test_another_view_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    source = build_all(tmp_path / "source", tmp_path)
    convert(source, tmp_path / "out")
    before = files(Cache(tmp_path / "out"))
    build_views(source.folder, tmp_path / "pairs.tsv", "crop=delete-words", replace_views=True)
    with pytest.raises(InputError, match="holds another view 'crop' of corpus 'pairs'"):
        convert(source, tmp_path / "out")
    assert files(Cache(tmp_path / "out")) == before


@pytest.mark.parametrize("stop", [5, 20, 25, 30, 35])
def test_a_conversion_cut_off_goes_on(tmp_path: Path, stop: int) -> None:
    source = build_all(tmp_path / "source", tmp_path)
    with cut_off_at(stop) as steps:
        convert(source, tmp_path / "out")
    assert len(steps) == stop
    assert verify(tmp_path / "out").damage == []
    convert(source, tmp_path / "out")
    assert files(Cache(tmp_path / "out")) == files(source)


def test_from_lmdb_and_back_keeps_every_shard(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", kind="lmdb")
    convert(source, tmp_path / "arrow", store="arrow")
    convert(Cache(tmp_path / "arrow"), tmp_path / "back", store="lmdb")
    back = Cache(tmp_path / "back").store(CONTRACT)
    assert back.kind == "lmdb"
    assert [shard.name for shard in back.shards] == [shard.name for shard in source.store(CONTRACT).shards]


@pytest.mark.parametrize(("codec", "least"), [("float16", 0.99999), ("int8", 0.999), ("pq", 0.5)])
def test_another_codec_says_what_it_lost(tmp_path: Path, codec: str, least: float) -> None:
    source = filled(tmp_path / "source", "float32")
    (done,) = convert(source, tmp_path / "out", codec=codec)
    converted = Cache(tmp_path / "out")
    assert converted.store(CONTRACT).codec_name == done.codec == codec
    before, after = source.lookup(TEXTS), converted.lookup(TEXTS)
    assert before.tobytes() != after.tobytes()
    cosines = (before * after).sum(axis=1) / np.linalg.norm(after, axis=1)
    assert least < done.worst_cosine < 1
    assert done.worst_cosine == pytest.approx(float(cosines.min()), abs=1e-5)
    assert done.bytes_after < done.bytes_before
    assert done.rows == len(TEXTS)
    old, new = source.store(CONTRACT).shards, converted.store(CONTRACT).shards
    assert {s.header.provenance["compute_dtype"] for s in new} == {
        s.header.provenance["compute_dtype"] for s in old
    }
    assert min(shard.header.error["worst_cosine"] for shard in new) == done.worst_cosine


def test_killed_and_repeated_it_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = filled(tmp_path / "source", "float32")
    convert(source, tmp_path / "whole", codec="int8")
    measure, calls = convert_module.measure, []

    def cut_off(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(convert_module, "measure", cut_off)
        with pytest.raises(KeyboardInterrupt):
            convert(source, tmp_path / "cut", codec="int8")
    assert files(Cache(tmp_path / "cut")) != files(Cache(tmp_path / "whole"))
    convert(source, tmp_path / "cut", codec="int8")
    assert files(Cache(tmp_path / "cut")) == files(Cache(tmp_path / "whole"))


def test_the_source_is_never_the_target(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", rows=10)
    before = files(source)
    for out in (tmp_path / "elsewhere" / ".." / "source", tmp_path / "source" / "corpora" / "new"):
        with pytest.raises(InputError, match="is the cache to convert, or lies in it: give a new folder"):
            convert(source, out, codec="int8")
    assert files(source) == before


def test_another_corpus_of_the_same_name_is_never_lost(tmp_path: Path) -> None:
    source, other = filled(tmp_path / "source"), filled(tmp_path / "other", rows=10)
    before = files(other)
    with pytest.raises(InputError, match="holds another corpus called 'words', and would lose it"):
        convert(source, tmp_path / "other")
    assert files(other) == before


def test_what_was_begun_in_another_codec_is_refused(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", "float32")
    convert(source, tmp_path / "out", codec="int8")
    with pytest.raises(InputError, match="as int8, not as float16"):
        convert(source, tmp_path / "out", codec="float16")


def test_too_few_vectors_for_pq_are_refused(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", rows=100)
    with pytest.raises(InputError, match="at least 256 vectors, found 100"):
        convert(source, tmp_path / "out", codec="pq")


def test_the_command(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", "float32")
    source.register_teacher("other", example_contract(16, pooling="cls"), {"spec": "other"})
    arguments = ["convert", "--cache", str(source.folder), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(
        cli, [*arguments, "--teacher", "tiny", "--store", "lmdb", "--codec", "int8", "--json"]
    )
    assert result.exit_code == 0, result.output
    (done,) = json.loads(result.stdout)
    assert (done["teacher"], done["store"], done["codec"], done["rows"]) == ("tiny", "lmdb", "int8", 700)
    assert [teacher.name for teacher in Cache(tmp_path / "out").teachers()] == ["tiny"]
    shown = CliRunner().invoke(cli, [*arguments[:-1], str(tmp_path / "all")])
    assert shown.exit_code == 0, shown.output
    assert "tiny" in shown.stdout
    assert [teacher.name for teacher in Cache(tmp_path / "all").teachers()] == ["other", "tiny"]
