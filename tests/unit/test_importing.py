"""Imported vectors are those of the file; what cannot be of the stated contract is refused before."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from building import content, write_lines
from check_helpers import run
from distill_helpers import TEXTS, small_run
from kill_helpers import cut_off_at
from small_caches import add_corpus, add_teacher, batch, make_cache

import embedcache
from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.doctor import examine
from embedcache.errors import ContractMismatchError, InputError
from embedcache.fsio import spelled_json
from embedcache.importing import ImportResult, contract_in
from embedcache.live import Computing
from embedcache.projection import extend, write_derived
from embedcache.teacher.load import Teacher
from embedcache.testing import encode_texts, example_contract, sentences
from embedcache.verify import verify

pytest_plugins = ["distill_fixtures"]

CONTRACT = example_contract(8, prompt="others")
STATED: dict[str, Any] = {"contract": CONTRACT, "teacher_name": "theirs"}
LINES = [*sentences(20, seed=4), "Žluťoučký kůň 🐎"]


def vectors_for(texts: list[str], seed: int = 0) -> Vectors:
    return batch(texts, seed=seed).vectors


def write_parquet(path: Path, texts: list[Any], vectors: Any, column: str = "vector", **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = vectors if isinstance(vectors, pa.Array) else pa.array(list(np.asarray(vectors)))
    pq.write_table(pa.table({"text": texts, column: values, **more}), path)
    return path


def write_automodel(folder: Path, docs: list[str], vectors: Vectors, queries: list[str]) -> Path:
    folder.mkdir()
    np.save(folder / "docs.npy", vectors)
    np.save(folder / "queries.npy", vectors[: len(queries)])
    sides = {
        f"{side}_hashes": {hashlib.sha256(text.encode()).hexdigest(): row for row, text in enumerate(texts)}
        for side, texts in (("query", queries), ("doc", docs))
    }
    counts = {"num_queries": len(queries), "num_docs": len(docs)}
    index = {"dim": vectors.shape[1], "dtype": vectors.dtype.name, **counts, **sides}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


def take(path: Path, cache: Path, kind: str, **given: Any) -> ImportResult:
    return embedcache.import_vectors(path, cache=cache, kind=kind, **{**STATED, **given})


@pytest.mark.parametrize("kind", ["parquet", "npy", "automodel"])
@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_an_export_comes_back_bit_for_bit(tmp_path: Path, kind: str, codec: str) -> None:
    source, there = make_cache(tmp_path / "source"), tmp_path / ("x.parquet" if kind == "parquet" else "x")
    source.export(there, to=kind, corpus="news", teacher=codec)
    columns = {"id_column": "id", "label_column": "label"}
    given: dict[str, Any] = {"contract": source.teacher(codec).contract, **columns}
    if kind == "automodel":
        source.export(tmp_path / "texts.parquet", corpus="news", teacher=codec)
        given |= {"contract": there / "manifest.json", "texts": tmp_path / "texts.parquet"}
    done = take(there, tmp_path / "c", kind, corpus="news", **given)
    found, texts = Cache(tmp_path / "c"), source.corpus("news").texts()
    # Only values that float16 holds exactly are stored so.
    assert (done.codec, done.imported, done.distinct) == (codec, len(texts) - 1, len(texts) - 1)
    assert found.corpus("news").info == source.corpus("news").info
    np.testing.assert_array_equal(found.lookup(texts), source.lookup(texts, codec))
    assert verify(found.folder).damage == []


@pytest.mark.parametrize("form", ["arrow", "parquet", "half", "large"])
def test_tokenlearn_and_lists_of_any_floats(tmp_path: Path, form: str) -> None:
    vectors, kind = vectors_for(LINES), "tokenlearn" if form in ("arrow", "parquet") else "parquet"
    expected = vectors.astype(np.float16) if form == "half" else vectors
    types = {"half": pa.list_(pa.float16(), 8), "large": pa.large_list(pa.float64())}
    for number, rows in enumerate((slice(0, 9), slice(9, None))):
        values = pa.array(list(expected[rows]), types.get(form, pa.list_(pa.float32())))
        table = pa.table({"text": LINES[rows], "number": range(len(LINES[rows])), "embedding": values})
        folder = tmp_path / "dump" / f"shard_{number:08d}"
        folder.mkdir(parents=True)
        if form != "arrow":
            pq.write_table(table.rename_columns(["text", "n", "other"]), folder / "part-0.parquet")
            continue
        file = folder / "data-00000-of-00001.arrow"
        with file.open("wb") as handle, pa.ipc.new_stream(handle, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
        (folder / "state.json").write_text("{}", encoding="utf-8")
    done = take(tmp_path / "dump", tmp_path / "c", kind)
    assert (done.corpus, done.imported, done.codec) == (
        "dump",
        21,
        "float16" if form == "half" else "float32",
    )
    np.testing.assert_array_equal(Cache(tmp_path / "c").lookup(LINES), expected.astype(np.float32))


def test_automodel_finds_texts_by_their_digest(tmp_path: Path) -> None:
    vectors = vectors_for(LINES)
    folder = write_automodel(tmp_path / "dump", LINES, vectors, LINES[3:5])
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([*LINES[::-1][:10], "", "not encoded", LINES[20]]), encoding="utf-8")
    done = take(folder, tmp_path / "c", "automodel", texts=lines)
    assert (done.corpus, done.rows, done.distinct, dict(done.skipped)) == ("lines", 12, 11, {"empty": 1})
    assert (done.imported, done.without_vector, done.without_text) == (10, 1, 11)
    cache = Cache(tmp_path / "c")
    np.testing.assert_array_equal(cache.lookup(LINES[11:]), vectors[11:])
    add_corpus(cache, "stored", LINES)
    before = content(cache.folder)
    done = take(folder, cache.folder, "automodel", corpus="stored")
    assert (done.imported, done.already_there, done.without_vector, done.without_text) == (11, 10, 0, 0)
    assert {path for path in content(cache.folder) if path not in before} == {
        f"teachers/{CONTRACT.id}/shards/{shard.name}.arrow"
        for shard in cache.store(CONTRACT).shards
        if len(shard) == 11
    }
    done = take(
        folder, tmp_path / "q", "automodel", texts=write_lines(tmp_path / "q.txt", LINES), queries=True
    )
    assert (done.imported, done.without_vector, done.without_text) == (2, 19, 0)
    np.testing.assert_array_equal(Cache(tmp_path / "q").lookup(LINES[3:5]), vectors[:2])


def test_vectors_that_are_there_stay_and_the_first_of_a_text_counts(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_teacher(cache, "others", [batch(LINES[:5], seed=1)])
    texts = [*LINES, None, LINES[20], LINES[7]]
    vectors = vectors_for([str(text) for text in texts])
    done = take(write_parquet(tmp_path / "x.parquet", texts, vectors), cache.folder, "parquet")
    counts = (done.rows, done.distinct, done.already_there, done.imported, done.without_text)
    assert counts == (23, 21, 5, 16, 1)
    expected = np.concatenate([vectors_for(LINES[:5], seed=1), vectors[5:21]])
    np.testing.assert_array_equal(Cache(cache.folder).lookup(LINES, "theirs"), expected)
    before = content(cache.folder)
    assert take(tmp_path / "x.parquet", cache.folder, "parquet").imported == 0
    assert content(cache.folder) == before


def with_row(row: int, value: float) -> Vectors:
    vectors = vectors_for(LINES)
    vectors[row] *= value
    return vectors


@pytest.mark.parametrize(
    ("vectors", "noun"),
    [
        (vectors_for(LINES)[:, :7], "7 dimensions"),
        (with_row(20, np.nan), "row 20"),
        (with_row(3, np.inf), "row 3"),
        (with_row(4, 0.0), "row 4 .* zero"),
        (with_row(5, 1.02), "row 5 .* length one"),
        (vectors_for(LINES)[:20], "21 rows"),
        (np.concatenate([vectors_for(LINES)] * 2), "42 vectors"),
        (np.empty((0, 8), np.float32), "21 rows"),
        (np.arange(168).reshape(21, 8), "int64"),
        (np.array([[{}] * 8] * 21, dtype=object), "read"),
    ],
)
def test_vectors_that_cannot_be_of_the_contract_are_refused_and_nothing_is_stored(
    tmp_path: Path, vectors: Any, noun: str
) -> None:
    np.save(tmp_path / "x.npy", vectors, allow_pickle=True)
    lines = write_lines(tmp_path / "lines.txt", LINES)
    with pytest.raises(InputError, match=noun) as caught:
        take(tmp_path / "x.npy", tmp_path / "c", "npy", texts=lines)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "c").exists()


class Hostile:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return Path.touch, (Path("hostile"),)  # type: ignore[return-value]


def test_wrong_arguments_and_files_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines, vectors, cache = write_lines(tmp_path / "lines.txt", LINES), vectors_for(LINES), tmp_path / "c"
    (tmp_path / "pickled.npy").write_bytes(pickle.dumps(Hostile()))
    (tmp_path / "index.json").write_text("[]", encoding="utf-8")
    table = write_parquet(tmp_path / "x.parquet", LINES, vectors, other=pa.array(list(vectors)))
    gap = write_parquet(tmp_path / "gap.parquet", LINES, pa.array([None, *vectors[1:].tolist()]))
    two = write_parquet(tmp_path / "two.parquet", LINES, vectors, "a", b=pa.array(list(vectors)))
    folder = write_automodel(tmp_path / "dump", LINES, vectors, [])
    (folder / "manifest.json").write_bytes(
        spelled_json({"docs": {"contract": example_contract(8).to_json()}})
    )
    wrong: list[tuple[Path, str, dict[str, Any], str]] = [
        (tmp_path / "pickled.npy", "npy", {"texts": lines}, "pickled.npy"),
        (tmp_path / "none.npy", "npy", {"texts": lines}, "none.npy"),
        (tmp_path / "dump" / "docs.npy", "npy", {}, "texts"),
        (table, "parquet", {"texts": lines}, "texts"),
        (table, "parquet", {"queries": True}, "queries"),
        (table, "parquet", {"vector_column": "text"}, "vector_column"),
        (table, "parquet", {"codec": "int4"}, "int4"),
        (table, "parquet", {"contract": None}, "contract"),
        (table, "parquet", {"teacher": "minilm-l6"}, "both"),
        (table, "parquet", {"teacher_name": None}, "give the teacher one"),
        (table, "parquet", {"contract": tmp_path / "index.json"}, "object"),
        (table, "parquet", {"contract": folder / "index.json"}, "0 contracts"),
        (gap, "parquet", {}, "row 0"),
        (two, "parquet", {}, "a, b"),
        (lines, "parquet", {}, "lines.txt"),
        (tmp_path / "nowhere", "tokenlearn", {}, "nowhere"),
        (folder, "automodel", {"texts": lines}, "prompt '' -> 'others'"),
        (tmp_path, "automodel", {"texts": lines}, "docs.npy"),
        (folder, "lance", {}, "lance"),
    ]
    for path, kind, given, noun in wrong:
        with pytest.raises((InputError, ContractMismatchError)) as caught:
            take(path, cache, kind, **given)
        assert noun in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not cache.exists()
    assert not (tmp_path / "hostile").exists()
    assert take(table, cache, "parquet", vector_column="other").imported == 21
    with pytest.raises(ContractMismatchError, match="prompt"):
        take(table, cache, "parquet", contract=example_contract(8))
    with pytest.raises(InputError, match="other rows"):
        take(write_parquet(tmp_path / "more" / "x.parquet", LINES[1:], vectors[1:]), cache, "parquet")


def test_a_contract_is_found_in_files_that_show_it(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    contract = cache.teacher("int8").contract
    shown = tmp_path / "info.json"
    shown.write_text(run("info", "int8", "--json", "--cache", cache.folder)[1], encoding="utf-8")
    assert contract_in(shown) == contract_in(cache.teacher_folder(contract) / "contract.json") == contract
    shown.write_bytes(spelled_json({"a": contract.to_json(), "b": [CONTRACT.to_json()]}))
    with pytest.raises(InputError, match="2 contracts"):
        contract_in(shown)
    shown.write_bytes(spelled_json({**contract.to_json(), "dimension": "8"}))
    with pytest.raises(InputError, match="dimension"):
        contract_in(shown)


def test_killed_at_any_write_an_import_is_finished_by_the_same_call(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", LINES, vectors_for(LINES))
    take(path, tmp_path / "whole", "parquet", shard_rows=8)
    expected, stop = content(tmp_path / "whole"), 1
    assert len(Cache(tmp_path / "whole").store(CONTRACT).shards) == 3
    while True:
        with cut_off_at(stop) as steps:
            take(path, tmp_path / "c", "parquet", shard_rows=8)
        if len(steps) < stop:
            break
        take(path, tmp_path / "c", "parquet", shard_rows=8)
        assert content(tmp_path / "c") == expected
        shutil.rmtree(tmp_path / "c")
        stop += 7  # a file takes five steps: each kind of step is met
    assert stop > 40


def deep(cache: Path, model: Path, texts: int = 20) -> str:
    computing = Computing(teacher_model=model, device="cpu", threads=1)
    return examine(cache, deep=texts, computing=computing).findings[-1].level


def listed(cache: Path) -> str:
    (teacher,) = json.loads(run("ls", "--json", "--cache", cache)[1])["teachers"]
    return str(teacher["identity"])


def test_imported_vectors_are_stated_until_the_live_model_has_been_compared(
    tmp_path: Path, teacher: Teacher, teacher_folder: Path, built_cache: Path
) -> None:
    cache, new = tmp_path / "c", sentences(5, seed=8)
    shutil.copytree(built_cache, cache)
    path = write_parquet(tmp_path / "x.parquet", new, encode_texts(teacher, new))
    code, shown = run(
        *("import", path, "--from", "parquet", "--teacher", teacher_folder, "--cache", cache),
        *("--codec", "float32", "--teacher-name", "tiny"),
    )
    assert (code, "stated, not checked" in shown, Cache(cache).teacher().contract) == (
        0,
        True,
        teacher.contract,
    )
    assert "5 vectors stated, not checked" in run("info", "tiny", "--cache", cache)[1]
    assert "5 vectors" in listed(cache)
    noted = small_run(cache, tmp_path / "run", corpus="texts").record.notes
    assert any("stated, not checked" in note for note in noted)
    # Five of 165 texts, and all of them have to be compared: a small sample prefers them.
    assert deep(cache, teacher_folder, texts=4) == "ok"
    assert "5 vectors" in listed(cache)
    assert deep(cache, teacher_folder, texts=12) == "ok"
    assert listed(cache) == "weights"
    # What was noted counts only here.
    shutil.copytree(cache, tmp_path / "copy")
    shutil.rmtree(cache / "derived")
    assert "5 vectors" in listed(tmp_path / "copy")
    assert "5 vectors" in listed(cache)


def test_wrong_vectors_stay_stated_and_are_found(
    tmp_path: Path, loaded_teacher: Teacher, tiny_teacher: Path
) -> None:
    path = write_parquet(tmp_path / "x.parquet", TEXTS, encode_texts(loaded_teacher, TEXTS)[::-1])
    embedcache.import_vectors(path, cache=tmp_path / "c", kind="parquet", teacher=loaded_teacher)
    cache = Cache(tmp_path / "c")
    assert "160 stated, not checked" in examine(cache).findings[-1].figure
    assert deep(cache.folder, tiny_teacher) == "bad"
    assert "160 vectors stated" in listed(cache.folder)
    embedcache.copy([cache.folder], tmp_path / "copy", embedcache.CopyOptions(codec="int8"))
    assert "160 vectors stated" in listed(tmp_path / "copy")
    made = write_derived(cache, cache.teacher(), "four", np.eye(16, dtype=np.float32)[:4], "by hand")
    extend(cache, made, cache.corpus())
    assert sum(cache.unchecked(cache.store(made.contract)).values()) == 160


def test_a_build_encodes_nothing_that_was_imported(
    tmp_path: Path, loaded_teacher: Teacher, tiny_teacher: Path
) -> None:
    texts = TEXTS[:30]
    path = write_parquet(tmp_path / "x.parquet", texts, encode_texts(loaded_teacher, texts))
    contract = tmp_path / "contract.json"
    contract.write_bytes(spelled_json(loaded_teacher.contract.to_json()))
    words = ("--from", "parquet", "--contract", contract, "--teacher-name", "tiny", "--json")
    code, shown = run("import", path, "--cache", tmp_path / "c", *words)
    assert (code, json.loads(shown)["imported"]) == (0, 30)
    built = embedcache.build(texts, teacher=str(tiny_teacher), cache=tmp_path / "c", name="x")
    assert built.result is not None
    assert (built.result.encoded, built.result.cached) == (0, 30)
    code, shown = run("import", path, "--cache", tmp_path / "d", *words, "--pooling", "cls")
    assert (code, "--teacher" in shown) == (2, True)
