"""Reading corpora: every format, every kind of bad input, rows in memory, and unaltered texts."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from input_helpers import (
    ENDINGS,
    LINES,
    PAIR_ROWS,
    WITH_COLUMNS,
    encoded,
    ipc_bytes,
    packed,
    parquet_bytes,
    put,
    read,
    read_data,
    rows_of,
)

from embedcache.corpus import formats
from embedcache.corpus.readers import (
    ReadOptions,
    ReadReport,
    RowBatch,
    check_sources,
    read_batches,
)
from embedcache.corpus.sources import MemoryRows, corpus_name_of, expand_sources, find_sources, memory_rows
from embedcache.corpus.view_store import refuse_missing_column
from embedcache.errors import InputError, MissingInputError

TEXTS = [
    "A man eats.",
    '"quoted" and, with a comma',
    "  kept blanks  ",
    "Žluťoučký kůň 🐎",
    "line\u2028separator\x0b",
]


# --- formats ---------------------------------------------------------------------------------------------


PACKED = [*((kind, "") for kind in ENDINGS), *((kind, codec) for kind in LINES for codec in ("gz", "zst"))]


@pytest.mark.parametrize(("kind", "codec"), PACKED)
def test_every_format_gives_the_same_rows(tmp_path: Path, monkeypatch: Any, kind: str, codec: str) -> None:
    data = packed(encoded(kind, rows_of(TEXTS)), codec)
    # Compression is found without its ending as well.
    for name in {f"rows{ENDINGS[kind].upper()}", f"rows{ENDINGS[kind]}{f'.{codec}' if codec else ''}"}:
        texts, report = read_data(tmp_path, name, data)
        assert texts == TEXTS
        assert not report.skipped
        assert (report.column, report.example) == (None if kind == "text" else "text", TEXTS[0])
    if kind in LINES:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        assert read("-", format=None if kind == "text" else kind)[0] == TEXTS


@pytest.mark.parametrize("kind", WITH_COLUMNS)
def test_ids_and_labels_stand_beside_their_texts(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, rows_of(TEXTS)))
    (batch,) = read_batches([path], ReadOptions("text", "number", "label"), ReadReport())
    labels: Any = ["0", "1", "0", "1", "0"] if kind in ("csv", "tsv") else [0, 1, 0, 1, 0]
    assert batch == RowBatch(TEXTS, ids=["0", "1", "2", "3", "4"], labels=labels)
    assert batch.labels is not None
    assert {type(label) for label in batch.labels} == {type(labels[0])}


def test_columns_of_arrow_may_be_dictionaries_large_or_views(tmp_path: Path) -> None:
    words = ["b", "a", None, "b", "c"]
    for column in (pa.array(words, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())):
        for one in (column, column.dictionary_encode()) if column.type != pa.string_view() else (column,):
            table = pa.table({"n": range(5), "text": one})
            for data in (ipc_bytes(table), ipc_bytes(table, stream=True)):
                texts, report = read_data(tmp_path, "rows.arrow", data)
                assert texts == ["b", "a", "b", "c"]
                assert report.skipped == {"null": 1}


# --- what is kept, skipped, or an error ------------------------------------------------------------------

TRIMMED = ["first", " \tsecond \ufeff", "\rlast\r"]
GOOD = {
    "txt": b"good\n",
    "jsonl": b'{"text": "good"}\n',
    "csv": b"text,n\ngood,1\n",
    "tsv": b"text\tn\ngood\t1\n",
}
SKIPPED = [
    ("txt", b" \t\n", "empty"),
    ("txt", b"bad \xff\n", "invalid utf-8"),
    ("txt", b"nul\0\n", "nul byte"),
    ("txt", b"a\x1fb\n", "pair separator"),
    ("jsonl", b'{"text": "cut\n', "malformed json"),
    ("jsonl", b"[" * 100_000, "malformed json"),
    ("jsonl", b'{"text": null}\n', "null"),
    ("jsonl", b'{"text": ["a"]}\n', "not a string"),
    ("jsonl", b'{"n": 2}\n', "missing column"),
    ("jsonl", b'{"text": "a\\u0000b"}\n', "nul byte"),
    ("jsonl", b'{"text": "half \\ud83d"}\n', "invalid utf-8"),
    ("csv", b",2\n", "empty"),
    ("csv", b"\r\n", "empty"),
    ("csv", b'"a" b,4\n', "malformed csv"),
    ("csv", b"c,d,e\n", "wrong number of columns"),
    ("csv", b"last", "wrong number of columns"),
    ("tsv", b"a\rb\t1\n", "malformed csv"),
    ("tsv", b"\xe9\t1\n", "invalid utf-8"),
]


@pytest.mark.parametrize(("ending", "data", "reason"), SKIPPED)
def test_a_bad_row_is_skipped_counted_and_placed(
    tmp_path: Path, ending: str, data: bytes, reason: str
) -> None:
    texts, report = read_data(tmp_path, f"rows.{ending}", GOOD[ending] + data, on_bad="skip")
    where = f"{tmp_path}/rows.{ending}:{len(GOOD[ending].splitlines()) + 1}"
    assert (texts, report.skipped, report.first_skipped) == (["good"], {reason: 1}, {reason: where})


@pytest.mark.parametrize(
    ("name", "data", "kept"),
    [
        ("a.txt", b"\xef\xbb\xbffirst\r\n \tsecond \xef\xbb\xbf\n\rlast\r\r\n", TRIMMED),
        ("a.jsonl", b'{"text": "whole \\ud83d\\ude00"}\n', ["whole 😀"]),
        ("a.csv", b'\xef\xbb\xbftext,n\r\n"two\r\nlines, ""quoted""",1\r\n', ['two\r\nlines, "quoted"']),
        ("a.tsv", b'n\ttext\r\n1\t"open, and\r\n2\tclosed"\n', ['"open, and', 'closed"']),
    ],
)
def test_texts_are_never_altered(tmp_path: Path, name: str, data: bytes, kept: list[str]) -> None:
    assert read_data(tmp_path, name, data)[0] == kept


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columnar_strings_that_are_not_utf8_cost_only_their_row(tmp_path: Path, kind: str) -> None:
    def table(middle: int) -> pa.Table:
        buffers = [None, pa.array([0, 1, middle, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffc")]
        return pa.table({"text": pa.Array.from_buffers(pa.string(), 3, buffers)})

    write = parquet_bytes if kind == "parquet" else ipc_bytes
    texts, report = read_data(tmp_path, f"rows.{kind}", write(table(2)))
    assert texts == ["a", "c"]
    assert report.first_skipped == {"invalid utf-8": f"{tmp_path / f'rows.{kind}'}:2"}
    with pytest.raises(InputError, match="cannot be read as arrow"):
        read_data(tmp_path, "beyond.arrow", ipc_bytes(table(1 << 28)))


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (["1", "2", "true"], [1, 2, 1]),
        (["1.5", "2", "null"], [1.5, 2.0]),
        (['"a"', '""', '"b"'], ["a", "b"]),
        (["0.5", "NaN", "Infinity"], [0.5]),
        (["1", "1" + "0" * 30, "[3]"], [1]),
    ],
)
def test_labels_keep_their_type(tmp_path: Path, values: list[str], kept: list[Any]) -> None:
    data = "".join(f'{{"text": "t", "y": {value}}}\n' for value in values)
    path, report = put(tmp_path, "rows.jsonl", data), ReadReport()
    (batch,) = read_batches([path], ReadOptions("text", label_column="y"), report)
    assert batch.labels == kept
    assert {type(label) for label in kept} == {type(label) for label in batch.labels or []}
    assert report.skipped.total() == 3 - len(kept)


def test_ids_are_strings_and_never_missing(tmp_path: Path) -> None:
    data = "".join(f'{{"text": "t", "id": {v}}}\n' for v in ("7", '"x"', "null", '""', "2.5"))
    path, report = put(tmp_path, "rows.jsonl", data), ReadReport()
    (batch,) = read_batches([path], ReadOptions("text", "id"), report)
    assert (batch.ids, report.skipped) == (["7", "x", "2.5"], {"null id": 2})


LONG = rows_of([f"row {number}" for number in np.random.default_rng(1).random(3000)])


def damaged(kind: str, codec: str, share: float) -> bytes:
    data = packed(encoded(kind, LONG), codec)
    return data[: int(len(data) * share)]


EURO = b"id;text;label\n1;Some text;0\n"
REFUSED: list[tuple[str, bytes, dict[str, Any], str]] = [
    ("empty.txt", b"", {}, "empty"),
    ("header.csv", b"text\n", {}, "header"),
    ("blank.txt", b"\n\xff\n\n", {}, r"2 empty .*, 1 invalid utf-8 \(first at .*:2\)"),
    ("list.jsonl", b'[{"text": "a"}]\n', {}, "JSON object"),
    ("rows.json", b"[]", {}, "format"),
    ("rows.txt", b"a\n", {"format": "xml"}, "unknown format"),
    ("rows.txt", encoded("parquet", rows_of(["a"])), {}, "PAR1"),
    ("rows.jsonl", np.random.default_rng(0).bytes(3000), {}, "binary data"),
    ("rows.txt.gz", b"plain\n", {}, "gz"),
    ("header.csv", b"t\xe9xt\na\n", {}, "header"),
    ("open.csv", b'id,text\n1,a\n2,"open\n3,c\n4,d\n', {}, r"open\.csv:3: .*quote"),
    ("twice.csv", b"text,text\na,b\n", {}, "2 columns"),
    ("labels.jsonl", b'{"text": "t", "y": 1}\n{"text": "t", "y": "b"}\n', {"label_column": "y"}, ":2: label"),
    ("numbers.parquet", parquet_bytes(pa.table({"n": [1, 2]})), {"text_column": "n"}, "2 not a string"),
    *((f"cut.{codec}", damaged("text", codec, share), {"format": "text"}, "cannot be read")
      for codec in ("gz", "zst") for share in (0.1, 0.99)),
    *((f"cut.{kind}", damaged(kind, "", share), {}, "cannot be read")
      for kind in ("parquet", "arrow") for share in (0.01, 0.999)),
    # Fields that the ending does not promise, texts with commas, and no header.
    ("euro.csv", EURO, {}, "id;text;label.*delimiter=semicolon"),
    ("rows.csv", b"text\na\n", {"delimiter": "::"}, "delimiter"),
    ("rows.txt", b"a\n", {"delimiter": ";"}, "format=csv"),
    ("commas.csv", b"text\n" + b"One, two.\n" * 3 + b"Three.\n" * 90, {}, r"commas\.csv:2: 2 fields"),
    ("bare.tsv", b"1\tA first text.\n2\tA second one.\n", {}, "A first text.*text_column.*header"),
    ("bare.csv", b"word\nanother\n", {}, "word.*text_column.*format=text"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "options", "says"), REFUSED, ids=[f"{n}-{r[0]}" for n, r in enumerate(REFUSED)]
)
def test_an_unreadable_source_is_one_error(
    tmp_path: Path, name: str, data: bytes, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=f"(?s){says}") as caught:
        read_data(tmp_path, name, data, **options)
    assert "\n" not in str(caught.value)


def test_few_rows_of_another_width_are_counted_and_a_delimiter_that_is_given_is_used(tmp_path: Path) -> None:
    few = b"text\n" + b"Three.\n" * 300 + b"One, two.\n" * 3
    assert read_data(tmp_path, "rows.csv", few)[1].skipped == {"wrong number of columns": 3}
    for delimiter in (";", "semicolon"):
        assert read_data(tmp_path, "euro.csv", EURO, id_column="id", delimiter=delimiter)[0] == ["Some text"]


BACKSLASHED = b"text,n\n" + b'"he said \\"hi\\", ok",1\n"plain",2\n' * 4
WRONG = {
    "commas.csv": (b"text\nOne.\nTwo, and more.\nThree.\nFour, and more.\n", r"so in 2 of 4 rows.*on_bad"),
    "escaped.csv": (BACKSLASHED, r"backslash.*on_bad"),
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b\n', r"1 of 2 rows.*on_bad"),
    "quoted.tsv": (b'text\n"He said ""hi"" to her"\n', "format=csv delimiter=tab"),
    "pointer.txt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    "pointer.parquet": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "git lfs pull",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_would_be_read_wrongly_is_one_error(tmp_path: Path, name: str) -> None:
    data, says = WRONG[name]
    with pytest.raises(InputError, match=says) as caught:
        read_data(tmp_path, name, data)
    assert "\n" not in str(caught.value)
    if "on_bad" in says:
        texts, report = read_data(tmp_path, name, data, on_bad="skip")
        assert len(texts) + report.skipped.total() >= 2


def test_one_bad_row_of_many_is_counted(tmp_path: Path) -> None:
    assert read_data(tmp_path, "rows.jsonl", b'{"text": "a"}\n' * 100 + b"{\n")[1].skipped == {
        "malformed json": 1
    }


@pytest.mark.parametrize("text", ['"Hello," he said', '"Hello"', '"two'])
def test_quotes_of_a_tsv_file_stay(tmp_path: Path, text: str) -> None:
    assert read_data(tmp_path, "rows.tsv", f"text\n{text}\n")[0] == [text]
    doubled = 'text\n"a ""b"" c"\n'
    assert read_data(tmp_path, "kept.tsv", doubled, delimiter="tab")[0] == ['"a ""b"" c"']
    assert read_data(tmp_path, "read.tsv", doubled, delimiter="tab", format="csv")[0] == ['a "b" c']


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "parquet"])
def test_empty_parts_are_counted(tmp_path: Path, kind: str) -> None:
    full = {"txt": b"a\n", "jsonl": b'{"text": "a"}\n', "csv": b"text\na\n"}
    empty = {"txt": b"", "jsonl": b"", "csv": b"text\n"}
    parts = []
    for number, texts in enumerate((["a"], [], ["a"])):
        path = tmp_path / f"part-{number}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
        else:
            path.write_bytes(full[kind] if texts else empty[kind])
        parts.append(path)
    check_sources(parts, ReadOptions())
    texts, report = read(*parts)
    assert (texts, report.skipped) == (["a", "a"], {"empty file": 1})
    assert report.first_skipped["empty file"] == str(parts[1])
    for some in ([parts[1]], [parts[1], Path(shutil.copy(parts[1], tmp_path / f"other.{kind}"))]):
        with pytest.raises(InputError, match="no rows"):
            read(*some)


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    lines = [
        f"Sentence number {row} talks about a different thing in some sixty characters."
        for row in range(6000)
    ]
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = Thread(target=pipe.write_text, args=("\n".join(lines),))
    writer.start()
    check_sources([pipe], ReadOptions(format="text"))
    assert read(pipe, format="text")[0] == lines
    writer.join()
    with pytest.raises(InputError, match="second time"):
        refuse_missing_column([pipe], ReadOptions(format="csv"), "other")


