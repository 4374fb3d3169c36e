"""Reading corpora: every format and compression, every kind of bad input, and what must not be changed."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedcache.corpus import formats
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch, expand_sources, read_batches
from embedcache.corpus.sources import FORMATS, format_of
from embedcache.errors import InputError, MissingInputError

ENDINGS = {
    "text": ".txt",
    "jsonl": ".jsonl",
    "csv": ".csv",
    "tsv": ".tsv",
    "parquet": ".parquet",
    "arrow": ".arrow",
}
TEXTS = [
    "A man eats.",
    '"quoted" and, with a comma',
    "  kept blanks  ",
    "Žluťoučký kůň 🐎",
    "line\u2028separator\x0b",
]


def packed(data: bytes, codec: str) -> bytes:
    if codec == "gz":
        return gzip.compress(data, mtime=0)
    return pa.compress(data, codec="zstd", asbytes=True) if codec == "zst" else data


def ipc_bytes(table: pa.Table, *, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue()


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=3)
    return sink.getvalue()


def encoded(kind: str, texts: list[str]) -> bytes:
    """Return a file of the format, with the columns number, text and label beside each other."""
    numbers, labels = [str(i) for i in range(len(texts))], [i % 2 for i in range(len(texts))]
    if kind == "text":
        return "".join(f"{text}\n" for text in texts).encode()
    if kind == "jsonl":
        rows = zip(numbers, texts, labels, strict=True)
        return "".join(json.dumps({"number": n, "text": t, "label": y}) + "\n" for n, t, y in rows).encode()
    if kind == "csv":
        sink = io.StringIO(newline="")
        csv.writer(sink).writerows([("number", "text", "label"), *zip(numbers, texts, labels, strict=True)])
        return sink.getvalue().encode()
    if kind == "tsv":
        rows = zip(numbers, texts, labels, strict=True)
        return ("number\ttext\tlabel\n" + "".join(f"{n}\t{t}\t{y}\n" for n, t, y in rows)).encode()
    table = pa.table({"number": numbers, "text": texts, "label": labels})
    return parquet_bytes(table) if kind == "parquet" else ipc_bytes(table)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read(*paths: Path | str, **options: Any) -> tuple[list[str], ReadReport]:
    report = ReadReport()
    batches = list(read_batches(expand_sources(paths), ReadOptions(**options), report))
    texts = [text for batch in batches for text in batch.texts]
    assert report.rows == len(texts)
    return texts, report


def read_data(folder: Path, name: str, data: bytes, **options: Any) -> tuple[list[str], ReadReport]:
    return read(put(folder, name, data), **options)


class TestFormats:
    @pytest.mark.parametrize("codec", ["", "gz", "zst"])
    @pytest.mark.parametrize("kind", list(ENDINGS))
    def test_every_format_in_every_compression(self, tmp_path, kind, codec):
        name = f"rows{ENDINGS[kind]}" + (f".{codec}" if codec else "")
        texts, report = read_data(tmp_path, name, packed(encoded(kind, TEXTS), codec))
        assert texts == TEXTS
        assert not report.skipped

    @pytest.mark.parametrize("kind", [kind for kind in ENDINGS if kind != "text"])
    def test_ids_and_labels_stand_beside_their_texts(self, tmp_path, kind):
        path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, TEXTS))
        options = ReadOptions(id_column="number", label_column="label", text_column="text")
        (batch,) = read_batches([path], options, ReadReport())
        strings = kind in ("csv", "tsv")
        assert batch == RowBatch(
            TEXTS,
            ids=["0", "1", "2", "3", "4"],
            labels=["0", "1", "0", "1", "0"] if strings else [0, 1, 0, 1, 0],
        )
        assert {type(label) for label in batch.labels} == {str if strings else int}

    @pytest.mark.parametrize("codec", ["gz", "zst"])
    def test_compression_is_found_without_its_ending(self, tmp_path, codec):
        assert read_data(tmp_path, "rows.txt", packed(encoded("text", TEXTS), codec))[0] == TEXTS

    @pytest.mark.parametrize("codec", ["gz", "zst"])
    def test_compressed_members_one_after_another_are_one_file(self, tmp_path, codec):
        data = packed(b"one\n", codec) + packed(b"two\n", codec)
        assert read_data(tmp_path, f"rows.txt.{codec}", data)[0] == ["one", "two"]

    def test_arrow_streams_and_dictionary_and_large_and_view_columns(self, tmp_path):
        words = ["b", "a", None, "b", "c"]
        for column in (
            pa.array(words).dictionary_encode(),
            pa.array(words, pa.large_string()),
            pa.array(words, pa.string_view()),
            pa.array(words, pa.large_string()).dictionary_encode(),
        ):
            table = pa.table({"n": range(5), "text": column})
            for data in (ipc_bytes(table), ipc_bytes(table, stream=True)):
                texts, report = read_data(tmp_path, "rows.arrow", data)
                assert texts == ["b", "a", "b", "c"]
                assert report.skipped == {"null": 1}
        table = pa.table({"text": pa.array(words).dictionary_encode()})
        assert read_data(tmp_path, "rows.parquet", parquet_bytes(table))[0] == ["b", "a", "b", "c"]

    def test_files_of_different_formats_in_the_order_named(self, tmp_path):
        first = put(tmp_path, "z.jsonl", encoded("jsonl", ["one", "two"]))
        second = put(tmp_path, "a.txt.gz", packed(b"three\n", "gz"))
        third = put(tmp_path, "m.parquet", encoded("parquet", ["four"]))
        assert read(first, second, third)[0] == ["one", "two", "three", "four"]

    def test_batches_are_full_across_files_and_slices(self, tmp_path):
        files = [
            put(tmp_path, f"{i}.arrow", encoded("arrow", [f"{i} {j}" for j in range(5)])) for i in range(3)
        ]
        batches = list(read_batches(files, ReadOptions(), ReadReport(), batch_rows=4))
        assert [len(batch.texts) for batch in batches] == [4, 4, 4, 3]
        assert [t for batch in batches for t in batch.texts] == [
            f"{i} {j}" for i in range(3) for j in range(5)
        ]
        assert batches[0].ids is None
        assert batches[0].labels is None

    def test_the_chosen_format_beats_the_ending(self, tmp_path):
        path = put(tmp_path, "rows.csv", b'a "b\tc\nd\te\n')
        assert read(path, format="text")[0] == ['a "b\tc', "d\te"]
        assert read(path, format="tsv", text_column="c")[0] == ["e"]

    def test_every_ending_means_one_format(self):
        endings = [ending for known in FORMATS.values() for ending in known]
        assert len(endings) == len(set(endings))
        for kind, known in FORMATS.items():
            for ending in known:
                assert {format_of(Path(f"x{ending}{end}")) for end in ("", ".gz", ".zst")} == {kind}
                assert format_of(Path(f"X{ending}".upper())) == kind


class TestStandardInput:
    @pytest.fixture
    def feed(self, monkeypatch):
        def feed(data: bytes) -> io.BytesIO:
            buffer = io.BytesIO(data)
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))
            return buffer

        return feed

    @pytest.mark.parametrize("codec", ["", "gz", "zst"])
    @pytest.mark.parametrize("kind", list(ENDINGS))
    def test_every_format(self, feed, kind, codec):
        buffer = feed(packed(encoded(kind, TEXTS), codec))
        assert read("-", format=kind)[0] == TEXTS
        assert not buffer.closed

    def test_is_plain_text_unless_said_otherwise(self, feed):
        feed(b'{"text": "a"}\nb\n')
        assert read("-")[0] == ['{"text": "a"}', "b"]

    def test_positions_name_it(self, feed):
        feed(b"a\n\n")
        assert read("-")[1].first_skipped == {"empty": "<stdin>:2"}

    def test_beside_files(self, feed, tmp_path):
        feed(b"from stdin\n")
        path = put(tmp_path, "rows.txt", b"from a file\n")
        assert read(path, "-")[0] == ["from a file", "from stdin"]

    def test_arrives_in_small_pieces(self, monkeypatch):
        class Dripping(io.BytesIO):
            def read1(self, size=-1):
                return super().read1(min(size, 3))

        data = Dripping(gzip.compress(b"one\ntwo\n"))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
        assert read("-")[0] == ["one", "two"]


class TestSources:
    @pytest.fixture
    def tree(self, tmp_path):
        for name in ("b.txt", "a.txt", ".hidden.txt", "other.csv", "deep/c.txt", "deep/er/d.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            put(tmp_path, name, b"x\n")
        return tmp_path

    def names(self, tree: Path, *patterns: str) -> list[str]:
        return [str(Path(s).relative_to(tree)) for s in expand_sources([f"{tree}/{p}" for p in patterns])]

    def test_globs_are_sorted_and_stay_in_their_folder(self, tree):
        assert self.names(tree, "*.txt") == ["a.txt", "b.txt"]
        assert self.names(tree, "[bc].txt") == ["b.txt"]

    def test_two_stars_cross_folders(self, tree):
        assert self.names(tree, "**/*.txt") == ["a.txt", "b.txt", "deep/c.txt", "deep/er/d.txt"]

    def test_folders_are_no_matches(self, tree):
        assert self.names(tree, "*") == ["a.txt", "b.txt", "other.csv"]

    def test_the_order_of_the_patterns_is_kept(self, tree):
        assert self.names(tree, "other.csv", "deep/*.txt", "a.txt") == ["other.csv", "deep/c.txt", "a.txt"]

    def test_a_name_with_brackets_that_exists_is_itself(self, tree):
        put(tree, "[b].txt", b"x\n")
        assert self.names(tree, "[b].txt") == ["[b].txt"]

    def test_path_objects_and_standard_input(self, tree):
        assert expand_sources([tree / "a.txt", "-"]) == [tree / "a.txt", "-"]

    @pytest.mark.parametrize(
        ("pattern", "says"), [("nowhere.txt", "does not exist"), ("*.jsonl", "no file matches")]
    )
    def test_nothing_there(self, tree, pattern, says):
        with pytest.raises(MissingInputError, match=says) as caught:
            expand_sources([tree / "a.txt", tree / pattern])
        assert pattern in str(caught.value)

    @pytest.mark.parametrize("again", ["a.txt", "*.txt", "deep/../a.txt", "link.txt"])
    def test_a_file_named_twice_is_refused(self, tree, again):
        (tree / "link.txt").symlink_to(tree / "a.txt")
        with pytest.raises(InputError, match=r"a\.txt is named twice|link\.txt is named twice"):
            expand_sources([tree / "a.txt", tree / again])

    def test_standard_input_twice_no_pattern_and_folders_are_refused(self, tree):
        with pytest.raises(InputError, match="<stdin> is named twice"):
            expand_sources(["-", "-"])
        with pytest.raises(InputError, match="no input was named"):
            expand_sources([])
        with pytest.raises(InputError, match="is a folder"):
            expand_sources([tree / "deep"])

    def test_an_unknown_ending_asks_for_the_format(self, tmp_path):
        path = put(tmp_path, "rows.xlsx", b"a\n")
        with pytest.raises(InputError, match="--format"):
            read(path)
        assert read(path, format="text")[0] == ["a"]

    def test_an_unknown_format_lists_the_known_ones(self, tmp_path):
        with pytest.raises(InputError, match="unknown format 'xml'; expected one of text, jsonl"):
            read_data(tmp_path, "rows.txt", b"a\n", format="xml")

    def test_a_file_that_went_away(self, tmp_path):
        for name in ("gone.txt", "gone.parquet", "gone.arrow"):
            with pytest.raises(MissingInputError, match="does not exist"):
                list(read_batches([tmp_path / name], ReadOptions(), ReadReport()))


class TestPlainText:
    def test_line_endings_and_byte_order_mark_come_off_and_nothing_else(self, tmp_path):
        data = b"\xef\xbb\xbffirst\r\n \tsecond \xef\xbb\xbf\nthird\rstill third\r\r\nlast"
        texts, report = read_data(tmp_path, "rows.txt", data)
        assert texts == ["first", " \tsecond \ufeff", "third\rstill third\r", "last"]
        assert not report.skipped

    def test_bad_rows_are_skipped_counted_and_placed(self, tmp_path):
        data = b"good\n\n \t\n\xff\xfebad\nnul\0byte\n\r\ngood too\ncaf\xe9\n\xed\xa0\x80\n"
        texts, report = read_data(tmp_path, "rows.txt", data)
        path = tmp_path / "rows.txt"
        assert texts == ["good", "good too"]
        assert report.skipped == Counter({"empty": 3, "invalid utf-8": 3, "nul byte": 1})
        assert report.first_skipped == {
            "empty": f"{path}:2",
            "invalid utf-8": f"{path}:4",
            "nul byte": f"{path}:5",
        }
        assert report.describe_skipped().startswith(f"3 empty (first at {path}:2), ")

    def test_megabyte_lines_are_kept_whole(self, tmp_path):
        long = "é" * (1 << 20)
        texts, _ = read_data(tmp_path, "rows.txt.gz", packed(f"a\n{long}\nb\n".encode(), "gz"))
        assert texts == ["a", long, "b"]

    def test_a_line_past_the_bound_is_refused_not_held(self, tmp_path, monkeypatch):
        monkeypatch.setattr(formats, "MAX_LINE_BYTES", 1 << 20)
        exactly = b"x" * ((1 << 20) - 1)
        assert read_data(tmp_path, "rows.txt", exactly + b"\n")[0] == [exactly.decode()]
        with pytest.raises(InputError, match=r"rows\.txt:2: a line of more than 1 MiB"):
            read_data(tmp_path, "rows.txt", b"a\n" + exactly + b"xx\n")

    def test_named_columns_are_refused_not_ignored(self, tmp_path):
        for column in ("text_column", "id_column", "label_column"):
            with pytest.raises(MissingInputError, match="no column 'c': plain text has no columns"):
                read_data(tmp_path, "rows.txt", b"a\n", **{column: "c"})


class TestJsonl:
    def test_bad_lines(self, tmp_path):
        lines = [
            '{"text": "good", "n": 1}',
            '{"text": "cut',
            '["text"]',
            "17",
            "",
            '{"text": null}',
            '{"text": 5}',
            '{"text": ["a"]}',
            '{"n": 2}',
            '{"text": " "}',
            '{"text": "a\\u0000b"}',
            '{"text": "half \\ud83d"}',
            "[" * 100_000,
            '{"text": "whole \\ud83d\\ude00"}',
        ]
        data = "\n".join(lines).encode() + b'\n{"text": "caf\xe9"}\n'
        texts, report = read_data(tmp_path, "rows.jsonl", data)
        assert texts == ["good", "whole 😀"]
        assert report.skipped == Counter(
            {
                "malformed json": 4,
                "empty": 2,
                "null": 1,
                "not a string": 2,
                "missing column": 1,
                "nul byte": 1,
                "invalid utf-8": 2,
            }
        )

    def test_the_first_object_decides_which_columns_there_are(self, tmp_path):
        with pytest.raises(MissingInputError, match="no column 'body'; found: text, n; pass --text-column"):
            read_data(tmp_path, "rows.jsonl", b'{"text": "a", "n": 1}\n{"body": "b"}\n', text_column="body")

    def test_labels_keep_their_type(self, tmp_path):
        for values, expected in (
            (["1", "2", "true"], [1, 2, 1]),
            (["1.5", "2", "null"], [1.5, 2.0]),
            (['"a"', '""', '"b"'], ["a", "b"]),
            (["1", "[2]", "3"], [1, 3]),
            (["0.5", "NaN", "Infinity"], [0.5]),
            (["1", "1" + "0" * 30, "-3"], [1, -3]),
        ):
            data = "".join(f'{{"text": "t", "y": {value}}}\n' for value in values).encode()
            path, report = put(tmp_path, "rows.jsonl", data), ReadReport()
            (batch,) = read_batches([path], ReadOptions(text_column="text", label_column="y"), report)
            assert batch.labels == expected
            assert {type(label) for label in batch.labels} == {type(expected[0])}
            assert report.skipped.total() == 3 - len(expected)

    @pytest.mark.parametrize(("first", "second"), [("1", "1.5"), ("1", '"1"'), ('"a"', "1"), ("1.0", '"b"')])
    def test_labels_of_two_types_are_refused(self, tmp_path, first, second):
        files = [
            put(tmp_path, f"{i}.jsonl", f'{{"text": "t", "y": {value}}}\n'.encode())
            for i, value in enumerate((first, second))
        ]
        with pytest.raises(InputError, match=r"1\.jsonl:1: label .* is of type"):
            read(*files, text_column="text", label_column="y")

    def test_ids_are_strings_and_never_missing(self, tmp_path):
        data = "".join(f'{{"text": "t", "id": {v}}}\n' for v in ("7", '"x"', "null", '""', "2.5")).encode()
        path, report = put(tmp_path, "rows.jsonl", data), ReadReport()
        (batch,) = read_batches([path], ReadOptions(text_column="text", id_column="id"), report)
        assert batch.ids == ["7", "x", "2.5"]
        assert report.skipped == {"null id": 2}


class TestDelimited:
    def test_csv_quotes_newlines_and_line_numbers(self, tmp_path):
        data = b'\xef\xbb\xbfid,text\r\n1,"two\r\nlines, ""quoted"""\r\n2,\r\n3,plain\r\n\r\n4,a,b\r\n5\r\n'
        texts, report = read_data(tmp_path, "rows.csv", data, text_column="text", id_column="id")
        path = tmp_path / "rows.csv"
        assert texts == ['two\r\nlines, "quoted"', "plain"]
        assert report.skipped == Counter({"empty": 2, "wrong number of columns": 2})
        assert report.first_skipped == {"empty": f"{path}:4", "wrong number of columns": f"{path}:7"}

    def test_csv_bytes_that_are_no_text(self, tmp_path):
        data = b"text,id\ncaf\xe9,1\na\0b,2\ngood,3\nnul in the id,\0\n"
        texts, report = read_data(tmp_path, "rows.csv", data, text_column="text", id_column="id")
        assert texts == ["good", "nul in the id"]
        assert report.skipped == {"invalid utf-8": 1, "nul byte": 1}

    def test_csv_one_bad_line_is_one_row_lost(self, tmp_path):
        texts, report = read_data(tmp_path, "rows.csv", b'text\n"a" b\nc\n"d"\nlone\rreturn\ne\n')
        assert texts == ["c", "d", "e"]
        assert report.skipped == {"malformed csv": 2}

    @pytest.mark.parametrize("tail", [b'3,"closed" late\n4,d\n', b"3,c\n4,d\n"])
    def test_csv_a_quote_left_open_is_refused_where_it_opens(self, tmp_path, tail):
        with pytest.raises(InputError, match=r"rows\.csv:3: the record that begins here goes wrong by line"):
            read_data(tmp_path, "rows.csv", b'id,text\n1,a\n2,"open\n' + tail, text_column="text")

    def test_csv_fields_longer_than_the_module_allows_by_default(self, tmp_path):
        long = "x" * (1 << 20)
        assert read_data(tmp_path, "rows.csv", f"text\n{long}\n".encode())[0] == [long]

    def test_tsv_takes_quotes_and_commas_for_text(self, tmp_path):
        data = b'id\ttext\r\n1\t"open, and\r\n2\tclosed"\n\n3\ta\tb\n4\n5\t\n6\tcaf\xe9\n7\ta\0b\n'
        texts, report = read_data(tmp_path, "rows.tsv", data, text_column="text")
        assert texts == ['"open, and', 'closed"']
        assert report.skipped == Counter(
            {"empty": 2, "wrong number of columns": 2, "invalid utf-8": 1, "nul byte": 1}
        )

    def test_only_what_is_read_has_to_be_text(self, tmp_path):
        data = b"text\tnote\na\tcaf\xe9\n"
        assert read_data(tmp_path, "rows.tsv", data, text_column="text")[0] == ["a"]
        with pytest.raises(InputError, match="1 invalid utf-8"):
            read_data(tmp_path, "rows.tsv", data, text_column="text", label_column="note")

    @pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
    def test_a_header_in_another_encoding_is_refused(self, tmp_path, name):
        with pytest.raises(InputError, match="header line is not UTF-8"):
            read_data(tmp_path, name, b"t\xe9xt\na\n")


