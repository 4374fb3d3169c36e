"""Exports hold the rows asked for with their vectors, and appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from check_helpers import run
from small_caches import (
    LABELS,
    ROWS,
    TEXTS,
    add_corpus,
    add_teacher,
    add_view,
    batch,
    make_cache,
    vectors_of,
)

import embedcache
from embedcache.cache import Cache
from embedcache.errors import InputError, MissingVectorsError, StorageError
from embedcache.exporting import rows as exporting
from embedcache.exporting.export import export
from embedcache.exporting.tables import ROWS_FILE, VECTORS_FILE
from embedcache.store import ShardStore


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("export") / "c")


@pytest.fixture
def gappy(tmp_path: Path) -> Cache:
    """Return a cache whose corpus of ten rows has six vectors, and whose view has none."""
    cache = Cache.create(tmp_path / "gappy")
    add_view(add_corpus(cache, "c", TEXTS[:10]), "crop=crop")
    add_teacher(cache, "t", [batch(TEXTS[:6])])
    return cache


def read(path: Path) -> tuple[list[dict[str, object]], np.ndarray]:
    """Return the rows of an export, and their vectors."""
    if path.suffix == ".lance":
        import lance

        table = lance.dataset(path).to_table()
    elif path.is_dir():
        return pq.read_table(path / ROWS_FILE).to_pylist(), np.load(path / VECTORS_FILE, allow_pickle=False)
    else:
        table = pq.read_table(path)
    kind = table.schema.field("vector").type.value_type.to_pandas_dtype()
    vectors = np.array(table["vector"].to_pylist(), kind)
    return table.drop_columns("vector").to_pylist(), vectors


@pytest.mark.parametrize(("name", "codec"), [("x.parquet", "float16"), ("x", "pq")])
def test_an_export_holds_rows_and_vectors(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, codec: str
) -> None:
    monkeypatch.setattr(exporting, "BATCH_ROWS", 77)
    done = export(cache, tmp_path / name, corpus="news", teacher=codec)
    rows, vectors = read(done.path)
    assert rows == [
        {"row": n, "text": text, "id": f"id-{n}", "label": LABELS[n]} for n, text in enumerate(TEXTS)
    ]
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, vectors_of(cache, codec, TEXTS))
    assert (done.rows, done.missing, done.corpus, done.teacher) == (ROWS, 0, "news", codec)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert done.bytes == size


def test_where_selects_rows(cache: Cache, tmp_path: Path) -> None:
    path, where = tmp_path / "x", "label = 1 AND NOT truncated"
    embedcache.export(cache.folder, path, corpus="news", teacher="int8", where=where)
    rows, vectors = read(path)
    wanted = [n for n, text in enumerate(TEXTS) if LABELS[n] == 1 and len(text.split()) < 9]
    assert [row["row"] for row in rows] == wanted
    np.testing.assert_array_equal(vectors, vectors_of(cache, "int8", [TEXTS[n] for n in wanted]))


def test_a_view_has_the_vectors_of_its_texts(gappy: Cache, tmp_path: Path) -> None:
    with pytest.raises(MissingVectorsError, match="embed-views crop"):
        export(gappy, tmp_path / "x", view="crop")
    texts = gappy.corpus().view("crop").texts()
    add_teacher(gappy, "t", [batch(texts)])
    export(gappy, tmp_path / "x", view="crop")
    rows, vectors = read(tmp_path / "x")
    assert rows == [{"row": n, "text": text} for n, text in enumerate(texts)]
    np.testing.assert_array_equal(vectors, gappy.lookup(texts))


def test_rows_without_a_vector_are_an_error_or_left_out(gappy: Cache, tmp_path: Path) -> None:
    with pytest.raises(MissingVectorsError, match="4 of 10"):
        export(gappy, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    done = export(gappy, tmp_path / "x", skip_missing=True)
    assert (done.rows, done.missing, len(read(done.path)[1])) == (6, 4, 6)
    for where in ("row > 100", "row > 7"):
        with pytest.raises(InputError, match="no rows"):
            export(gappy, tmp_path / "y", where=where, skip_missing=True)


@pytest.mark.parametrize("name", ["x.parquet", "x", "x.lance"])
def test_an_export_is_replaced_only_when_asked_and_complete(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    export(cache, path, corpus="plain", teacher="int8")
    with pytest.raises(InputError, match="overwrite"):
        export(cache, path, corpus="plain", teacher="int8")
    assert export(cache, path, corpus="plain", teacher="int8", where="row < 2", overwrite=True).rows == 2

    def full(*arguments: object, **settings: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "vectors", full)
        with pytest.raises(StorageError):
            export(cache, path, corpus="plain", teacher="int8", overwrite=True)
    assert len(read(path)[0]) == 2
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_other_things_are_never_replaced_and_wrong_arguments_named(cache: Cache, tmp_path: Path) -> None:
    for name in ("x.parquet", "x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
        with pytest.raises(InputError, match="not an earlier export"):
            export(cache, tmp_path / name, corpus="plain", teacher="int8", overwrite=True)
        assert (tmp_path / name / "mine.txt").exists()
    for name, corpus, noun in (("x.npy", "plain", "parquet"), ("y", "no", "news")):
        with pytest.raises(InputError, match=noun):
            export(cache, tmp_path / name, corpus=corpus, teacher="int8")


def test_the_command(gappy: Cache, tmp_path: Path) -> None:
    given = ("export", "--cache", gappy.folder, "--out")
    code, shown = run(*given, tmp_path / "x", "--skip-missing")
    assert (code, "6 rows" in shown, "4 left out" in shown) == (0, True, True)
    words = (*given, tmp_path / "y.parquet", "--where", "row < 2", "--json")
    assert json.loads(run(*words)[1])["rows"] == 2
