"""``embedcache query``: what is refused, what is printed, and files that read back equal."""
# ruff: noqa: S608 - the statements are made here

from __future__ import annotations

import csv
import datetime
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from catalog_helpers import ROWS, TEXTS, add_corpus, make_cache, vectors_of
from click.testing import CliRunner, Result

from embedcache.cache import Cache
from embedcache.catalog import COLUMNS, connect, query, select_rows, stats
from embedcache.catalog.connection import interruptible
from embedcache.catalog.output import place, plain, write_file
from embedcache.catalog.stats import compute_stats
from embedcache.cli.query import query_command
from embedcache.errors import EmbedCacheError, InputError, StorageError
from embedcache.keys import key


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("query") / "c")


def run(cache: Cache, *arguments: object) -> Result:
    words = [*map(str, arguments), "--cache", str(cache.folder)]
    return CliRunner().invoke(query_command, words)


def output(cache: Cache, *arguments: object) -> str:
    outcome = run(cache, *arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def refusal(cache: Cache, sql: str) -> str:
    with pytest.raises(InputError) as caught:
        query(cache, sql).table()
    assert caught.value.exit_code == 2
    return str(caught.value)


REFUSED = {
    "CREATE TABLE x (i INTEGER)": "CREATE",
    "CREATE VIEW x AS FROM rows": "CREATE",
    "CREATE MACRO f(x) AS x": "CREATE",
    "CREATE SECRET (TYPE s3)": "CREATE",
    "INSERT INTO rows VALUES (1)": "INSERT",
    "UPDATE rows SET row = 1": "UPDATE",
    "DELETE FROM rows": "DELETE",
    "TRUNCATE rows": "DELETE",
    "MERGE INTO rows USING rows b ON true WHEN MATCHED THEN DELETE": "MERGE INTO",
    "DROP VIEW rows": "DROP",
    "ALTER VIEW rows RENAME TO x": "ALTER",
    "COMMENT ON VIEW rows IS 'x'": "ALTER",
    "COPY rows TO 'x.csv'": "COPY",
    "COPY (SELECT 1) TO '/dev/stdout'": "COPY",
    "EXPORT DATABASE 'x'": "EXPORT",
    "ATTACH 'x.db'": "ATTACH",
    "DETACH memory": "DETACH",
    "INSTALL httpfs": "LOAD",
    "LOAD httpfs": "LOAD",
    "LOAD '/tmp/x.so'": "LOAD",
    "SET threads = 3": "SET",
    "SET VARIABLE a = 1": "SET",
    "RESET threads": "SET",
    "USE memory": "SET",
    "PRAGMA disable_optimizer": "PRAGMA",
    "CALL pragma_version()": "CALL",
    "CHECKPOINT": "CALL",
    "VACUUM": "VACUUM",
    "BEGIN": "TRANSACTION",
    "PREPARE p AS SELECT 1": "PREPARE",
    "EXECUTE p": "EXECUTE",
    "EXPLAIN ANALYZE INSERT INTO rows VALUES (1)": "INSERT",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_not_select_is_refused_by_its_kind(cache: Cache, sql: str) -> None:
    message = refusal(cache, sql)
    assert message.startswith(f"a statement of kind {REFUSED[sql]} is refused: expected one SELECT")


@pytest.mark.parametrize(
    "sql",
    [
        "WITH t AS (INSERT INTO rows VALUES (1) RETURNING row) SELECT * FROM t",
        "SELECT * FROM (WITH t AS (DELETE FROM rows RETURNING *) SELECT * FROM t)",
    ],
)
def test_a_statement_inside_another_is_refused(cache: Cache, sql: str) -> None:
    # Older versions of DuckDB do not know such statements.
    assert re.match(
        "a statement of kind (INSERT|DELETE) is refused|Parser Error: A CTE needs a SELECT",
        refusal(cache, sql),
    )


@pytest.mark.parametrize(
    "function",
    [
        "read_csv('{0}')",
        "read_text('{0}')",
        "read_blob('{0}')",
        "read_json('{0}')",
        "read_parquet('{0}')",
        "parquet_metadata('{0}')",
        "sniff_csv('{0}')",
        "glob('{0}')",
    ],
)
def test_reading_files_is_refused(cache: Cache, tmp_path: Path, function: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    message = refusal(cache, f"SELECT * FROM {function.format(secret)}")
    assert message.startswith(f"reading from the function {function.split('(')[0]} is refused: expected one")


@pytest.mark.parametrize(
    "sql",
    [
        "FROM '{0}'",
        'FROM "{0}"',
        "SELECT getenv('HOME')",
        "FROM not_a_view",
        "SELECT content FROM query('SELECT * FROM read_text(''{0}'')')",
        "FROM enable_logging()",
        "FROM duckdb_secrets()",
        "FROM rows, LATERAL (SELECT * FROM glob('/*'))",
        "SELECT (SELECT max(content) FROM read_text('{0}'))",
        "WITH t AS (FROM read_csv('{0}')) FROM rows",
    ],
)
def test_there_is_no_other_way_out_either(cache: Cache, tmp_path: Path, sql: str) -> None:
    not_a_view = pa.table({"a": [1]})
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    refusal(cache, sql.format(secret))
    assert len(not_a_view) == 1


def test_several_statements_are_refused(cache: Cache) -> None:
    assert refusal(cache, "SELECT 1; SELECT 2").startswith("2 statements were given (SELECT, SELECT)")
    assert refusal(cache, "SELECT 1; DROP VIEW rows").startswith("2 statements were given (SELECT, DROP)")
    assert refusal(cache, " -- nothing").startswith("no statement was given")
    with query(cache, "SELECT 1 AS a;") as result:
        assert result.table().to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("sql", "reason", "views"),
    [
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"', ()),
        ("SELECT nope FROM rows", 'Binder Error: Referenced column "nope" not found', ("rows",)),
        ("SELECT x FROM rows, shards", 'Binder Error: Referenced column "x" not found', ("rows", "shards")),
        ("SELECT text::INTEGER FROM rows", "Conversion Error: Could not convert string", ("rows",)),
        ("SELECT error('late') FROM rows WHERE row = 200", "Invalid Input Error: late", ("rows",)),
        ("SELECT * FROM vektors", "Catalog Error: Table with name vektors does not exist", ()),
    ],
)
def test_an_error_is_duckdbs_own_in_one_line_with_the_columns(
    cache: Cache, sql: str, reason: str, views: tuple[str, ...]
) -> None:
    message = refusal(cache, sql)
    assert message.startswith(reason)
    assert "\n" not in message
    assert "LINE 1" not in message
    for view, columns in COLUMNS.items():
        assert (f"{view}({', '.join(columns)})" in message) == (view in views)
    if not views:
        assert (
            "the views are rows, views, vectors, shards, teachers, corpora; 'DESCRIBE rows' lists" in message
        )


def test_a_query_that_needs_more_memory_says_how_to_allow_it(cache: Cache) -> None:
    sql = "SELECT a.text, b.text FROM rows a, rows b ORDER BY hash(a.text || b.text)"
    with (
        pytest.raises(InputError, match="Out of Memory") as caught,
        query(cache, sql, memory="1MB") as result,
    ):
        result.table()
    assert str(caught.value).endswith("; allow more with --memory")
    # DuckDB's own advice is for its shell: SET is refused here.
    assert "SET " not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "VALUES (1)",
        "FROM rows",
        "DESCRIBE rows",
        "SHOW TABLES",
        "SUMMARIZE shards",
        "WITH a AS (SELECT 1 AS x) FROM a",
        "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x < 3) FROM a",
        "SELECT 1 UNION SELECT 2",
        "PIVOT rows ON corpus IN ('news', 'plain') USING count(*) GROUP BY label",
        "SELECT 'DROP TABLE rows; -- not one' AS text",
        "SELECT * FROM range(3), unnest([1, 2])",
    ],
)
def test_whatever_selects_is_answered(cache: Cache, sql: str) -> None:
    with query(cache, sql) as result:
        assert result.table().num_rows > 0


