"""The views of a cache: their columns and rows against the Python API, whatever the codec and the store."""

# ruff: noqa: S608 - the statements are made here

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalog_helpers import (
    KINDS,
    LABELS,
    ROWS,
    TEXTS,
    add_corpus,
    add_teacher,
    batch,
    make_cache,
    vectors_of,
)

from embedcache.cache import Cache
from embedcache.catalog import COLUMNS, connect, query
from embedcache.codecs.fixed import FLOAT16
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, sha256_file, write_sealed_json
from embedcache.keys import key


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("catalog") / "c")


def ask(cache: Cache, sql: str) -> list[dict[str, Any]]:
    with query(cache, sql) as result:
        rows: list[dict[str, Any]] = result.table().to_pylist()
        return rows


@pytest.mark.parametrize("view", COLUMNS)
def test_a_view_has_the_columns_that_are_documented(cache: Cache, tmp_path: Path, view: str) -> None:
    for one in (cache, Cache.create(tmp_path / "empty")):
        with query(one, f"SELECT * FROM {view} LIMIT 1") as result:
            assert tuple(result.schema.names) == COLUMNS[view]
    assert ask(Cache.create(tmp_path / "empty"), f"SELECT count(*) AS n FROM {view}") == [{"n": 0}]


def test_rows_are_those_of_the_corpora(cache: Cache) -> None:
    found = ask(cache, "SELECT * FROM rows ORDER BY corpus, row")
    assert [row["corpus"] for row in found] == ["news"] * ROWS + ["plain"] * 5
    assert [row["text"] for row in found] == TEXTS + TEXTS[:5]
    assert [row["row"] for row in found] == [*range(ROWS), *range(5)]
    assert [row["key"] for row in found] == [key(row["text"]) for row in found]
    assert [row["characters"] for row in found] == [len(row["text"]) for row in found]
    assert [row["id"] for row in found] == [f"id-{number}" for number in range(ROWS)] + [None] * 5
    assert [row["label"] for row in found] == LABELS + [None] * 5


def test_views_are_read_in_place_beside_the_rows(cache: Cache) -> None:
    found = ask(cache, "SELECT * FROM views ORDER BY corpus, view, row")
    wanted = [
        {"corpus": corpus, "view": view, "row": row, "key": key(text), "text": text}
        for corpus, view in (("news", "crop"), ("news", "other"), ("plain", "crop"))
        for row, text in enumerate(cache.corpus(corpus).view(view).texts())
    ]
    assert found == wanted
    pairs = ask(
        cache,
        "SELECT r.text AS before, v.text AS after FROM rows r JOIN views v USING (corpus, row) "
        "WHERE corpus = 'news' AND view = 'other' ORDER BY row",
    )
    assert [pair["before"] for pair in pairs] == TEXTS
    assert all(len(pair["after"]) < len(pair["before"]) for pair in pairs)
    assert ask(cache, "SELECT view, count(*) AS n FROM views GROUP BY ALL ORDER BY n") == [
        {"view": "other", "n": ROWS},
        {"view": "crop", "n": ROWS + 5},
    ]


def test_views_of_other_rows_are_not_offered_and_damaged_ones_refused(tmp_path: Path) -> None:
    opened = make_cache(tmp_path / "c")
    recipe = opened.corpora_folder / "plain" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    assert ask(opened, "SELECT DISTINCT corpus FROM views") == [{"corpus": "news"}]
    recipe.write_text("{")
    with pytest.raises(CorruptCacheError, match=r"recipe\.json is damaged"):
        ask(opened, "FROM views")
    assert len(ask(opened, "FROM rows")) == ROWS + 5


@pytest.mark.parametrize("codec", KINDS)
def test_vectors_are_decoded_as_the_python_api_decodes_them(cache: Cache, codec: str) -> None:
    found = ask(cache, f"SELECT * FROM vectors WHERE teacher = '{codec}'")
    store = cache.store(cache.teacher(codec).contract)
    assert len(found) == len(store) == ROWS - 1
    by_key = {row["key"]: row for row in found}
    wanted = vectors_of(cache, codec, TEXTS)
    given = np.array([by_key[key(text)]["vector"] for text in TEXTS], dtype=np.float32)
    assert given.tobytes() == wanted.tobytes()
    assert [by_key[key(text)]["tokens"] for text in TEXTS] == [len(text.split()) for text in TEXTS]
    assert [by_key[key(text)]["truncated"] for text in TEXTS] == [len(text.split()) >= 9 for text in TEXTS]
    assert {row["codec"] for row in found} == {codec}
    assert {row["contract"] for row in found} == {store.contract.id}
    shards = {bytes(k): shard.name for shard in store.shards for k in shard.keys}
    assert all(row["shard"] == shards[row["key"]] for row in found)


def test_the_codecs_differ_in_what_they_give(cache: Cache) -> None:
    # Otherwise the test above would hold of a view that ignores the teacher.
    given = [vectors_of(cache, codec, TEXTS[:3]).tobytes() for codec in KINDS]
    assert len(set(given)) == len(KINDS)