class TestColumns:
    @pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet", "arrow"])
    def test_a_missing_column_names_those_found(self, tmp_path, kind):
        path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, TEXTS))
        for role in ("text", "id", "label"):
            with pytest.raises(
                MissingInputError, match=f"no column 'nope'; found: number, text, label; pass --{role}-column"
            ):
                read(path, **{"text_column": "text", f"{role}_column": "nope"})

    def test_the_default_is_the_only_text_column_or_the_one_with_a_known_name(self, tmp_path):
        for header, options in (
            ("review", {}),
            ("source\tsentence", {}),
            ("a\tcontent\tb", {}),
            ("key\treview", {"id_column": "key"}),
            ("key\tkind\treview", {"id_column": "key", "label_column": "kind"}),
            ("split\tlabel\treview", {}),
            ("text2\ttext", {"text_column": "text"}),
        ):
            row = "\t".join(
                "this" if name in ("review", "sentence", "content", "text") else "x"
                for name in header.split("\t")
            )
            assert read_data(tmp_path, "rows.tsv", f"{header}\n{row}\n".encode(), **options)[0] == ["this"]
        table = pa.table({"text": [1, 2], "body": ["this", "that"]})
        assert read_data(tmp_path, "rows.parquet", parquet_bytes(table))[0] == ["this", "that"]

    @pytest.mark.parametrize(
        "header", ["sentence1\tsentence2", "text\tcontent", "a\tb\tc", "split\tlabel", "text\ttext2"]
    )
    def test_otherwise_the_columns_are_listed(self, tmp_path, header):
        row = "\t".join("x" for _ in header.split("\t"))
        with pytest.raises(InputError, match="cannot tell which column holds the text; found: ") as caught:
            read_data(tmp_path, "rows.tsv", f"{header}\n{row}\n".encode())
        assert not isinstance(caught.value, MissingInputError)
        assert ", ".join(header.split("\t")) in str(caught.value)

    def test_a_column_that_is_there_twice_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="column 'text' is there 2 times"):
            read_data(tmp_path, "rows.csv", b"text,text\na,b\n", text_column="text")

    def test_a_column_that_holds_no_text_is_refused(self, tmp_path):
        table = pa.table({"n": [1, 2], "raw": [b"caf\xe9", b"fine"]})
        with pytest.raises(InputError, match="column 'n' holds int64, expected text"):
            read_data(tmp_path, "rows.parquet", parquet_bytes(table), text_column="n")
        with pytest.raises(InputError, match="cannot tell"):
            read_data(tmp_path, "rows.parquet", parquet_bytes(table))
        texts, report = read_data(tmp_path, "rows.parquet", parquet_bytes(table), text_column="raw")
        assert texts == ["fine"]
        assert report.skipped == {"invalid utf-8": 1}

    @pytest.mark.parametrize("write", [parquet_bytes, ipc_bytes])
    def test_arrow_strings_that_are_not_utf8_cost_only_their_row(self, tmp_path, write):
        offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
        column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffc")])
        path = put(
            tmp_path,
            "rows.parquet" if write is parquet_bytes else "rows.arrow",
            write(pa.table({"t": column})),
        )
        texts, report = read(path)
        assert texts == ["a", "c"]
        assert report.first_skipped == {"invalid utf-8": f"{path}:2"}

    def test_typed_labels(self, tmp_path):
        labels = {"f": pa.array([0.5, None, 2.0]), "b": [True, False, None], "d": pa.array(["x", "y", None])}
        table = pa.table(
            {"text": ["a", "b", "c"], **labels, "e": pa.array(["x", "y", None]).dictionary_encode()}
        )
        path = put(tmp_path, "rows.parquet", parquet_bytes(table))
        for column, expected in (("f", [0.5, 2.0]), ("b", [1, 0]), ("d", ["x", "y"]), ("e", ["x", "y"])):
            report = ReadReport()
            (batch,) = read_batches([path], ReadOptions(text_column="text", label_column=column), report)
            assert batch.labels == expected
            assert report.skipped == {"null label": 1}


