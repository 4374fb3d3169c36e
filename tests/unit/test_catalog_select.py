"""``select_rows``: the rows a predicate picks, and what is no predicate."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from catalog_helpers import LABELS, ROWS, TEXTS, add_corpus, add_teacher, batch, make_cache

from embedcache.cache import Cache
from embedcache.catalog import select_rows
from embedcache.corpus import part
from embedcache.errors import InputError
from embedcache.keys import key
from embedcache.store.store import ShardStore

WORDS = [len(text.split()) for text in TEXTS]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("select") / "c")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("label = 1", [row for row in range(ROWS) if LABELS[row] == 1]),
        ("row >= 5 AND row < 8", [5, 6, 7]),
        ("id IN ('id-3', 'id-300')", [3, 300]),
        ("text LIKE '%kůň%'", [ROWS - 2]),
        ("characters > 45", [row for row, text in enumerate(TEXTS) if len(text) > 45]),
        (f"key = from_hex('{key(TEXTS[0]).hex()}')", [0, ROWS - 1]),
        ("key IN (SELECT key FROM rows WHERE corpus = 'plain')", [0, 1, 2, 3, 4, ROWS - 1]),
        ("label = 1 OR NULL", [row for row in range(ROWS) if LABELS[row] == 1]),
        ("hash(key) % 1 = 0", list(range(ROWS))),
        ("row < 0", []),
        ("row = 7 -- the seventh", [7]),
        ("row = (SELECT max(row) FROM rows)", [ROWS - 1]),
    ],
)
def test_the_rows_for_which_it_holds_come_in_order(cache: Cache, where: str, rows: list[int]) -> None:
    found = select_rows(cache, "news", where)
    assert found.dtype == np.int64
    assert found.tolist() == rows


def test_tokens_and_truncation_are_a_teachers(cache: Cache) -> None:
    found = select_rows(cache, "news", "truncated", teacher="int8").tolist()
    assert found == [row for row in range(ROWS) if WORDS[row] >= 9]
    found = select_rows(cache, "news", "NOT truncated AND tokens > 6 AND label = 0", teacher="pq").tolist()
    assert found == [row for row in range(ROWS) if 6 < WORDS[row] < 9 and LABELS[row] == 0]
    assert 0 < len(found) < ROWS


def test_a_teacher_is_opened_only_where_its_columns_are_used(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*arguments: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Cache, "store", closed)
    assert select_rows(cache, "news", "row = 3", teacher="int8").tolist() == [3]
    assert select_rows(cache, "news", "text = 'tokens'", teacher="int8").tolist() == []
    with pytest.raises(AssertionError, match="opened"):
        select_rows(cache, "news", "tokens > 3", teacher="int8")


def test_the_only_teacher_need_not_be_named(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="several teachers"):
        select_rows(cache, "news", "tokens > 3")
    alone = Cache.create(tmp_path / "c")
    add_corpus(alone, "news", TEXTS)
    add_teacher(alone, "only", [batch(TEXTS[:4])])
    # Rows without a vector have no tokens, which is neither true nor false.
    assert select_rows(alone, None, "tokens > 0").tolist() == [0, 1, 2, 3, ROWS - 1]
    assert select_rows(alone, None, "NOT tokens > 0").tolist() == []
    assert select_rows(alone, None, "tokens IS NULL").tolist() == list(range(4, ROWS - 1))


def test_many_parts_and_shards_give_the_same_rows(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "PART_ROWS", 17)
    cut = Cache.create(tmp_path / "c")
    assert len(add_corpus(cut, "news", TEXTS, labels=LABELS).parts) == 19
    add_teacher(cut, "int8", [batch(TEXTS[at : at + 23]) for at in range(0, ROWS, 23)], codec="int8")
    for where in ("label = 1 AND tokens > 5", "truncated", "characters % 2 = 0"):
        given = select_rows(cut, "news", where)
        assert len(given)
        assert given.tolist() == select_rows(cache, "news", where, teacher="int8").tolist()


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("1; DROP VIEW rows", "syntax error"),
        ("true); DROP VIEW rows; SELECT (true", "Only SELECT statements"),
        ("true); SELECT (true", "not one whole expression"),
        ("row > 1) UNION SELECT (true", "not one whole expression"),
        ("row > 1 ORDER BY row", "syntax error"),
        ("true) ORDER BY (row", "not one whole expression"),
        ("true) LIMIT (1", "not one whole expression"),
        ("row > 1) FROM (rows", "not one whole expression|syntax error"),
        ("true) WHERE (true", "not one whole expression"),
        ("true) GROUP BY (row", "not one whole expression"),
        ("true), (true", "not one whole expression"),
        ("row > 1) OR (row < 9", "not one whole expression"),
        ("row > 1, row < 3", "it gives (TUPLE|STRUCT)|not one whole expression"),
        ("*", "expected true or false|expression"),
        ("COLUMNS(*) = COLUMNS(*)", "BOOLEAN, BOOLEAN.*, expected true or false"),
        ("", "not one whole expression"),
        ("-- nothing", "not one whole expression"),
        ("row > 1 /*", "unterminated"),
        ("DELETE FROM rows", "syntax error"),
        ("row = ?", "not one whole expression"),
        ("row IN (WITH t AS (DELETE FROM rows RETURNING row) FROM t)", "kind DELETE|needs a SELECT"),
        ("row", "it gives BIGINT, expected true or false"),
        ("text", "it gives VARCHAR, expected true or false"),
        ("NULL", "expected true or false"),
        ("count(*) > 1", "[Aa]ggregates"),
        ("sum(row) OVER () > 1", "cannot contain window functions"),
        ("nope = 1", 'column "nope" not found.*the columns are row, key, text, id, label, characters'),
        ("corpus = 'news'", 'column "corpus" not found'),
        ("text::INTEGER > 3", "Could not convert string"),
        ("random() < 0.1", r"random\(\) gives other rows every time"),
        ("row > 3 AND current_date > DATE '2020-01-01'", "gives other rows every time"),
        ("EXISTS (FROM read_csv('/etc/passwd'))", "reading from the function read_csv is refused"),
        ("EXISTS (FROM '/etc/passwd')", "does not exist"),
    ],
)
def test_what_is_no_predicate_is_refused(cache: Cache, where: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"is no condition on rows: .*{reason}") as caught:
        select_rows(cache, "news", where, teacher="int8")
    assert "\n" not in str(caught.value)


def test_columns_that_a_corpus_lacks_are_told(cache: Cache) -> None:
    with pytest.raises(InputError, match="the corpus has no labels; the columns are row, key"):
        select_rows(cache, "plain", "label = 1")
    with pytest.raises(InputError, match="no corpus 'other'"):
        select_rows(cache, "other", "row = 1")


def test_texts_are_not_held(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise AssertionError("texts were read into Python")

    monkeypatch.setattr("embedcache.corpus.corpus.Corpus.texts", forbidden)
    monkeypatch.setattr("embedcache.corpus.corpus.Corpus.iter_texts", forbidden)
    monkeypatch.setattr(ShardStore, "gather", forbidden)
    assert select_rows(cache, "news", "text LIKE '%kůň%' AND tokens = 3", teacher="pq").tolist() == [ROWS - 2]


def test_a_copy_of_the_cache_gives_the_same_rows(cache: Cache, tmp_path: Path) -> None:
    shutil.copytree(cache.folder, tmp_path / "copy")
    where = "hash(key) % 3 = 0"
    found = select_rows(tmp_path / "copy", "news", where)
    assert found.tolist() == select_rows(cache, "news", where).tolist()
    assert 0 < len(found) < ROWS