def test_shards_teachers_and_corpora_are_described(cache: Cache) -> None:
    shards = {row["shard"]: row for row in ask(cache, "SELECT * FROM shards")}
    teachers = {row["teacher"]: row for row in ask(cache, "SELECT * FROM teachers")}
    assert len(shards) == 2 * len(KINDS)
    for codec, kind in KINDS.items():
        store = cache.store(cache.teacher(codec).contract)
        for shard in store.shards:
            row = shards[shard.name]
            assert (row["teacher"], row["codec"], row["rows"]) == (codec, codec, len(shard))
            assert row["bytes"] == shard.bytes
            assert row["codebook"] == shard.header.codebook
            assert row["mean_cosine"] == shard.header.error["mean_cosine"]
            assert row["worst_cosine"] == shard.header.error["worst_cosine"]
            assert json.loads(row["provenance"]) == {"compute_dtype": "float32"}
        row = teachers[codec]
        contract = store.contract.to_json()
        assert {name: row[name] for name in contract.keys() & row.keys()} == {
            name: contract[name] for name in contract.keys() & row.keys()
        }
        assert contract.keys() - row.keys() == {"version"}
        assert (row["vectors"], row["shards"], row["bytes"]) == (ROWS - 1, 2, store.bytes_on_disk)
        assert (row["names"], row["codec"], row["store"]) == ([codec], codec, kind)
        assert json.loads(row["origin"]) == {"spec": codec}
    news, plain = ask(cache, "SELECT * FROM corpora ORDER BY corpus")
    info = cache.corpus("news").info
    assert (news["rows"], news["parts"], news["digest"]) == (ROWS, 1, info.digest)
    assert (news["has_ids"], news["has_labels"], json.loads(news["skipped"])) == (True, True, {})
    assert (plain["rows"], plain["has_ids"], plain["has_labels"]) == (5, False, False)


def test_rows_and_vectors_are_joined_by_key(cache: Cache) -> None:
    (row,) = ask(
        cache,
        "SELECT count(*) AS n, count(DISTINCT key) AS d FROM rows JOIN vectors USING (key) "
        "WHERE corpus = 'news' AND teacher = 'int8'",
    )
    assert row == {"n": ROWS, "d": ROWS - 1}
    found = ask(
        cache,
        "SELECT a.row, array_cosine_similarity(x.vector, y.vector) AS cosine FROM rows a "
        "JOIN vectors x ON a.key = x.key AND x.teacher = 'float32' "
        "JOIN vectors y ON a.key = y.key AND y.teacher = 'float16' WHERE a.corpus = 'plain'",
    )
    assert len(found) == 5
    assert all(row["cosine"] > 0.99999 for row in found)


@pytest.mark.parametrize("codec", KINDS)
def test_a_row_without_a_vector_joins_with_nothing(tmp_path: Path, codec: str) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "more", [*TEXTS, "nobody has encoded this"])
    add_teacher(cache, "some", [batch(TEXTS[:300])], codec=codec)
    found = ask(
        cache,
        "SELECT text, vector, vector[1] AS first FROM rows LEFT JOIN vectors USING (key) ORDER BY row DESC",
    )
    assert found[0] == {"text": "nobody has encoded this", "vector": None, "first": None}
    assert len(found) == ROWS + 1
    assert sum(row["vector"] is None for row in found) == ROWS - 301 + 1
    assert all(row["vector"][0] == row["first"] for row in found if row["vector"] is not None)