def test_a_zstd_file_may_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"\x00" * 4
    data = pa.Codec("zstd").compress(b"one\ntwo\n", asbytes=True)
    assert read_data(tmp_path, "rows.txt.zst", skipped + data)[0] == ["one", "two"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "memory"])
def test_fields_inside_a_column_are_named_by_a_dot(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"translation": {"en": "a cat", "de": {"text": "eine Katze"}}},
        {"translation": {"en": None, "de": {"text": "ein Hund"}}},
    ]
    source: Any = rows
    if kind == "jsonl":
        source = [put(tmp_path, "rows.jsonl", "\n".join(map(json.dumps, rows)))]
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        source = [tmp_path / "rows.parquet"]
    sources = find_sources(source)
    assert read(*sources, text_column="translation.en", on_bad="skip")[0] == ["a cat"]
    assert read(*find_sources(source), text_column="translation.de.text")[0] == ["eine Katze", "ein Hund"]
    with pytest.raises(InputError, match=r"translation\.en"):
        read(*find_sources(source), text_column="translation.fr")
    with pytest.raises(InputError):
        read(*find_sources(source), text_column="translation")
    if kind == "jsonl":  # a column of that name wins
        plain = put(tmp_path, "plain.jsonl", json.dumps({"a.b": "whole", "a": {"b": "inner"}}))
        assert read(plain, text_column="a.b")[0] == ["whole"]