class TestNothingToRead:
    @pytest.mark.parametrize("kind", list(ENDINGS))
    def test_a_file_without_rows_is_refused(self, tmp_path, kind):
        path = put(
            tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, []) if kind in ("csv", "tsv", "text") else b""
        )
        if kind == "parquet":
            path.write_bytes(parquet_bytes(pa.table({"text": pa.array([], pa.string())})))
        if kind == "arrow":
            path.write_bytes(ipc_bytes(pa.table({"text": pa.array([], pa.string())})))
        why = "the file is empty" if kind in ("text", "jsonl") else "it has a header alone"
        with pytest.raises(InputError, match=f"no rows to read as {kind}: {why}"):
            read(path, text_column=None if kind == "text" else "text")

    def test_every_row_skipped_gives_the_counts(self, tmp_path):
        with pytest.raises(
            InputError, match=r"every row was skipped: 2 empty .*, 1 invalid utf-8 \(first at .*:2\)"
        ):
            read_data(tmp_path, "rows.txt", b"\n\xff\n\n")

    def test_one_empty_file_among_good_ones_is_refused(self, tmp_path):
        good, empty = put(tmp_path, "good.txt", b"a\n"), put(tmp_path, "empty.txt", b"")
        with pytest.raises(InputError, match=r"empty\.txt: no rows"):
            read(good, empty)

    def test_binary_given_as_text_is_refused(self, tmp_path):
        tails = bytes(
            0x80 | b & 0x3F for b in np.random.default_rng(0).bytes(20_000)
        )  # none begins a character
        with pytest.raises(InputError, match=r"every row was skipped: \d+ invalid utf-8"):
            read_data(tmp_path, "rows.txt", tails.replace(b"\xbf", b"\n"))

    @pytest.mark.parametrize("kind", list(ENDINGS))
    def test_an_empty_file_is_said_to_be_empty(self, tmp_path, kind):
        with pytest.raises(InputError, match=f"as {kind}: (the file|it) is empty; write or download it"):
            read_data(tmp_path, f"rows{ENDINGS[kind]}", b"")

    @pytest.mark.parametrize("kind", ["csv", "tsv", "text", "jsonl"])
    def test_binary_data_is_told_by_its_control_characters(self, tmp_path, kind):
        with pytest.raises(InputError, match=f"looks like binary data, expected {kind}"):
            read_data(tmp_path, f"rows{ENDINGS[kind]}", np.random.default_rng(0).bytes(3000))

    def test_text_with_a_few_control_characters_is_text(self, tmp_path):
        lines = [f"line {number} of a log \x1b[1mbold\x1b[0m" for number in range(30)]
        texts, report = read_data(tmp_path, "rows.txt", ("\n".join([*lines, "a\0b", "\x01"]) + "\n").encode())
        assert texts == [*lines, "\x01"]
        assert report.skipped == {"nul byte": 1}

    @pytest.mark.parametrize(
        ("line", "found"),
        [
            (b'[{"text": "a"}]\n', r"line 2 begins a JSON list: .*one object a line first: jq"),
            (b'{\n"text": "a"\n}\n', r"line 2 begins an object that does not end there: .*on one line: jq"),
            (b"5\n6\n", r"line 2 is the bare value '5'; write an object"),
            (b"text,b\na,1\n", r"line 2 is no JSON: 'text,b'; pass the right --format"),
        ],
    )
    def test_json_that_is_no_object_a_line_is_named(self, tmp_path, line, found):
        with pytest.raises(InputError, match=rf"rows\.jsonl: no line is a JSON object.*{found}"):
            read_data(tmp_path, "rows.jsonl", b"\n" + line)

    def test_a_json_file_is_asked_what_it_holds(self, tmp_path):
        with pytest.raises(InputError, match="pass --format jsonl if every line of it is a JSON object"):
            read_data(tmp_path, "rows.json", b"[]")

    @pytest.mark.parametrize(
        ("header", "trouble"),
        [
            (b"text\rid\ra\r", "a carriage return stands alone"),
            (b'"text"s,id\n', "text follows a closing quote"),
            (b'"text,id\na,b\n', "a quote was left open"),
        ],
    )
    def test_a_header_that_is_no_csv_is_explained_in_plain_words(self, tmp_path, header, trouble):
        with pytest.raises(InputError, match=rf"rows\.csv:1: the header line is not CSV: {trouble}"):
            read_data(tmp_path, "rows.csv", header)

    @pytest.mark.parametrize(
        ("data", "meaning"),
        [
            (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
            (b"\x7fELF\x02", "a program"),
            (encoded("parquet", ["a"]), "Parquet"),
            (encoded("arrow", ["a"]), "Arrow"),
            (ipc_bytes(pa.table({"text": ["a"]}), stream=True), "Arrow"),
            ("text\n".encode("utf-16"), "UTF-16"),
            (b"PK\x03\x04 and more\n", "zip"),
            (gzip.compress(gzip.compress(b"a\n", mtime=0), mtime=0), "gzip inside"),
        ],
    )
    def test_another_format_given_as_text_is_named(self, tmp_path, data, meaning):
        with pytest.raises(InputError, match=f"looks like .*{meaning}.*expected text"):
            read_data(tmp_path, "rows.txt", data)

    def test_text_that_begins_as_a_format_is_called_is_text(self, tmp_path):
        assert read_data(tmp_path, "rows.txt", b"PAR1 is a region.\nBZh\n")[0] == ["PAR1 is a region.", "BZh"]

    def test_text_given_as_columns_is_refused(self, tmp_path):
        for kind in ("parquet", "arrow"):
            with pytest.raises(
                InputError,
                match=f"cannot be read as {kind}: it begins with the text 'plain text, and ', and not as",
            ):
                read_data(tmp_path, "rows.txt", b"plain text, and nothing more\n" * 9, format=kind)
            with pytest.raises(InputError, match=f"cannot be read as {kind}: it looks like a PNG picture"):
                read_data(tmp_path, "rows.txt", b"\x89PNG\r\n\x1a\n", format=kind)

    def test_parquet_without_its_end_is_said_to_be_cut_off(self, tmp_path):
        with pytest.raises(InputError, match=r"as parquet: its end is missing, after 200 bytes"):
            read_data(tmp_path, "rows.parquet", encoded("parquet", ["a", "b"])[:200])


class TestDamage:
    @pytest.mark.parametrize("codec", ["gz", "zst"])
    @pytest.mark.parametrize("kind", list(ENDINGS))
    @pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
    def test_compressed_data_cut_off(self, tmp_path, kind, codec, share):
        texts = [f"row {number}" for number in np.random.default_rng(1).random(3000)]
        data = packed(encoded(kind, texts), codec)
        path = put(tmp_path, f"rows{ENDINGS[kind]}.{codec}", data[: int(len(data) * share)])
        with pytest.raises(
            InputError, match=r"(damaged or cut off|does not begin as).*copy or download it again"
        ) as e:
            read(path)
        assert str(path) in str(e.value)
        assert "\n" not in str(e.value)

    def test_a_flipped_byte_in_gzip(self, tmp_path):
        data = bytearray(packed(encoded("text", [f"row {i}" for i in range(3000)]), "gz"))
        data[-6] ^= 1
        with pytest.raises(InputError, match=r"rows\.txt\.gz is damaged or cut off: its gzip data"):
            read_data(tmp_path, "rows.txt.gz", bytes(data))

    @pytest.mark.parametrize("kind", ["parquet", "arrow"])
    @pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
    def test_columnar_files_cut_off(self, tmp_path, kind, share):
        data = encoded(kind, [f"row {i}" for i in range(3000)])
        path = put(tmp_path, f"rows{ENDINGS[kind]}", data[: int(len(data) * share)])
        with pytest.raises(InputError, match=f"cannot be read as {kind}") as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_an_arrow_offset_out_of_bounds_is_found(self, tmp_path):
        offsets = pa.array([0, 1, 1 << 28, 3], pa.int32()).buffers()[1]
        column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
        batch = pa.RecordBatch.from_arrays([column], ["text"])
        with pytest.raises(InputError, match="cannot be read as arrow"):
            read_data(tmp_path, "rows.arrow", ipc_bytes(pa.Table.from_batches([batch])))

    def test_a_plain_file_named_as_compressed_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"named \.gz but does not begin as gzip does"):
            read_data(tmp_path, "rows.txt.gz", b"plain\n")