def test_columns_of_one_name_are_numbered(cache: Cache) -> None:
    with query(cache, "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS b") as result:
        assert result.schema.names == ["a", "a_1", "a_1_1", "b"]
        assert result.table().to_pylist() == [{"a": 1, "a_1": 2, "a_1_1": 3, "b": 4}]


def test_rows_come_in_batches_that_do_not_wait_for_the_last(cache: Cache) -> None:
    with query(cache, "SELECT i FROM range(1000000000000) t(i)", threads=1) as result:
        assert next(iter(result)).num_rows <= 8192


SQL = (
    "SELECT r.row, r.key, text, id, label, vector, truncated, 1.5 AS half, NULL AS gap "
    "FROM rows r JOIN vectors v USING (key) WHERE corpus = 'news' AND teacher = 'int8' ORDER BY row"
)


def expected(cache: Cache) -> list[dict[str, Any]]:
    vectors = vectors_of(cache, "int8", TEXTS)
    return [
        {
            "row": row,
            "key": key(text),
            "text": text,
            "id": f"id-{row}",
            "label": row % 3,
            "vector": vectors[row].tolist(),
            "truncated": len(text.split()) >= 9,
            "half": 1.5,
            "gap": None,
        }
        for row, text in enumerate(TEXTS)
    ]