def test_long_lines_are_kept_whole_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "é" * (1 << 20)
    for name, head in (("rows.txt", ""), ("rows.csv", "text\n")):
        assert read_data(tmp_path, name, f"{head}{long}\n")[0] == [long]
    monkeypatch.setattr(formats, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"rows\.txt:2: "):
        read_data(tmp_path, "rows.txt", f"a\n{long}\n")


# --- columns, conditions, pairs --------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["text_column", "id_column", "label_column", "text2_column", "rows"])
def test_a_missing_column_names_those_found(tmp_path: Path, option: str) -> None:
    value: Any = ("nope=1",) if option == "rows" else "nope"
    asked = ReadOptions(**{"text_column": "text", option: value})
    for kind in WITH_COLUMNS:
        path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, rows_of(TEXTS)))
        with pytest.raises(MissingInputError, match=f"'nope'.* label.*{option}"):
            check_sources([path], asked)
    with pytest.raises(MissingInputError, match="plain text"):
        check_sources([put(tmp_path, "rows.txt", "a")], asked)


@pytest.mark.parametrize(
    ("header", "options", "column"),
    [
        ("source\tsentence", {}, "sentence"),
        ("text\tsentence", {"id_column": "text"}, "sentence"),
        ("text2\ttext", {}, "text"),
        ("review\tx", {"text_column": "review"}, "review"),
        ("text\tcontent", {}, None),
        ("a\tb\tc", {}, None),
    ],
)
def test_the_text_column_is_found_or_asked_for(
    tmp_path: Path, header: str, options: dict[str, Any], column: str | None
) -> None:
    path = put(tmp_path, "rows.tsv", f"{header}\n{header.upper()}\n")
    if column is None:
        with pytest.raises(InputError, match=f"text_column|{header}") as caught:
            read(path, **options)
        assert not isinstance(caught.value, MissingInputError)
    else:
        texts, report = read(path, **options)
        assert (texts, report.column) == ([column.upper()], column)


