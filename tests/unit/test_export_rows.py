"""``embedcache export``: what is written, what is refused, and that it appears as a whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import doctor_helpers
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from catalog_helpers import KINDS, LABELS, ROWS, TEXTS, add_corpus, add_teacher, batch, make_cache, vectors_of
from click.testing import CliRunner, Result
from numpy.typing import NDArray

import embedcache.export as export_module
from embedcache.cache import Cache
from embedcache.cli.export import export_command
from embedcache.corpus import part
from embedcache.errors import EmbedCacheError, InputError, MissingVectorsError, StorageError
from embedcache.export import ROWS_FILE, VECTORS_FILE, export_rows


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("export") / "c")


def test_a_view_is_written_with_the_vectors_of_its_own_texts(tmp_path: Path) -> None:
    opened = make_cache(tmp_path / "c")
    view = opened.corpus("news").view("crop")
    add_teacher(opened, "encodes-crop", [batch(sorted(set(view.texts())), seed=9)])
    settings = {"corpus": "news", "view": "crop", "teacher": "encodes-crop"}
    summary = export_rows(opened, tmp_path / "x.parquet", where="label = 1", **settings)
    rows = [row for row, label in enumerate(LABELS) if label == 1]
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["row", "text", "vector"]
    assert table.column("row").to_pylist() == rows
    assert table.column("text").to_pylist() == [view.texts()[row] for row in rows]
    wanted = vectors_of(opened, "encodes-crop", table.column("text").to_pylist())
    assert vectors_in(table).tobytes() == wanted.tobytes()
    assert (summary.view, summary.rows) == ("crop", len(rows))


def test_a_view_that_no_teacher_encoded_is_refused(cache: Cache, tmp_path: Path) -> None:
    settings = {"corpus": "news", "teacher": "int8"}
    with pytest.raises(MissingVectorsError, match=r"view 'other' of corpus 'news'.*--embed-views other'"):
        export_rows(cache, tmp_path / "x.parquet", view="other", **settings)
    with pytest.raises(InputError, match="has no view 'none': it has crop, other"):
        export_rows(cache, tmp_path / "x.parquet", view="none", **settings)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def gappy(tmp_path: Path) -> Cache:
    """Return a cache with vectors for the first ten rows of its corpus, and so for the last as well."""
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "news", TEXTS)
    add_teacher(cache, "some", [batch(TEXTS[:10])])
    return cache


def vectors_in(table: pa.Table) -> NDArray[np.floating]:
    column = table.column("vector").combine_chunks()
    found: NDArray[np.floating] = column.values.to_numpy().reshape(len(column), -1)
    return found


def run(cache: Cache, *arguments: object) -> Result:
    return CliRunner().invoke(export_command, [*map(str, arguments), "--cache", str(cache.folder)])


@pytest.mark.parametrize("codec", KINDS)
def test_parquet_holds_rows_and_vectors(cache: Cache, tmp_path: Path, codec: str) -> None:
    target = tmp_path / "x.parquet"
    summary = export_rows(cache, target, corpus="news", teacher=codec)
    table = pq.read_table(target)
    assert table.column_names == ["row", "text", "id", "label", "vector"]
    assert table.column("row").to_pylist() == list(range(ROWS))
    assert table.column("text").to_pylist() == TEXTS
    assert table.column("id").to_pylist() == [f"id-{row}" for row in range(ROWS)]
    assert table.column("label").to_pylist() == LABELS
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 8)
    assert vectors_in(table).tobytes() == vectors_of(cache, codec, TEXTS).tobytes()
    assert (summary.rows, summary.selected, summary.missing) == (ROWS, ROWS, 0)
    assert (summary.path, summary.corpus, summary.teacher) == (target, "news", codec)
    assert summary.bytes == target.stat().st_size


@pytest.mark.parametrize("codec", KINDS)
def test_npy_holds_vectors_and_names_their_rows(cache: Cache, tmp_path: Path, codec: str) -> None:
    summary = export_rows(cache, tmp_path / "x", corpus="news", teacher=codec, to="npy")
    assert {path.name for path in (tmp_path / "x").iterdir()} == {VECTORS_FILE, ROWS_FILE}
    vectors = np.load(tmp_path / "x" / VECTORS_FILE, mmap_mode="r", allow_pickle=False)
    assert (vectors.dtype, vectors.shape) == (np.float32, (ROWS, 8))
    assert vectors.tobytes() == vectors_of(cache, codec, TEXTS).tobytes()
    rows = pq.read_table(tmp_path / "x" / ROWS_FILE)
    assert rows.column_names == ["row", "text", "id", "label"]
    assert rows.column("text").to_pylist() == TEXTS
    assert summary.bytes == sum(path.stat().st_size for path in (tmp_path / "x").iterdir())


@pytest.mark.parametrize("codec", KINDS)
def test_float16_is_the_rounded_float32(cache: Cache, tmp_path: Path, codec: str) -> None:
    wanted = vectors_of(cache, codec, TEXTS).astype(np.float16)
    export_rows(cache, tmp_path / "x.parquet", corpus="news", teacher=codec, dtype="float16")
    export_rows(cache, tmp_path / "x", corpus="news", teacher=codec, dtype="float16", to="npy")
    found = vectors_in(pq.read_table(tmp_path / "x.parquet"))
    assert found.dtype == np.float16
    assert found.tobytes() == wanted.tobytes()
    assert np.load(tmp_path / "x" / VECTORS_FILE).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_another_program_reads_the_file(cache: Cache, tmp_path: Path, dtype: str) -> None:
    import duckdb

    export_rows(cache, tmp_path / "x.parquet", corpus="news", teacher="float16", dtype=dtype)
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT row, text, vector FROM read_parquet(?) ORDER BY row", [str(tmp_path / "x.parquet")]
        ).fetchall()
    assert [(row, text) for row, text, _ in found] == list(enumerate(TEXTS))
    # The store holds float16, which both dtypes keep exactly.
    vectors = np.array([vector for _, _, vector in found], dtype=np.float32)
    assert vectors.tobytes() == vectors_of(cache, "float16", TEXTS).tobytes()


def test_a_vector_too_large_for_float16_is_refused(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    large = batch(TEXTS[:3])
    large.vectors[1, 2] = 70_000.0
    add_corpus(cache, "news", TEXTS[:3])
    add_teacher(cache, "large", [large])
    with pytest.raises(
        InputError, match="component of 70000 does not fit float16: export with --dtype float32"
    ):
        export_rows(cache, tmp_path / "x.parquet", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert export_rows(cache, tmp_path / "x.parquet").rows == 3


def test_a_vector_that_is_not_finite_is_refused_unless_it_is_left_out(tmp_path: Path) -> None:
    vectors = doctor_helpers.unit(3)
    vectors[1, 2] = np.nan
    cache = doctor_helpers.make_cache(tmp_path / "c", vectors, texts=TEXTS[:3])
    with pytest.raises(InputError, match="a vector with NaN or infinity: find its text with 'embedcache doc"):
        export_rows(cache, tmp_path / "x.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert export_rows(cache, tmp_path / "x.parquet", where="row <> 1").rows == 2


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_where_picks_rows(cache: Cache, tmp_path: Path, to: str) -> None:
    wanted = [row for row in range(ROWS) if LABELS[row] == 2 and len(TEXTS[row].split()) < 9]
    target = tmp_path / "x"
    summary = export_rows(
        cache, target, corpus="news", teacher="int8", where="label = 2 AND NOT truncated", to=to
    )
    assert summary.rows == summary.selected == len(wanted)
    texts = [TEXTS[row] for row in wanted]
    if to == "npy":
        rows, vectors = pq.read_table(target / ROWS_FILE), np.load(target / VECTORS_FILE)
    else:
        rows = pq.read_table(target)
        vectors = vectors_in(rows)
    assert rows.column("row").to_pylist() == wanted
    assert rows.column("text").to_pylist() == texts
    assert vectors.tobytes() == vectors_of(cache, "int8", texts).tobytes()


def test_parts_and_chunks_do_not_show(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "PART_ROWS", 37)
    monkeypatch.setattr(export_module, "_CHUNK_ROWS", 10)
    cut = Cache.create(tmp_path / "c")
    add_corpus(cut, "news", TEXTS, ids=True, labels=LABELS)
    shards = [batch(TEXTS[:300]), batch(TEXTS[300:-1], seed=1)]
    add_teacher(cut, "float32", shards)
    export_rows(cache, tmp_path / "whole.parquet", corpus="news", teacher="float32", where="row % 7 <> 3")
    export_rows(cut, tmp_path / "cut.parquet", where="row % 7 <> 3")
    file = pq.ParquetFile(tmp_path / "cut.parquet")
    assert file.metadata.num_row_groups > 9
    assert file.read().equals(pq.read_table(tmp_path / "whole.parquet"))
    export_rows(cut, tmp_path / "cut", to="npy", where="row % 7 <> 3")
    assert np.load(tmp_path / "cut" / VECTORS_FILE).tobytes() == vectors_in(file.read()).tobytes()


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_rows_without_a_vector_are_refused_or_skipped_and_counted(
    gappy: Cache, tmp_path: Path, to: str
) -> None:
    with pytest.raises(
        MissingVectorsError, match=f"{ROWS - 11} of {ROWS} rows of corpus 'news' have no vector"
    ):
        export_rows(gappy, tmp_path / "x", to=to)
    assert not (tmp_path / "x").exists()
    summary = export_rows(gappy, tmp_path / "x", to=to, skip_missing=True)
    assert (summary.rows, summary.selected, summary.missing) == (11, ROWS, ROWS - 11)
    rows = pq.read_table(tmp_path / "x" / ROWS_FILE if to == "npy" else tmp_path / "x")
    assert rows.column("row").to_pylist() == [*range(10), ROWS - 1]
    assert rows.column_names[:2] == ["row", "text"]
    assert "id" not in rows.column_names
    assert export_rows(gappy, tmp_path / "y", to=to, where="row < 10").missing == 0


def test_nothing_is_not_exported(gappy: Cache, tmp_path: Path) -> None:
    for settings in ({"where": "row < 0"}, {"where": "row BETWEEN 20 AND 30", "skip_missing": True}):
        with pytest.raises(InputError, match=r"nothing to export: corpus 'news' has (0|11) rows for which"):
            export_rows(gappy, tmp_path / "x", **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot export to csv of float32"):
        export_rows(gappy, tmp_path / "x", to="csv")
    with pytest.raises(InputError, match="cannot export to npy of int8"):
        export_rows(gappy, tmp_path / "x", to="npy", dtype="int8")


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_what_is_there_is_replaced_only_on_request(cache: Cache, tmp_path: Path, to: str) -> None:
    def export(where: str, *, overwrite: bool = False) -> int:
        settings = {"corpus": "plain", "teacher": "int8", "to": to, "where": where, "overwrite": overwrite}
        return export_rows(cache, tmp_path / "x", **settings).rows  # type: ignore[arg-type]

    def written() -> int:
        return int(pq.read_table(tmp_path / "x" / ROWS_FILE if to == "npy" else tmp_path / "x").num_rows)

    assert export("row < 3") == written() == 3
    with pytest.raises(InputError, match="is there already"):
        export("row < 2")
    assert written() == 3
    assert export("row < 2", overwrite=True) == written() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(("to", "name"), [("npy", "e.parquet"), ("npy", "e.PQ"), ("parquet", "e.npy")])
def test_a_name_that_ends_like_the_other_format_is_refused(
    cache: Cache, tmp_path: Path, to: str, name: str
) -> None:
    with pytest.raises(InputError, match=f"'{name}' ends like .* --to {to} writes"):
        export_rows(cache, tmp_path / name, corpus="news", teacher="int8", to=to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_a_folder_of_other_things_is_never_replaced(cache: Cache, tmp_path: Path, to: str) -> None:
    mine = tmp_path / "mine" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(InputError, match=f"is no earlier export to {to} and is not replaced"):
        export_rows(cache, mine.parent, corpus="plain", teacher="pq", to=to, overwrite=True)
    if to == "npy":
        with pytest.raises(InputError, match="is no earlier export to npy"):
            export_rows(cache, mine, corpus="plain", teacher="pq", to=to, overwrite=True)
    assert mine.read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("to", ["parquet", "npy"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_what_was_there(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, overwrite: bool
) -> None:
    target = tmp_path / "x"
    settings = {"corpus": "plain", "teacher": "int8", "to": to}
    if overwrite:
        export_rows(cache, target, where="row < 2", **settings)  # type: ignore[arg-type]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            export_rows(cache, target, overwrite=overwrite, **settings)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == (["x"] if overwrite else [])
    if overwrite:
        rows = pq.read_table(target / ROWS_FILE if to == "npy" else target)
        assert rows.num_rows == 2


def test_a_folder_comes_back_where_the_new_one_cannot_take_its_place(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    settings = {"corpus": "plain", "teacher": "int8", "to": "npy"}
    export_rows(cache, target, where="row < 2", **settings)  # type: ignore[arg-type]
    rename = Path.rename

    def failing(path: Path, other: Path) -> Path:
        if other == target and "-old-" not in path.name:
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(StorageError, match="cannot write"):
        export_rows(cache, target, overwrite=True, **settings)  # type: ignore[arg-type]
    assert np.load(target / VECTORS_FILE).shape == (2, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_the_command_does_all_that_the_function_does(cache: Cache, tmp_path: Path) -> None:
    outcome = run(
        cache,
        *("--out", tmp_path / "x", "--to", "npy", "--corpus", "news", "--teacher", "float16"),
        *("--where", "label = 1", "--dtype", "float16", "--json"),
    )
    assert outcome.exit_code == 0, outcome.output
    told = json.loads(outcome.stdout)
    vectors = np.load(tmp_path / "x" / VECTORS_FILE)
    wanted = [text for text, label in zip(TEXTS, LABELS, strict=True) if label == 1]
    assert vectors.dtype == np.float16
    assert vectors.tobytes() == vectors_of(cache, "float16", wanted).astype(np.float16).tobytes()
    assert (told["rows"], told["missing"], told["path"]) == (len(wanted), 0, str(tmp_path / "x"))


def test_the_command_tells_what_was_left_out(gappy: Cache, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    outcome = run(gappy, "--out", target)
    assert isinstance(outcome.exception, EmbedCacheError)
    assert outcome.exception.exit_code == 2
    outcome = run(gappy, "--out", target, "--skip-missing")
    assert f"11 rows of news with vectors of some in {target}" in outcome.stdout
    assert f"{ROWS - 11} left out without a vector" in outcome.stdout
    assert isinstance(run(gappy, "--out", target, "--skip-missing").exception, InputError)
    assert run(gappy, "--out", target, "--skip-missing", "--overwrite").exit_code == 0


def test_progress_is_told(cache: Cache, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    export_rows(cache, tmp_path / "x", corpus="news", teacher="pq", on_step=lambda *step: told.append(step))
    assert told[-1] == ("write", ROWS, ROWS)
    assert told[:2] == [("look for vectors", 0, ROWS), ("look for vectors", ROWS, ROWS)]
