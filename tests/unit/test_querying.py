"""Queries: tables over a cache's files, limits of a statement, output formats, and ``--where``."""
# ruff: noqa: S608 - the statements are made here

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from corpus_helpers import small_parts
from small_caches import KINDS, LABELS, ROWS, TEXTS, add_corpus, add_teacher, batch, make_cache, vectors_of

from embedcache.cache import Cache
from embedcache.cli.query import query_command
from embedcache.errors import CorruptCacheError, EmbedCacheError, InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.keys import key
from embedcache.querying import TABLES, open_query, query, select_rows

WORDS = [len(text.split()) for text in TEXTS]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("query") / "c")


def ask(cache: Cache, sql: str) -> list[dict[str, Any]]:
    return query(cache, sql).to_pylist()


def types(cache: Cache, table: str) -> dict[str, str]:
    return {row["column_name"]: row["column_type"] for row in ask(cache, f"DESCRIBE {table}")}


@pytest.mark.parametrize("table", TABLES)
def test_tables_have_the_documented_columns_also_in_an_empty_cache(
    cache: Cache, tmp_path: Path, table: str
) -> None:
    assert types(Cache.create(tmp_path / "c"), table) == TABLES[table]
    own = {"rows": {"label": "BIGINT"}, "vectors": {"vector": "FLOAT[8]"}}.get(table, {})
    assert types(cache, table) == TABLES[table] | own


def test_rows_and_views_are_those_of_the_corpora(cache: Cache) -> None:
    assert ask(cache, "SELECT * EXCLUDE corpus FROM rows WHERE corpus = 'news' ORDER BY row") == [
        {
            "row": n,
            "key": key(text),
            "text": text,
            "characters": len(text),
            "id": f"id-{n}",
            "label": LABELS[n],
        }
        for n, text in enumerate(TEXTS)
    ]
    assert ask(cache, "SELECT DISTINCT id, label FROM rows WHERE corpus = 'plain'") == [
        {"id": None, "label": None}
    ]
    views = ask(cache, "SELECT text FROM views WHERE corpus = 'news' AND view = 'crop' ORDER BY row")
    assert [row["text"] for row in views] == cache.corpus("news").view("crop").texts()
    assert ask(cache, "SELECT count(*) AS n FROM views") == [{"n": 2 * ROWS + 5}]


@pytest.mark.parametrize("codec", KINDS)
def test_vectors_are_those_of_the_python_api(cache: Cache, codec: str) -> None:
    found = {row["key"]: row for row in ask(cache, f"SELECT * FROM vectors WHERE teacher = '{codec}'")}
    rows = [found[key(text)] for text in TEXTS]
    given = np.array([row["vector"] for row in rows], np.float32)
    assert given.tobytes() == vectors_of(cache, codec, TEXTS).tobytes()
    assert [(row["tokens"], row["truncated"]) for row in rows] == [(n, n >= 9) for n in WORDS]
    store = cache.store(cache.teacher(codec).contract)
    shards = {bytes(k): shard.name for shard in store.shards for k in shard.keys}
    assert {k: row["shard"] for k, row in found.items()} == shards
    assert {(row["codec"], row["contract"]) for row in rows} == {(codec, store.contract.id)}


def test_teachers_shards_and_corpora_are_described(cache: Cache) -> None:
    for row in ask(cache, "FROM teachers"):
        store = cache.store(cache.teacher(row["teacher"]).contract)
        contract = {name: value for name, value in store.contract.to_json().items() if name != "version"}
        own = {"vectors": ROWS - 1, "shards": 2, "bytes": store.bytes_on_disk, "store": KINDS[row["teacher"]]}
        assert row.items() >= (contract | own).items()
        assert json.loads(row["origin"]) == {"spec": row["teacher"]}
    shards = ask(cache, "FROM shards WHERE codec = 'pq'")
    assert sum(row["rows"] for row in shards) == ROWS - 1
    assert all(row["codebook"] and 0.5 < row["worst_cosine"] <= row["mean_cosine"] < 1 for row in shards)
    assert json.loads(shards[0]["provenance"]) == {"compute_dtype": "float32"}
    assert ask(cache, "SELECT corpus, rows, digest FROM corpora WHERE has_labels AND has_ids") == [
        {"corpus": "news", "rows": ROWS, "digest": cache.corpus("news").info.digest}
    ]