@pytest.mark.parametrize("kind", WITH_COLUMNS)
def test_two_columns_are_a_pair_and_rows_are_selected_by_others(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, PAIR_ROWS))
    texts, report = read(path, text_column="one", text2_column="two")
    assert texts == ["a cat\x1fa dog", "a stone\x1fthe road", "a river\x1fthe house"]
    assert (report.skipped, report.not_asked) == ({"empty": 2, "pair separator": 2}, 0)
    texts, report = read(path, text_column="one", text2_column="two", rows=("split=train", "label=0"))
    assert texts == ["a river\x1fthe house"]
    assert (report.skipped, report.not_asked) == ({"empty": 1}, 5)
    with pytest.raises(InputError, match=r"7 rows has split=test; change rows"):
        read(path, text_column="one", rows=("split=test",))


# --- sources ---------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with files in it."""
    for name in ("b.txt", "a.txt", ".hidden.txt", "other.csv", "[b].tsv", "deep/c.txt", "deep/er/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        put(tmp_path, name, b"text\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["*.txt"], ["a.txt", "b.txt"]),
        (["[bc].txt"], ["b.txt"]),
        (["[b].tsv"], ["[b].tsv"]),
        (["**/*.txt"], ["a.txt", "b.txt", "deep/c.txt", "deep/er/d.txt"]),
        (["o*"], ["other.csv"]),
        (["other.csv", "deep/*.txt", "a.txt", "-"], ["other.csv", "deep/c.txt", "a.txt", "-"]),
    ],
)
def test_patterns_name_files_in_order(tree: Path, patterns: list[str], found: list[str]) -> None:
    assert [str(source) for source in expand_sources(patterns)] == found
    assert find_sources(patterns) == expand_sources(patterns)