def test_json_reads_back_equal(cache: Cache, tmp_path: Path) -> None:
    wanted = [{**row, "key": row["key"].hex()} for row in expected(cache)]
    printed = output(cache, SQL, "--format", "json")
    assert [json.loads(line) for line in printed.splitlines()] == wanted
    for ending in ("json", "jsonl"):
        target = tmp_path / f"x.{ending}"
        assert output(cache, SQL, "--out", target) == ""
        assert target.read_text(encoding="utf-8") == printed


def test_csv_reads_back_equal(cache: Cache, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    output(cache, SQL, "--out", target)
    with target.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    wanted = expected(cache)
    assert [(row["text"], row["id"], row["key"]) for row in rows] == [
        (row["text"], row["id"], row["key"].hex()) for row in wanted
    ]
    assert [json.loads(row["vector"]) for row in rows] == [row["vector"] for row in wanted]
    assert {row["truncated"] for row in rows} == {"true", "false"}
    assert {(row["half"], row["gap"]) for row in rows} == {("1.5", "")}
    assert output(cache, SQL, "--format", "csv").splitlines() == target.read_text().splitlines()


def test_parquet_reads_back_equal(cache: Cache, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    outcome = run(cache, SQL, "--out", target)
    assert outcome.stderr.startswith(f"{ROWS} rows to {target}")
    table = pq.read_table(target)
    assert table.to_pylist() == expected(cache)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 8)
    assert pa.types.is_binary(table.schema.field("key").type)
    other = tmp_path / "no-ending"
    output(cache, SQL, "--out", other, "--format", "parquet")
    assert pq.read_table(other).equals(table)


def test_csv_quotes_what_needs_it(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    texts = ['said "no", twice', "two\nlines", "semi;colon", "tab\there"]
    add_corpus(cache, "odd", texts)
    printed = output(cache, "SELECT text, row FROM rows ORDER BY row", "--format", "csv")
    assert list(csv.reader(io.StringIO(printed))) == [
        ["text", "row"],
        *([t, str(i)] for i, t in enumerate(texts)),
    ]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("(SELECT sum(i) FROM range(5) t(i))", 10),
        ("1.50::DECIMAL(10, 2)", 1.5),
        ("'nan'::FLOAT", None),
        ("'-inf'::DOUBLE", None),
        ("DATE '2020-01-02'", "2020-01-02"),
        ("TIMESTAMP '2020-01-02 03:04:05'", "2020-01-02T03:04:05"),
        ("{'a': 1, 'b': 'ab'::BLOB}", {"a": 1, "b": "6162"}),
        ("[1.5::FLOAT, NULL]", [1.5, None]),
        ("true", True),
        ("18446744073709551615::UBIGINT", 2**64 - 1),
        ("''", ""),
        ("NULL", None),
    ],
)
def test_values_that_json_has_no_type_for(cache: Cache, sql: str, value: object) -> None:
    assert json.loads(output(cache, f"SELECT {sql} AS x", "--format", "json")) == {"x": value}