def test_a_key_of_two_shards_shows_once_as_the_store_answers(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "c", [*TEXTS[:20], "no vector"])
    add_teacher(cache, "t", [batch(TEXTS[:20], seed=1), batch([*TEXTS[:20], "more"], seed=2)])
    found = ask(cache, "SELECT text, vector FROM rows LEFT JOIN vectors USING (key) ORDER BY row")
    given = np.array([row["vector"] for row in found[:-1]], np.float32)
    assert given.tobytes() == cache.lookup(TEXTS[:20]).tobytes()
    assert found[-1] == {"text": "no vector", "vector": None}


def test_views_of_other_rows_are_left_out_and_damage_is_an_error(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c")
    recipe = cache.corpora_folder / "plain" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    assert ask(cache, "SELECT DISTINCT corpus FROM views") == [{"corpus": "news"}]
    part = next((cache.corpora_folder / "plain").glob("*.arrow"))
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(CorruptCacheError):
        ask(cache, "FROM rows")


# fmt: off
FORBIDDEN = [
    "FROM '{0}'", "FROM read_csv('{0}')", "FROM query('FROM read_text(''{0}'')')",
    "SELECT (SELECT max(content) FROM read_text('{0}'))", "FROM glob('/*')", "FROM a_python_variable",
    "SELECT getenv('HOME')", "FROM enable_logging(storage = 'file', storage_path = '{1}/log')",
    "EXPLAIN ANALYZE COPY rows TO '{1}/x.csv'", "COPY rows TO '{1}/x.csv'", "ATTACH '{1}/x.db'",
    "INSTALL httpfs", "LOAD '{0}'", "SET enable_external_access = true", "RESET lock_configuration",
    "CREATE SECRET (TYPE s3)", "DROP VIEW rows", "SELECT 1; SELECT 2", "-- nothing",
]
ALLOWED = [
    "VALUES (1)", "SUMMARIZE shards", "EXPLAIN FROM rows", "SELECT * FROM range(3), unnest([1, 2])",
    "PIVOT rows ON corpus IN ('news', 'plain') USING count(*) GROUP BY label",
    "SELECT 'DROP TABLE rows; -- not one' AS text;",
]
# fmt: on


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_a_statement_reaches_nothing_but_the_cache(cache: Cache, tmp_path: Path, sql: str) -> None:
    a_python_variable = pa.table({"a": [1]})
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(InputError):
        query(cache, sql.format(secret, tmp_path))
    assert list(tmp_path.iterdir()) == [secret]
    assert len(a_python_variable) == 1


@pytest.mark.parametrize("sql", ALLOWED)
def test_every_select_is_answered(cache: Cache, sql: str) -> None:
    assert query(cache, sql).num_rows > 0


def test_rows_come_before_the_last_is_computed_and_columns_of_one_name_are_numbered(cache: Cache) -> None:
    with open_query(cache.folder, "SELECT i FROM range(1000000000000) t(i)") as result:
        assert next(result.batches).num_rows <= 8192
    assert ask(cache, "SELECT 1 AS a, 2 AS a, 3 AS b") == [{"a": 1, "a_1": 2, "b": 3}]


def run(cache: Cache, *arguments: object) -> Result:
    words = [*map(str, arguments), "--cache", str(cache.folder)]
    return CliRunner().invoke(query_command, words)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_files_read_back_equal(cache: Cache, tmp_path: Path, ending: str) -> None:
    sql = (
        "SELECT row, key, text, vector, row > 1 AS late, NULL AS gap FROM rows JOIN vectors USING (key) "
        "WHERE corpus = 'news' AND teacher = 'int8' ORDER BY row"
    )
    target, expected = tmp_path / f"x.{ending}", ask(cache, sql)
    outcome = run(cache, sql, "--out", target)
    assert (outcome.exit_code, outcome.stdout, f"{ROWS} rows" in outcome.stderr) == (0, "", True)
    if ending == "parquet":
        assert pq.read_table(target).to_pylist() == expected
        return
    expected = [{**row, "key": row["key"].hex()} for row in expected]
    content = target.read_text(encoding="utf-8")
    if ending == "jsonl":
        assert run(cache, sql, "--json").stdout == content
        assert [json.loads(line) for line in content.splitlines()] == expected
        return
    for found, row in zip(csv.DictReader(content.splitlines()), expected, strict=True):
        assert (found["text"], found["key"], found["gap"]) == (row["text"], row["key"], "")
        assert (json.loads(found["vector"]), json.loads(found["late"])) == (row["vector"], row["late"])


def test_the_table_is_cut_and_harmless(cache: Cache, tmp_path: Path) -> None:
    shown = run(cache, "SELECT row, vector FROM rows JOIN vectors USING (key)").stdout
    assert "50 rows; there are more" in shown
    assert "… 8]" in shown
    odd = Cache.create(tmp_path / "c")
    add_corpus(odd, "odd", ["\x1b[2Jgone [bold]not markup[/]", "x" * 500])
    shown = run(odd, "FROM rows").stdout
    assert "[bold]" in shown
    assert not any(text in shown for text in ("\x1b", "x" * 100))


def test_files_are_replaced_only_when_asked_and_appear_whole(cache: Cache, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    target.write_text("mine")
    assert isinstance(run(cache, "SELECT 1", "--out", target).exception, InputError)
    late = run(cache, "SELECT error('x') FROM rows", "--out", target, "--overwrite")
    assert isinstance(late.exception, InputError)
    assert (target.read_text(), list(tmp_path.iterdir())) == ("mine", [target])
    assert run(cache, "SELECT 1 AS a", "--out", target, "--overwrite").exit_code == 0
    assert target.read_text() == "a\n1\n"
    assert run(cache, "SELECT 1", "--out", "x.txt").exit_code == 2


def test_ctrl_c_ends_a_query(cache: Cache) -> None:
    sql = "SELECT count(*) FROM range(1000000000000) WHERE hash(range) % 7 = 5"
    command = [sys.executable, "-m", "embedcache", "query", sql, "--cache", str(cache.folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=_heed_ctrl_c) as program:
        try:
            # Imports take less processor time, mostly; what arrives in one may be lost in it.
            while psutil.Process(program.pid).cpu_times().user < 4:
                time.sleep(0.05)
            for _ in range(30):
                program.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    program.wait(2)
                    break
            assert program.returncode == 130
        finally:
            program.kill()


def _heed_ctrl_c() -> None:
    # Shells let processes in the background ignore it, and a thread's blocked signals are inherited.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


WHERE = {
    "true": range(ROWS),
    "row IN (5, 3) -- a comment": [3, 5],
    "id = 'id-7' OR label = 1 AND row < 5": [1, 4, 7],
    "text LIKE '%kůň%'": [ROWS - 2],
    "characters = (SELECT max(characters) FROM rows WHERE corpus = 'news') AND row < 0": [],
    "key IN (SELECT key FROM rows WHERE corpus = 'plain')": [0, 1, 2, 3, 4, ROWS - 1],
    "text = 'random()'": [],
    "NOT truncated AND label = 0": [n for n in range(ROWS) if WORDS[n] < 9 and LABELS[n] == 0],
    "tokens IS NULL": [],
}


def test_a_condition_selects_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_parts(monkeypatch, rows=40)
    cache = make_cache(tmp_path / "c")
    assert len(cache.corpus("news").parts) > 1
    for where, rows in WHERE.items():
        assert select_rows(cache, "news", where, teacher="int8").tolist() == list(rows), where


def test_rows_without_a_vector_have_no_tokens(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "c", TEXTS[:10])
    add_teacher(cache, "t", [batch(TEXTS[:4])])
    assert select_rows(cache, None, "tokens > 0").tolist() == [0, 1, 2, 3]
    assert select_rows(cache.folder, None, "tokens IS NULL").tolist() == [4, 5, 6, 7, 8, 9]


# fmt: off
NO_CONDITIONS = {
    "": "Parser", "row": "BIGINT", "row < 3, true": "BOOLEAN, BOOLEAN", "row < 3) OR (true": "syntax",
    "true UNION SELECT 1": "condition", "sum(row) > 1": "aggregate", "random() < 0.5": "random",
    "nope > 1": "row, key, text, id, label, characters", "current_date > '2020-01-01'": "current_date",
    "text IN (SELECT content FROM read_text('/etc/hostname'))": "Permission",
    "text::INTEGER = 1": "Conversion", "tokens > 1": "several teachers",
}
# fmt: on


@pytest.mark.parametrize("where", NO_CONDITIONS)
def test_an_invalid_condition_is_refused(cache: Cache, where: str) -> None:
    with pytest.raises(EmbedCacheError, match=NO_CONDITIONS[where]):
        select_rows(cache, "news", where)