class TestLimit:
    @pytest.mark.parametrize("kind", list(ENDINGS))
    def test_counts_kept_rows_and_stops_there(self, tmp_path, kind):
        path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, ["a", " ", "b", " ", "c"]))
        texts, report = read(path, limit=2)
        assert texts == ["a", "b"]
        assert report.skipped == {"empty": 1}
        assert read(path, limit=9)[0] == ["a", "b", "c"]

    def test_files_after_it_are_not_opened(self, tmp_path):
        first, second = put(tmp_path, "a.txt", b"a\nb\n"), put(tmp_path, "b.txt", b"\xff\n")
        assert read(first, second, limit=2)[0] == ["a", "b"]
        with pytest.raises(InputError, match=r"b\.txt: no rows"):
            read(first, second, limit=3)

    @pytest.mark.parametrize("limit", [0, -1])
    def test_below_one_is_refused_before_anything_is_read(self, tmp_path, limit):
        with pytest.raises(InputError, match="expected at least 1"):
            read_batches([tmp_path / "never opened.txt"], ReadOptions(limit=limit), ReadReport())


# Surrogates cannot be encoded, NUL and the separator of pairs are skipped, and a line break ends a line where
# nothing quotes it.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\x1f"), min_size=1).filter(
    lambda text: not text.isspace()
)
AS_THEY_COME = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class TestRoundTrip:
    @pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
    @given(texts=st.lists(TEXT, min_size=1, max_size=20))
    @AS_THEY_COME
    def test_any_text_comes_back(self, tmp_path, kind, texts):
        assert (
            read_data(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, texts), text_column="text")[0] == texts
        )

    @pytest.mark.parametrize("kind", ["text", "tsv"])
    @given(texts=st.lists(TEXT.filter(lambda text: "\t" not in text), min_size=1, max_size=20))
    @AS_THEY_COME
    def test_any_line_comes_back(self, tmp_path, kind, texts):
        texts = [f"{text}." for text in texts]  # a return at the very end would belong to the line ending
        if texts[0].startswith("\ufeff"):
            texts[0] = "x" + texts[0]  # and a mark at the very beginning to the file
        assert read_data(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, texts))[0] == texts

    @given(data=st.binary(max_size=300))
    @AS_THEY_COME
    def test_no_line_of_any_bytes_is_lost_uncounted(self, tmp_path, data):
        data = b"first\n" + data
        texts, report = read_data(tmp_path, "rows.txt", data)
        assert report.rows + report.skipped.total() == len(io.BytesIO(data).readlines())
        assert all(text.encode() in data for text in texts)