def test_plain_values_are_json() -> None:
    odd = {"a": (b"\x00\xff", [datetime.time(1, 2)]), "b": datetime.timedelta(days=1)}
    assert plain(odd) == {"a": ["00ff", ["01:02:00"]], "b": "1 day, 0:00:00"}
    assert plain(True) is True


def test_the_table_is_cut_and_says_so(cache: Cache) -> None:
    printed = output(
        cache,
        "SELECT text, key, vector FROM rows JOIN vectors USING (key) ORDER BY row, teacher",
        "--limit-rows",
        3,
    )
    assert "the first 3 rows, there are more: --limit-rows, " in printed
    assert printed.count(key(TEXTS[0]).hex()) == 3
    shown = ", ".join(f"{value:.6g}" for value in vectors_of(cache, "float16", TEXTS[:1])[0][:3])
    assert f"[{shown}, … 8]" in printed
    whole = output(cache, "SELECT row FROM rows WHERE corpus = 'plain'", "--limit-rows", 5)
    assert "\n5 rows, " in whole
    assert "more" not in whole
    assert "\n1 row, " in output(cache, "SELECT 1")
    assert "\n0 rows, " in output(cache, "SELECT 1 AS nothing WHERE false")
    assert "nothing" in output(cache, "SELECT 1 AS nothing WHERE false")


@pytest.mark.parametrize(
    ("sql", "cell"),
    [
        ("0.99999997::DOUBLE", "0.99999997"),
        ("1 / 3", "0.333333333"),
        ("['a', NULL]", '["a", null]'),
        ("{'a': 1.5}", '{"a": 1.5}'),
        ("1 < 2", "true"),
        ("NULL", ""),
    ],
)
def test_a_cell_of_the_table(cache: Cache, sql: str, cell: str) -> None:
    assert output(cache, f"SELECT {sql} AS x").splitlines()[3].strip("│ ") == cell


def test_numbers_stand_under_each_other_at_the_right(cache: Cache) -> None:
    lines = output(cache, "SELECT sum(row) AS a_long_name, 'x' AS another_name FROM rows").splitlines()
    assert lines[3].split("│")[1].startswith("   ")
    assert lines[3].split("│")[2].startswith(" x  ")


def test_the_table_cuts_long_texts_and_takes_the_sting_out_of_control_characters(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "odd", ["x" * 500, "[bold]not markup[/bold]", "esc \x1b[31m end"])
    printed = output(cache, "SELECT text FROM rows ORDER BY row")
    assert "x" * 79 + "…" in printed
    assert "x" * 80 not in printed
    assert "[bold]not markup[/bold]" in printed
    assert "\x1b" not in printed
    assert "esc \N{REPLACEMENT CHARACTER}[31m end" in printed


