"""Triples from files: columns, skipped rows, held-out rows, and batches."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distill.data.source import Share
from distill.data.triples import Triples, TripleSource, read_sentences, read_triples, tokenise
from distill.errors import DataError
from embedcache.errors import MissingInputError

pytest_plugins = ["distill_fixtures"]

ROWS = [("a cat", "an animal", "a stone"), ("a dog", "a beast", "two cats"), ("a man", "a person", "a dog")]
COLUMNS = tuple(list(column) for column in zip(*ROWS, strict=True))


def tsv(path, rows=ROWS, header=("anchor", "positive", "negative")):
    path.write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    return path


def test_every_format_gives_the_same_rows(tmp_path):
    names = ("anchor", "positive", "negative")
    tsv(tmp_path / "t.tsv")
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress((tmp_path / "t.tsv").read_bytes()))
    (tmp_path / "t.csv").write_text("\n".join(",".join(row) for row in [names, *ROWS]))
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table(dict(zip(names, COLUMNS, strict=True))), tmp_path / "t.parquet")
    for name in ("t.tsv", "t.tsv.gz", "t.csv", "t.jsonl", "t.parquet"):
        found = read_triples(tmp_path / name)
        assert found.columns == COLUMNS, name
        assert (found.name, found.described) == ("t", "")


@pytest.mark.parametrize(
    ("header", "width"),
    [
        (("anchor", "positive", "negative"), 3),
        (("premise", "entailment", "contradiction"), 3),
        (("anchor", "positive", "score"), 2),
        (("premise", "entailment", "label"), 2),
    ],
)
def test_known_columns_are_found(tmp_path, header, width):
    assert read_triples(tsv(tmp_path / "t.tsv", header=header)).columns == COLUMNS[:width]


def test_columns_are_taken_as_they_are_named(tmp_path):
    path = tsv(tmp_path / "t.tsv", header=("x", "y", "z"))
    assert read_triples(path, columns=["z", "x"]).columns == (COLUMNS[2], COLUMNS[0])
    with pytest.raises(MissingInputError, match=r"'w'.*x, y, z.*column"):
        read_triples(path, columns=["x", "w", "z"])
    with pytest.raises(DataError, match=r"x, y, z.*column"):
        read_triples(path)


def test_bad_rows_are_skipped_and_counted_by_reason(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [
        ROWS[0],
        ("", "b", "c"),
        ("a", " ", "c"),
        ("a", "b"),
        ("a", "same", "same"),
        ROWS[0],
        ("a", "b", "nul\0"),
        ROWS[1],
    ]
    tsv(path, rows)
    found = read_triples(path)
    assert found.columns == tuple(column[:2] for column in COLUMNS)
    assert len(read_triples(path, limit=2).columns[0]) == 2
    assert found.skipped == {
        "empty": 2,
        "wrong number of columns": 1,
        "hard negative that is the positive": 1,
        "repeated row": 1,
        "nul byte": 1,
    }
    assert f"2 empty (first at {path}:3)" in found.described
    pq.write_table(
        pa.table({"anchor": ["a", "b", None], "positive": ["c", "d", "e"]}), tmp_path / "t.parquet"
    )
    assert read_triples(tmp_path / "t.parquet").skipped == {"null": 1}


def test_unusable_files_are_refused(tmp_path):
    with pytest.raises(MissingInputError, match="does not exist"):
        read_triples(tmp_path / "nowhere.tsv")
    with pytest.raises(DataError, match="not one file"):
        read_triples("-")
    with pytest.raises(DataError, match=r"holds 0 usable rows"):
        read_triples(tsv(tmp_path / "header.tsv", []))
    with pytest.raises(DataError, match=r"holds 1 usable rows.*1 empty"):
        read_triples(tsv(tmp_path / "one.tsv", [ROWS[0], ("", "", "")]))
    (tmp_path / "t.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="column"):
        read_triples(tmp_path / "t.txt")
    pq.write_table(pa.table({"anchor": [1, 2], "positive": ["c", "d"]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match="2 not a string"):
        read_triples(tmp_path / "n.parquet")


def test_sentences_are_read_once_each(tmp_path):
    (tmp_path / "s.txt").write_text("one\n\ntwo\none\n")
    found = read_sentences(tmp_path / "s.txt")
    assert found.columns == (["one", "two"],)
    assert found.skipped == {"empty": 1, "repeated row": 1}
    assert read_sentences(tsv(tmp_path / "t.tsv"), column="positive").columns == (COLUMNS[1],)


def test_an_anchor_is_held_out_with_all_its_rows():
    anchors = [f"anchor {number // 3}" for number in range(60)]
    rows = Triples("t", (anchors, [f"positive {number}" for number in range(60)]))
    kept, held_out = rows.split(5, seed=1)
    assert (len(kept), len(held_out)) == (45, 15)
    assert not set(kept.columns[0]) & set(held_out.columns[0])
    assert sorted(kept.columns[1] + held_out.columns[1]) == sorted(rows.columns[1])
    assert rows.split(5, seed=1)[1] == held_out
    assert rows.split(5, seed=2)[1] != held_out


def test_the_digest_depends_on_every_text_and_on_its_place():
    digest = Triples("t", COLUMNS).digest
    assert Triples("other", COLUMNS).digest == digest
    assert Triples("t", COLUMNS[::-1]).digest != digest
    assert Triples("t", (["ab", "c"], ["d", "e"])).digest != Triples("t", (["a", "bc"], ["d", "e"])).digest


def test_overlap_counts_rows_and_looks_past_case_and_punctuation():
    rows = Triples("t", COLUMNS)
    assert rows.overlap(["A dog."]) == 2
    assert rows.overlap(["A, cat!", "two cats", "an"]) == 2
    assert rows.overlap([]) == 0


def test_a_batch_holds_anchors_then_positives_then_negatives(tokenizer):
    texts = tuple([f"{'the cat ' * n}{name}" for n in range(1, 7)] for name in ("man", "dog", "bird"))
    source = TripleSource(tokenise(texts, tokenizer), 3)
    np.testing.assert_array_equal(source.lengths, tokenizer(texts[0]).lengths)
    rows = np.array([4, 0, 2], dtype=np.uint32)
    (batch,) = source.prepare([rows], 0, Share())
    flat = [texts[column][row] for column in range(3) for row in rows]
    tokens = tokenizer(flat)
    assert batch.texts == 3
    assert len(batch) == 3
    for number in range(9):
        ids = tokens.ids[tokens.offsets[number] : tokens.offsets[number + 1]]
        assert batch.input_ids[number][batch.attention_mask[number].bool()].tolist() == ids.tolist()
    assert batch.rows.tolist() == rows.tolist()


def test_a_text_alone_stands_twice_in_its_batch(tokenizer):
    source = TripleSource(tokenise([["a cat", "the dog"]], tokenizer), 2)
    (batch,) = source.prepare([np.array([1, 0])], 0, Share())
    assert batch.input_ids.shape[0] == 4
    assert batch.input_ids[:2].equal(batch.input_ids[2:])
    assert not batch.input_ids[0].equal(batch.input_ids[1])


def test_tokens_of_many_texts_are_those_of_each(tokenizer, monkeypatch):
    monkeypatch.setattr("distill.data.triples._TEXTS_AT_ONCE", 4)
    texts = [f"the cat {'and the dog ' * (number % 5)}" for number in range(11)]
    seen: list[int] = []
    (arrays,) = tokenise([texts], tokenizer, seen.append)
    assert seen == [4, 8, 11]
    tokens = tokenizer(texts)
    np.testing.assert_array_equal(arrays.ids, tokens.ids)
    np.testing.assert_array_equal(arrays.offsets, tokens.offsets)