def test_a_key_of_two_shards_shows_once_and_as_the_store_answers(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    same = TEXTS[:20]
    add_teacher(
        cache, "twice", [batch(same, seed=1), batch([*same, "more"], seed=2), batch(same[:3], seed=3)]
    )
    store = cache.store(cache.teacher("twice").contract)
    assert sum(map(len, store.shards)) == 44
    assert len(store) == 21
    found = ask(cache, "SELECT key, vector FROM vectors")
    assert len(found) == 21
    by_key = {row["key"]: row["vector"] for row in found}
    given = np.array([by_key[key(text)] for text in same], dtype=np.float32)
    assert given.tobytes() == cache.lookup(same).tobytes()
    (counted,) = ask(cache, "SELECT sum(rows)::INTEGER AS n FROM shards")
    assert counted == {"n": 44}
    assert ask(cache, "SELECT vectors FROM teachers") == [{"vectors": 21}]


@pytest.mark.parametrize(
    ("labels", "type_"),
    [
        ([[1, 2], [0.5, 1.5]], "DOUBLE"),
        ([[1, 2], ["good", "bad"]], "VARCHAR"),
        ([["good", "bad"], None], "VARCHAR"),
        ([[1, 2], None], "BIGINT"),
        ([None, None], "VARCHAR"),
    ],
)
def test_labels_of_several_types_are_one_column(tmp_path: Path, labels: list[Any], type_: str) -> None:
    cache = Cache.create(tmp_path / "c")
    for number, own in enumerate(labels):
        add_corpus(cache, f"corpus-{number}", TEXTS[:2], labels=own)
    types = {row["column_name"]: row["column_type"] for row in ask(cache, "DESCRIBE rows")}
    assert types["label"] == type_
    wanted = [value for own in labels for value in (own or [None, None])]
    found = [row["label"] for row in ask(cache, "SELECT label FROM rows ORDER BY corpus, row")]
    assert found == ([None if v is None else str(v) for v in wanted] if type_ == "VARCHAR" else wanted)


def test_vectors_of_several_widths_are_lists(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_teacher(cache, "narrow", [batch(TEXTS[:3])])
    assert "FLOAT[8]" in str(ask(cache, "DESCRIBE vectors"))
    add_teacher(cache, "wide", [batch(TEXTS[:3], dimension=12)], dimension=12)
    assert "FLOAT[]" in str(ask(cache, "DESCRIBE vectors"))
    assert ask(
        cache, "SELECT teacher, sum(len(vector))::INTEGER AS n FROM vectors GROUP BY ALL ORDER BY 1"
    ) == [
        {"teacher": "narrow", "n": 24},
        {"teacher": "wide", "n": 36},
    ]
    (row,) = ask(
        cache, "SELECT max(array_length(vector::FLOAT[12])) AS n FROM vectors WHERE teacher = 'wide'"
    )
    assert row == {"n": 12}


def test_names_of_one_contract_are_one_teacher(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    teacher = add_teacher(cache, "zebra", [batch(TEXTS[:3])])
    cache.register_teacher("a-zebra.v1", teacher.contract, {})
    assert ask(cache, "SELECT teacher, names, vectors FROM teachers") == [
        {"teacher": "a-zebra.v1", "names": ["a-zebra.v1", "zebra"], "vectors": 3}
    ]
    assert ask(cache, "SELECT teacher, count(*) AS n FROM vectors GROUP BY ALL") == [
        {"teacher": "a-zebra.v1", "n": 3}
    ]


def test_vectors_are_decoded_only_where_they_are_asked_for(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untouchable(self: object, stored: object) -> None:
        raise AssertionError("a vector was decoded")

    monkeypatch.setattr(type(FLOAT16), "decode", untouchable)
    (row,) = ask(cache, "SELECT count(*) AS n, max(tokens) AS most FROM vectors WHERE teacher = 'float16'")
    assert row == {"n": ROWS - 1, "most": max(len(text.split()) for text in TEXTS)}
    with pytest.raises(InputError, match="a vector was decoded"):
        ask(cache, "SELECT vector FROM vectors WHERE teacher = 'float16'")


def test_only_what_a_statement_names_is_opened(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*arguments: object) -> None:
        raise AssertionError("opened")

    with monkeypatch.context() as patch:
        patch.setattr(Corpus, "column", closed)
        assert ask(cache, "SELECT count(*) AS n FROM vectors") == [{"n": len(KINDS) * (ROWS - 1)}]
        with pytest.raises(AssertionError, match="opened"):
            ask(cache, "FROM rows")
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "store", closed)
        assert ask(cache, "SELECT count(*) AS n FROM ROWS") == [{"n": ROWS + 5}]
        with pytest.raises(AssertionError, match="opened"):
            ask(cache, "FROM Vectors")


def test_a_query_changes_nothing_but_derived_files(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")

    def state() -> dict[Path, str]:
        paths = [path for path in cache.folder.rglob("*") if path.is_file() and "lock" not in path.name]
        return {path: sha256_file(path) for path in paths if cache.derived_folder not in path.parents}

    before = state()
    ask(cache, "SELECT count(vector[1]) FROM vectors JOIN rows USING (key)")
    assert state() == before


def test_the_temporary_folder_is_removed(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with query(
        cache, "SELECT i FROM (SELECT i, hash(i) AS h FROM range(3000000) t(i)) ORDER BY h", memory="40MB"
    ) as result:
        assert sum(rows.num_rows for rows in result) == 3_000_000
        assert os.listdir(tmp_path)  # noqa: PTH208
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_corpus_is_an_error(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    (part,) = (cache.corpora_folder / "plain").glob("*.arrow")
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(CorruptCacheError, match="is damaged"):
        ask(cache, "FROM rows")
    assert ask(cache, "SELECT count(*) AS n FROM shards") == [{"n": 8}]


def test_a_connection_offers_every_view(cache: Cache) -> None:
    with closing(connect(cache)) as connection:
        for view in COLUMNS:
            assert connection.sql(f"SELECT count(*) FROM {view}").fetchall()[0][0] > 0
    with closing(connect(cache.folder, views=["shards"])) as connection:
        assert connection.sql("SELECT count(*) FROM shards").fetchall() == [(8,)]
        with pytest.raises(Exception, match="rows does not exist"):
            connection.sql("FROM rows")


def test_the_memory_has_to_be_a_size(cache: Cache) -> None:
    with pytest.raises(InputError, match="--memory plenty was given, expected a size"):
        connect(cache, memory="plenty")
    with pytest.raises(InputError, match="allow more with --memory"):
        query(cache, "SELECT list(i) FROM range(20000000) t(i)", memory="20MB").table()