def test_a_file_that_is_there_is_kept(cache: Cache, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    target.write_text("mine")
    with query(cache, "SELECT 1 AS a") as result, pytest.raises(InputError, match="is there already"):
        write_file(result, target)
    assert target.read_text() == "mine"
    output(cache, "SELECT 1 AS a", "--out", target, "--overwrite")
    assert target.read_text().splitlines() == ["a", "1"]


def test_a_file_that_came_meanwhile_is_kept(tmp_path: Path) -> None:
    written, target = tmp_path / "written", tmp_path / "x.csv"
    written.write_text("new")
    target.write_text("somebody else's")
    with pytest.raises(InputError, match="is there already"):
        place(written, target, overwrite=False)
    assert target.read_text() == "somebody else's"


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_an_error_on_the_way_leaves_no_file(cache: Cache, tmp_path: Path, ending: str) -> None:
    sql = "SELECT CASE WHEN i = 50000 THEN 'no' ELSE '1' END::INTEGER AS x FROM range(100000) t(i)"
    with pytest.raises(InputError, match="Could not convert string 'no'"), query(cache, sql) as result:
        write_file(result, tmp_path / f"x.{ending}")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_no_file(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with query(cache, "SELECT 1") as result, pytest.raises(StorageError, match="the disk is full"):
        write_file(result, tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage(cache: Cache, tmp_path: Path) -> None:
    for arguments, message in (
        (("SELECT 1", "--format", "parquet"), "--format parquet needs --out FILE"),
        (("SELECT 1", "--format", "table", "--out", tmp_path / "x"), "a table is for the terminal"),
        (("SELECT 1", "--limit-rows", 0), "Invalid value for '--limit-rows'"),
        (("SELECT 1", "--threads", 0), "Invalid value for '--threads'"),
    ):
        outcome = run(cache, *arguments)
        assert outcome.exit_code == 2
        assert message in outcome.stderr
    outcome = run(cache, "SELECT 1", "--out", tmp_path / "x.xyz")
    assert isinstance(outcome.exception, EmbedCacheError)
    assert "does not say its format" in str(outcome.exception)
    outcome = run(cache, "SELECT 1", "--memory", "much")
    assert "--memory much was given" in str(outcome.exception)


ENDLESS = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b"


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "ask",
    [
        lambda cache: query(cache, ENDLESS).table(),
        lambda cache: select_rows(cache, "news", f"({ENDLESS}) > 1"),
        lambda cache: compute_stats(cache),
    ],
)
def test_ctrl_c_ends_a_statement_that_would_take_for_ever(
    cache: Cache, ask: Callable[[Cache], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_LENGTHS", ENDLESS)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt_what_takes_long() -> None:
        before: set[threading.Thread] = set()
        while True:
            # Statements run on threads of this name.
            at_work = {thread for thread in threading.enumerate() if thread.name == "query"}
            if at_work & before:
                signal.pthread_kill(main, signal.SIGINT)
                return
            before = at_work
            time.sleep(0.5)

    interrupter = threading.Thread(target=interrupt_what_takes_long, daemon=True)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        ask(cache)
    interrupter.join()


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_before_the_statement_has_begun_is_not_forgotten(cache: Cache) -> None:
    main = threading.main_thread().ident
    assert main is not None
    with closing(connect(cache, views=())) as connection:

        def late() -> None:
            time.sleep(0.2)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.3)
            connection.execute(ENDLESS).fetchall()

        with pytest.raises(KeyboardInterrupt):
            interruptible(connection, late)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("sql", [ENDLESS, "SELECT count(*) FROM range(1000000000000)"])
def test_ctrl_c_ends_the_command_with_one_line(cache: Cache, sql: str) -> None:
    arguments = ["embedcache", "query", sql, "--cache", str(cache.folder), "--threads", "1"]
    # Says when the statement is about to begin: starting Python takes a while on a busy machine.
    code = (
        f"import sys; sys.argv = {arguments}; import embedcache.catalog.query\n"
        # The package's attribute of this name is the function.
        "module = sys.modules['embedcache.catalog.query']\n"
        "check = module.check_select\n"
        "module.check_select = lambda *a: (check(*a), print('begins', flush=True))\n"
        "from embedcache.cli.main import main; main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        asked = time.monotonic()
        _, err = child.communicate()
    assert time.monotonic() - asked < 50
    assert child.returncode == 130
    assert err.strip().startswith("embedcache: interrupted; ")
    assert len(err.strip().splitlines()) == 1, err


def test_explain_draws_the_plan_of_a_select_and_of_nothing_else(cache: Cache) -> None:
    printed = output(cache, "EXPLAIN SELECT text FROM rows")
    assert "Projections: text" in printed
    assert len(printed.splitlines()) > 5
    assert "Total Time" in output(cache, " explain analyze\nSELECT count(*) FROM rows")
    assert "read_text is refused" in refusal(cache, "EXPLAIN SELECT * FROM read_text('/etc/hosts')")
    assert "INSERT is refused" in refusal(cache, "EXPLAIN ANALYZE INSERT INTO rows VALUES (1)")
    assert "EXPLAIN is refused" in refusal(cache, "EXPLAIN (FORMAT json) SELECT 1")
    assert "2 statements" in refusal(cache, "EXPLAIN SELECT 1; DROP VIEW rows")


def test_threads_and_memory_reach_duckdb(cache: Cache) -> None:
    sql = "SELECT current_setting('threads')::INTEGER AS t, current_setting('memory_limit') AS m"
    printed = json.loads(output(cache, sql, "--threads", 3, "--memory", "64MiB", "--format", "json"))
    assert printed == {"t": 3, "m": "64.0 MiB"}