@pytest.mark.parametrize(
    ("patterns", "error"),
    [
        (["nowhere.txt"], MissingInputError),
        (["*.jsonl"], MissingInputError),
        (["a.txt", "*.txt"], InputError),
        (["a.txt", "deep/../a.txt"], InputError),
        (["-", "-"], InputError),
        (["deep"], InputError),
        (["dee*"], InputError),
        ([], InputError),
    ],
)
def test_patterns_that_name_nothing_or_a_file_twice_are_refused(
    tree: Path, patterns: list[str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        expand_sources(patterns)
    with pytest.raises(InputError):
        find_sources(patterns)


def test_a_limit_stops_before_the_next_file_is_opened(tmp_path: Path) -> None:
    first, second = put(tmp_path, "a.txt", "a\n\nb\n \nc\n"), put(tmp_path, "b.txt", b"\xff\n")
    texts, report = read(first, second, limit=2)
    assert (texts, report.skipped) == (["a", "b"], {"empty": 1})
    with pytest.raises(InputError, match=r"b\.txt: no rows"):
        read(first, second, limit=4)
    with pytest.raises(InputError, match="at least 1"):
        read(first, limit=0)


# --- rows in memory --------------------------------------------------------------------------------------


class Frame:
    """A data frame as pandas or polars has it: iterating gives names of columns, the stream gives rows."""

    def __init__(self, data: pa.Table | pa.ChunkedArray) -> None:
        self._data = data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data.column_names)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


class Dataset:
    """A dataset as Hugging Face has it: iterating gives dictionaries."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(rows_of(TEXTS))


class Mixed:
    """A data frame whose column has values of two types, which pandas finds when it gives the stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table({"text": pa.array(["a", 3], pa.string())}).__arrow_c_stream__(requested_schema)


TABLE = pa.Table.from_pylist(rows_of(TEXTS))
# Categories as polars gives them.
CATEGORIES = pa.DictionaryArray.from_arrays(range(len(TEXTS)), pa.array(TEXTS, pa.string_view()))
MEMORY: dict[str, Any] = {
    "list": list(TEXTS),
    "tuple": tuple(TEXTS),
    "generator": (text for text in TEXTS),
    "numpy": np.array(TEXTS),
    "objects": np.array(TEXTS, dtype=object),
    "dictionaries": rows_of(TEXTS),
    "numpy scalars": [{**row, "label": np.int64(row["label"])} for row in rows_of(TEXTS)],
    "generator of dictionaries": (row for row in rows_of(TEXTS)),
    "dataset": Dataset(),
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "reader": TABLE.to_reader(),
    "column": TABLE.column("text"),
    "frame": Frame(TABLE),
    "series": Frame(TABLE.column("text")),
    "categories": Frame(pa.table({"text": CATEGORIES})),
}


@pytest.mark.parametrize("kind", MEMORY)
def test_rows_in_memory_are_those_of_a_file(kind: str) -> None:
    (source,) = find_sources(MEMORY[kind])
    check_sources([source], ReadOptions())
    texts, report = read(source)
    assert texts == TEXTS
    assert report.example == TEXTS[0]
    assert corpus_name_of(source) == "corpus"
    if kind in ("dictionaries", "numpy scalars", "dataset", "table", "frame"):
        (batch,) = read_batches([source], ReadOptions("text", "number", "label"), ReadReport())
        assert batch == RowBatch(TEXTS, ids=["0", "1", "2", "3", "4"], labels=[0, 1, 0, 1, 0])
        with pytest.raises(MissingInputError, match="nope"):
            check_sources([source], ReadOptions("nope"))


def test_bad_rows_in_memory_are_counted() -> None:
    texts, report = read(memory_rows(["a", None, float("nan"), 3, " ", "b\0", np.str_("c")]), on_bad="skip")
    assert texts == ["a", "c"]
    assert report.skipped == {"null": 2, "not a string": 1, "empty": 1, "nul byte": 1}
    assert report.first_skipped["null"] == "<memory>:2"


@pytest.mark.parametrize(
    "given",
    [[], {"train": ["a"]}, 5, b"bytes", [["a"]], io.StringIO("a\n"), [{"a": 1, "b": 2}], None, Mixed()],
    ids=lambda given: type(given).__name__,
)
def test_values_other_than_lists_of_texts_are_refused(given: object) -> None:
    with pytest.raises(InputError):
        read(*find_sources(given))


def test_a_list_of_strings_is_files_or_texts_and_never_both(tree: Path) -> None:
    for files in (["a.txt"], [Path("a.txt"), Path("b.txt")], ["[ab].txt", "-"]):
        assert not any(isinstance(one, MemoryRows) for one in find_sources(files))
    for missing in (["gone.txt"], ["a.txt", "deep/gone"], "A text."):
        with pytest.raises(MissingInputError):
            find_sources(missing)
    for texts in (["A text."], ["A text?", "What [is] this*"], ["a", "b.c"], ["one\ntwo.txt"], ["w " * 400]):
        assert read(*find_sources(texts))[0] == texts
    with pytest.raises(InputError, match="mix"):
        find_sources(["a.txt", "A text."])
    assert read(*find_sources([{"text": "a.txt"}, {"text": "A text."}]))[0] == ["a.txt", "A text."]


# --- any text --------------------------------------------------------------------------------------------

# Surrogates cannot be encoded, NUL and the separator of pairs are skipped, and a line break ends a line where
# nothing quotes it.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\x1f"), min_size=1).filter(
    lambda text: not text.isspace()
)
AS_THEY_COME = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("kind", ENDINGS)
@given(texts=st.lists(TEXT, min_size=1, max_size=20))
@AS_THEY_COME
def test_any_text_comes_back(tmp_path: Path, kind: str, texts: list[str]) -> None:
    if kind in ("text", "tsv"):
        # A return at the end of a line belongs to its ending, a mark at the beginning to the file.
        texts = [f"_{text}_".replace("\t", " ").replace("\r", " ") for text in texts]
    path = put(tmp_path, f"rows{ENDINGS[kind]}", encoded(kind, rows_of(texts)))
    assert read(path, text_column=None if kind == "text" else "text")[0] == texts


@given(data=st.binary(max_size=300))
@AS_THEY_COME
def test_no_line_of_any_bytes_is_lost_uncounted(tmp_path: Path, data: bytes) -> None:
    texts, report = read_data(tmp_path, "rows.txt", b"first\n" + data)
    assert report.rows + report.skipped.total() == len(io.BytesIO(b"first\n" + data).readlines())
    assert all(text.encode() in b"first\n" + data for text in texts)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        path = put(tmp_path, "rows.txt.gz", gzip.compress(b"a sentence of some length\n" * rows, 1))
        tracemalloc.start()
        try:
            for _ in read_batches([path], ReadOptions(), ReadReport(), batch_rows=256):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small = peak(10_000)
    assert peak(40_000) < small * 1.2 + 100_000
