"""A corpus keeps its rows in order, has an identity of its content alone, and never half exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.corpus import corpus as module
from embedcache.corpus.corpus import Corpus, store_corpus
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, StorageError
from embedcache.keys import key_array
from embedcache.testing import sentences

TEXTS = [*sentences(8), "Žluťoučký kůň 🐎", "  blanks kept  "]
IDS = [f"id-{number}" for number in range(10)]
LABELS = [number % 3 for number in range(10)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_ROWS", 4)


def cut(
    texts: list[str], ids: list[str] | None = None, labels: list[Any] | None = None, *, rows: int = 3
) -> Iterator[RowBatch]:
    edges = [*range(0, len(texts), rows), len(texts)]
    for a, b in pairwise(edges):
        yield RowBatch(texts[a:b], ids and ids[a:b], labels and labels[a:b])


def stored(folder: Path, *columns: Any, name: str = "corpus", rows: int = 3, replace: bool = False) -> Corpus:
    corpus, _ = store_corpus(folder, name, cut(*columns, rows=rows), ReadReport(), replace=replace)
    return corpus


def digest(folder: Path, *columns: Any, rows: int = 3) -> str:
    found = stored(folder, *columns, rows=rows).info.digest
    shutil.rmtree(folder)
    return found


def test_rows_come_back_in_order_over_several_parts(tmp_path: Path) -> None:
    stored(tmp_path, TEXTS, IDS, LABELS)
    corpus = Corpus(tmp_path / "corpus")
    names = sorted(path.name for path in corpus.folder.iterdir())
    assert names == ["corpus.json", "part-00000.arrow", "part-00001.arrow", "part-00002.arrow"]
    assert len(corpus) == 10
    assert corpus.name == "corpus"
    assert corpus.texts() == TEXTS
    assert corpus.labels() == LABELS
    assert (corpus.keys() == key_array(TEXTS)).all()
    assert list(corpus.iter_texts()) == [TEXTS[:4], TEXTS[4:8], TEXTS[8:]]
    rows = np.array([9, 0, 5, 5, 3])
    assert corpus.texts(rows) == [TEXTS[row] for row in rows]
    assert corpus.labels(rows) == [LABELS[row] for row in rows]


def test_parts_carry_the_row_numbers_and_ids(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS, IDS)
    parts = [pa.ipc.open_file(path).get_batch(0) for path in sorted(corpus.folder.glob("*.arrow"))]
    assert [row for part in parts for row in part.column("row").to_pylist()] == list(range(10))
    assert [one for part in parts for one in part.column("id").to_pylist()] == IDS


@pytest.mark.parametrize("labels", [[0.5] * 10, ["a", "b"] * 5, [2**62] * 10])
def test_labels_keep_their_type(tmp_path: Path, labels: list[Any]) -> None:
    found = stored(tmp_path, TEXTS, None, labels).labels()
    assert found == labels
    assert [type(label) for label in found] == [type(label) for label in labels]


def test_labels_that_were_not_kept_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no labels: build it with --label-column"):
        stored(tmp_path, TEXTS).labels()


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 10, 100])
def test_how_the_reader_cuts_its_batches_does_not_show(tmp_path: Path, rows: int) -> None:
    one = stored(tmp_path / "one", TEXTS, IDS, LABELS, rows=3)
    two = stored(tmp_path / "two", TEXTS, IDS, LABELS, rows=rows)
    assert one.info == two.info
    for path in one.folder.iterdir():
        assert path.read_bytes() == (two.folder / path.name).read_bytes()


def test_the_digest_depends_on_every_row_and_column(tmp_path: Path) -> None:
    swapped = [TEXTS[1], TEXTS[0], *TEXTS[2:]]
    variants: list[tuple[Any, ...]] = [
        (TEXTS,),
        (swapped,),
        (TEXTS[:-1],),
        ([*TEXTS, TEXTS[0]],),
        ([*TEXTS[:-1], TEXTS[-1] + " "],),
        (TEXTS, IDS),
        (TEXTS, IDS[::-1]),
        (TEXTS, None, LABELS),
        (TEXTS, None, [*LABELS[:-1], 7]),
        (TEXTS, None, [str(label) for label in LABELS]),
        (TEXTS, None, [float(label) for label in LABELS]),
        (TEXTS, None, IDS),
        (TEXTS, IDS, LABELS),
        (swapped, IDS, LABELS),
    ]
    digests = [digest(tmp_path / "corpora", *columns) for columns in variants]
    assert len(set(digests)) == len(variants)
    assert digests == [digest(tmp_path / "corpora", *columns, rows=7) for columns in variants]


def test_the_digest_does_not_depend_on_the_name(tmp_path: Path) -> None:
    assert stored(tmp_path, TEXTS, name="a").info.digest == stored(tmp_path, TEXTS, name="b").info.digest


def test_the_same_rows_again_change_nothing(tmp_path: Path) -> None:
    first = stored(tmp_path, TEXTS)
    times = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    _, was_there = store_corpus(tmp_path, "corpus", cut(TEXTS), ReadReport())
    assert was_there
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == times
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_other_rows_under_the_same_name_are_refused_unless_replaced(tmp_path: Path) -> None:
    stored(tmp_path, TEXTS)
    with pytest.raises(
        InputError, match=r"another corpus called 'corpus' \(10 rows, .*has 9 rows.*--replace"
    ):
        stored(tmp_path, TEXTS[:9])
    assert Corpus(tmp_path / "corpus").texts() == TEXTS
    _, was_there = store_corpus(tmp_path, "corpus", cut(TEXTS[:3]), ReadReport(), replace=True)
    assert not was_there
    assert Corpus(tmp_path / "corpus").texts() == TEXTS[:3]
    assert sorted(path.name for path in tmp_path.rglob("*.arrow")) == ["part-00000.arrow"]
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_what_the_reader_skipped_is_kept(tmp_path: Path) -> None:
    report = ReadReport()

    def batches() -> Iterator[RowBatch]:
        yield from cut(TEXTS)
        report.skip("empty", "file:3")

    corpus, _ = store_corpus(tmp_path, "corpus", batches(), report)
    assert corpus.info.skipped == {"empty": 1}
    assert Corpus(corpus.folder).info == corpus.info


@pytest.mark.parametrize("place", [1, 9])
def test_repeated_ids_are_refused(tmp_path: Path, place: int) -> None:
    ids = [*IDS]
    ids[place] = IDS[0]
    with pytest.raises(InputError, match="1 of 10 ids stand more than once"):
        stored(tmp_path, TEXTS, ids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [InputError("cut off"), KeyboardInterrupt()])
def test_a_reader_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def batches() -> Iterator[RowBatch]:
        yield from cut(TEXTS)
        raise error

    with pytest.raises(type(error)):
        store_corpus(tmp_path, "corpus", batches(), ReadReport())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "-x", " a", "a b", "a\n", "x" * 101]
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot name a corpus: .*--name"):
        stored(tmp_path, TEXTS, name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "nli_2024-05.v2", "Straße", "x" * 100])
def test_plain_names_are_taken(tmp_path: Path, name: str) -> None:
    assert stored(tmp_path, TEXTS, name=name).folder == tmp_path / name


def without(path: Path, column: str) -> None:
    part = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    part = part.select([name for name in part.schema.names if name != column])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, part.schema) as writer:
        writer.write_batch(part)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(b"ARROW1\0\0" + bytes(200)),
        lambda path: shutil.copy(path.with_name("part-00002.arrow"), path),
        lambda path: without(path, "original"),
        lambda path: without(path, "key"),
        lambda path: without(path, "id"),
        lambda path: without(path, "label"),
    ],
    ids=["missing", "empty", "cut", "zeros", "swapped", "no text", "no key", "no id", "no label"],
)
def test_a_damaged_part_is_found(tmp_path: Path, damage: Any) -> None:
    folder = stored(tmp_path, TEXTS, IDS, LABELS).folder
    damage(folder / "part-00001.arrow")
    for read in (Corpus.texts, Corpus.keys, Corpus.labels, lambda corpus: list(corpus.iter_texts())):
        with pytest.raises(CorruptCacheError, match=r"part-00001\.arrow is damaged .*vectors are kept"):
            read(Corpus(folder))


@settings(max_examples=200)
@given(st.data())
def test_a_flipped_bit_in_a_part_ends_cleanly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        stored(folder, TEXTS[:4], IDS[:4], LABELS[:4])
        shutil.copy(folder / "corpus" / "part-00000.arrow", folder / "whole")
    damaged = bytearray((folder / "whole").read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "corpus" / "part-00000.arrow").write_bytes(damaged)
    try:
        corpus = Corpus(folder / "corpus")
        assert len(corpus.texts()) == len(corpus.labels()) == len(corpus.keys()) == 4
    except CorruptCacheError:
        return


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", "{}", '{"version": "1"}', '{"version": 1}'])
def test_a_damaged_description_is_found(tmp_path: Path, content: str) -> None:
    folder = stored(tmp_path, TEXTS).folder
    (folder / "corpus.json").write_text(content)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged .*vectors are kept"):
        Corpus(folder)


def test_a_newer_corpus_asks_for_an_upgrade(tmp_path: Path) -> None:
    folder = stored(tmp_path, TEXTS).folder
    (folder / "corpus.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(CacheFormatError, match="upgrade embedcache"):
        Corpus(folder)


def test_rows_are_taken_inside_their_part(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS, None, LABELS)
    rows = np.random.default_rng(0).integers(0, len(TEXTS), 50)
    assert corpus.texts(rows) == [TEXTS[row] for row in rows]
    assert corpus.labels(rows) == [LABELS[row] for row in rows]
    assert corpus.texts(np.empty(0, np.int64)) == []
    for beyond in (-1, len(TEXTS)):
        with pytest.raises(IndexError, match=r"of 10$"):
            corpus.texts(np.array([0, beyond]))


def test_taking_a_few_rows_copies_only_those(tmp_path: Path) -> None:
    corpus = stored(tmp_path, [f"{number} {'x' * 1_000_000}" for number in range(10)])
    rows = np.array([9, 0, 5])
    corpus.texts(rows[:1])  # maps the parts
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        found = corpus.texts(rows)
    finally:
        pa.set_memory_pool(usual)
    assert [text.split()[0] for text in found] == ["9", "0", "5"]
    assert 0 < counting.max_memory() < 4_000_000


def test_replacing_deletes_the_old_rows_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path, TEXTS)
    seen = []
    rmtree = shutil.rmtree

    def watched(folder: Path, **settings: Any) -> None:
        if "-old-" in folder.name:
            seen.append(Corpus(tmp_path / "corpus").texts())
        rmtree(folder, **settings)

    monkeypatch.setattr(shutil, "rmtree", watched)
    stored(tmp_path, TEXTS[:3], replace=True)
    assert seen == [TEXTS[:3]]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_replacement_that_fails_brings_the_old_rows_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    stored(tmp_path, TEXTS)
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if target == tmp_path / "corpus" and "-old-" not in path.name:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        stored(tmp_path, TEXTS[:3], replace=True)
    assert Corpus(tmp_path / "corpus").texts() == TEXTS
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