def test_golden_counts_over_mixed_files(tmp_path):
    bad = {3: "", 5: "   ", 7: "nul \0", 17: ""}
    rows = [bad.get(i % 20, f"sentence {i}") for i in range(1000)]
    files = [put(tmp_path, "a.txt.gz", packed(encoded("text", rows), "gz"))]
    files += [put(tmp_path, f"b{ENDINGS[kind]}", encoded(kind, rows)) for kind in ("jsonl", "tsv", "parquet")]
    texts, report = read(*files)
    assert texts == [row for row in rows if row.startswith("sentence")] * 4
    assert report == ReadReport(
        rows=3200,
        skipped=Counter({"empty": 600, "nul byte": 200}),
        first_skipped={"empty": f"{files[0]}:4", "nul byte": f"{files[0]}:8"},
    )


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(rows: int) -> int:
        path = put(tmp_path, "rows.txt.gz", gzip.compress(b"a sentence of some length\n" * rows, 1))
        tracemalloc.start()
        try:
            for _ in read_batches([path], ReadOptions(), ReadReport(), batch_rows=256):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small = peak(20_000)
    assert peak(80_000) < small * 1.2 + 100_000


def test_real_tables_read_whole():
    folder = Path(__file__).parents[2].parent / "shared" / "data"
    if not (folder / "senteval_mr.tsv.gz").is_file():
        pytest.skip(f"needs the evaluation data in {folder}")
    for name, rows, options in (
        ("senteval_mr.tsv.gz", 10662, {"label_column": "label"}),
        ("sts13_test.tsv", 1500, {"text_column": "sentence1"}),
    ):
        texts, report = read(folder / name, **options)
        assert len(texts) == rows
        assert not report.skipped
