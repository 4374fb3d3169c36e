"""Other tools read the vectors of a look-up, bit for bit, and the page on formats runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from automodel_reader import read_teacher, vectors_in
from check_helpers import run
from small_caches import LABELS, TEXTS, add_corpus, add_teacher, batch, make_cache

from embedcache.cache import Cache
from embedcache.cli import options
from embedcache.errors import InputError, MissingExtraError, MissingVectorsError
from embedcache.exporting import rows
from embedcache.exporting.export import FORMATS, export
from embedcache.scan import Scan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
Read = tuple[list[str], Any]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("formats") / "c")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.scan.BATCH_ROWS", 77)
    monkeypatch.setattr(rows, "BATCH_ROWS", 77)


def by_arrow(scan: Scan, folder: Path) -> Read:
    table = pa.table(scan)
    return table["text"].to_pylist(), table["vector"].combine_chunks().flatten().to_numpy()


def by_polars(scan: Scan, folder: Path) -> Read:
    import polars

    frame = scan.to_polars()
    assert frame.equals(polars.DataFrame(scan))
    return frame["text"].to_list(), frame["vector"].to_numpy()


def by_pandas(scan: Scan, folder: Path) -> Read:
    frame = scan.to_pandas()
    assert frame["label"].tolist() == LABELS
    return frame["text"].tolist(), np.stack(frame["vector"])


def by_datasets(scan: Scan, folder: Path) -> Read:
    dataset = scan.to_dataset(folder)
    return list(dataset["text"]), dataset.with_format("numpy")[:]["vector"]


def by_duckdb(scan: Scan, folder: Path) -> Read:
    import duckdb

    found = duckdb.sql("SELECT text, vector FROM scan").fetchnumpy()
    return found["text"].tolist(), np.stack(found["vector"])


def read_file(path: Path) -> Read:
    if path.suffix == ".lance":
        import lance

        table = lance.dataset(path).to_table()
    elif path.is_dir():
        vectors = np.load(path / "vectors.npy", allow_pickle=False)
        return pq.read_table(path / "rows.parquet")["text"].to_pylist(), vectors
    else:
        table = pq.read_table(path)
    assert table.schema.names == ["row", "text", "id", "label", "vector"]
    return table["text"].to_pylist(), table["vector"].combine_chunks().flatten().to_numpy()


SCANS = [by_arrow, by_polars, by_pandas, by_datasets, by_duckdb]


@pytest.mark.parametrize("codec", ["float16", "int8"])
@pytest.mark.parametrize(
    "reader", [*SCANS, "x.parquet", "x.lance", "x"], ids=lambda one: getattr(one, "__name__", one)
)
def test_every_reader_gives_the_vectors_of_a_lookup_bit_for_bit(
    cache: Cache, tmp_path: Path, reader: Any, codec: str
) -> None:
    if isinstance(reader, str):
        export(cache, tmp_path / reader, corpus="news", teacher=codec)
        texts, vectors = read_file(tmp_path / reader)
    else:
        texts, vectors = reader(cache.scan(codec, "news"), tmp_path)
    expected = cache.lookup(TEXTS, codec)
    assert texts == TEXTS
    assert (vectors.dtype, vectors.tobytes()) == (expected.dtype, expected.tobytes())


# Scans


def test_a_scan_is_read_again_from_the_start_and_names_missing_vectors(cache: Cache, tmp_path: Path) -> None:
    scan = cache.scan("int8", "news", "crop")
    with pytest.raises(MissingVectorsError, match="row 0"):
        scan.to_polars()
    scan = cache.scan("int8", "news")
    assert [len(list(scan)), len(list(scan)), scan.read_all().num_rows] == [5, 5, len(TEXTS)]
    assert scan.to_reader().schema == scan.schema


def test_a_dataset_is_mapped_from_a_file_that_is_written_once_per_state_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder = Cache.create(tmp_path / "c"), tmp_path / "datasets"
    add_corpus(cache, "c", TEXTS[:200])
    add_teacher(cache, "t", [batch(TEXTS[:200], dimension=512)], dimension=512)
    first = cache.scan().to_dataset(folder)
    assert [Path(one["filename"]).parent.parent for one in first.cache_files] == [folder]
    with monkeypatch.context() as patch:
        patch.setattr("embedcache.scan._batches", lambda *_: pytest.fail("written again"))
        before = pa.total_allocated_bytes()
        again = cache.scan().to_dataset(folder)
        assert len(again) == 200
        # 200 vectors of 512 components take 400 kB.
        assert pa.total_allocated_bytes() - before < 100_000
    add_teacher(cache, "t", [batch(["x"], dimension=512)], dimension=512)
    other = cache.scan().to_dataset(folder)
    assert other.cache_files != first.cache_files
    add_corpus(cache, "d", ["y"])
    with pytest.raises(MissingVectorsError):
        cache.scan(corpus="d").to_dataset(folder)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("module", ["polars", "pandas", "datasets", "lance"])
def test_a_library_that_is_not_installed_is_named(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    scan = cache.scan("int8", "news")
    calls = {
        "polars": scan.to_polars,
        "pandas": scan.to_pandas,
        "datasets": lambda: scan.to_dataset(tmp_path),
    }
    with pytest.raises(MissingExtraError, match=rf"{module}: pip install 'embedcache-distill\["):
        calls.get(module, lambda: export(cache, tmp_path / "x.lance", corpus="news", teacher="int8"))()
    assert list(tmp_path.iterdir()) == []


# Automodel


def test_an_automodel_folder_gives_the_vectors_of_a_lookup_row_for_row(cache: Cache, tmp_path: Path) -> None:
    for codec, dtype in (("float16", "float16"), ("int8", "float32")):
        done = export(cache, tmp_path / codec, to="automodel", corpus="news", teacher=codec)
        index, sides = read_teacher(done.path)
        # The last text repeats the first.
        assert (index["dtype"], index["num_docs"], done.rows) == (dtype, len(TEXTS) - 1, len(TEXTS) - 1)
        for side in sides.values():
            assert vectors_in(side, TEXTS).tobytes() == cache.lookup(TEXTS, codec).tobytes()
        np.testing.assert_array_equal(sides["docs"][0], cache.lookup(TEXTS[:-1], codec))


def test_queries_come_from_another_corpus_and_another_teacher(cache: Cache, tmp_path: Path) -> None:
    given = {"to": "automodel", "corpus": "news", "teacher": "float16"}
    export(cache, tmp_path / "x", **given, where="row < 100", queries="plain", query_teacher="int8")
    index, sides = read_teacher(tmp_path / "x")
    assert (index["dtype"], len(sides["docs"][0]), len(sides["queries"][0])) == ("float32", 100, 5)
    for side, texts, codec in (("docs", TEXTS[:100], "float16"), ("queries", TEXTS[:5], "int8")):
        assert vectors_in(sides[side], texts).tobytes() == cache.lookup(texts, codec).tobytes()
    add_teacher(cache, "wide", [batch(TEXTS, dimension=16)], dimension=16)
    with pytest.raises(InputError, match="16 components"):
        export(cache, tmp_path / "y", **given, query_teacher="wide")
    with pytest.raises(InputError, match="automodel"):
        export(cache, tmp_path / "y", corpus="news", teacher="float16", queries="plain")
    assert not (tmp_path / "y").exists()


# The command and the page


def test_formats_are_distinguished_and_replaced_only_by_their_own(cache: Cache, tmp_path: Path) -> None:
    assert options.EXPORT_FORMATS == FORMATS
    settings = {"corpus": "plain", "teacher": "int8"}
    for to in FORMATS:
        export(cache, tmp_path / to, to=to, **settings)
        assert export(cache, tmp_path / to, to=to, **settings, where="row < 2", overwrite=True).rows == 2
    for to in FORMATS:
        for path in {*FORMATS} - {to}:
            with pytest.raises(InputError, match="not an earlier export"):
                export(cache, tmp_path / path, to=to, **settings, overwrite=True)
    code, shown = run(
        *("export", "--cache", cache.folder, "--corpus", "plain", "--teacher", "int8", "--to", "automodel"),
        *("--out", tmp_path / "new", "--queries", "news", "--query-teacher", "int8"),
    )
    assert (code, "5 rows of plain" in shown) == (0, True)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, corpora in (("cache", ("corpus",)), ("qa", ("documents", "questions"))):
        cache = Cache.create(tmp_path / name)
        for corpus in corpora:
            add_corpus(cache, corpus, TEXTS)
        add_teacher(cache, "minilm-l6", [batch(TEXTS[:-1])], codec="float16")
    monkeypatch.chdir(tmp_path)
    page = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for kind, text in page:
        if kind == "python":
            exec(text, names)  # noqa: S102 - a page of this repository
        for line in text.replace("\\\n", " ").splitlines() if kind == "bash" else ():
            program, *words = shlex.split(line, comments=True)
            # As a shell does.
            words = [str(found) for word in words for found in (Path().glob(word) if "*" in word else [word])]
            # A deep check needs the model.
            assert program == "pip" or words[0] == "doctor" or run(*words)[0] == 0, line
    expected = Cache("cache").lookup(TEXTS[:1])[0]
    np.testing.assert_array_equal(Cache("imported").lookup(TEXTS[:1])[0], expected)
    for name in ("vector", "vectors"):
        np.testing.assert_array_equal(np.atleast_2d(names[name])[0], expected)
    assert (len(names["longest"]), names["table"].num_rows, len(names["texts"])) == (3, 5, len(TEXTS))
