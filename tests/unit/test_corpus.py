"""A corpus keeps its rows in order, and what is not as it was written is found when it is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus_helpers
import numpy as np
import pyarrow as pa
import pytest
from corpus_helpers import IDS, LABELS, TEXTS, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.corpus.corpus import Corpus, read_info
from embedcache.corpus.part import part_schema
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, sha256_file, write_sealed_json
from embedcache.keys import KEY_DTYPE, key_array


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_helpers.small_parts(monkeypatch)


def part_path(corpus: Corpus, number: int) -> Path:
    return corpus.folder / corpus.parts[number].file_name


def reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a description as somebody would who can seal it again."""
    value = read_sealed_json(folder / "corpus.json")
    change(value)
    write_sealed_json(folder / "corpus.json", value)


def test_rows_come_back_in_order_over_several_parts(tmp_path: Path) -> None:
    stored(tmp_path, TEXTS, IDS, LABELS)
    corpus = Corpus(tmp_path / "corpus")
    assert len(corpus) == 10
    assert corpus.name == "corpus"
    assert corpus.texts() == TEXTS
    assert corpus.ids() == IDS
    assert corpus.labels() == LABELS
    assert (corpus.keys() == key_array(TEXTS)).all()
    assert list(corpus.iter_texts()) == [TEXTS[:4], TEXTS[4:8], TEXTS[8:]]
    rows = np.array([9, 0, 5, 5, 3])
    assert corpus.texts(rows) == [TEXTS[row] for row in rows]
    assert corpus.ids(rows) == [IDS[row] for row in rows]
    assert corpus.labels(rows.astype(np.uint32)) == [LABELS[row] for row in rows]


def test_parts_are_named_by_their_bytes_and_listed_in_order(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS, IDS)
    assert [part.rows for part in corpus.parts] == [4, 4, 2]
    assert [sha256_file(part_path(corpus, number)) for number in range(3)] == [
        part.sha256 for part in corpus.parts
    ]
    assert {path.name for path in corpus.folder.iterdir()} == {
        "corpus.json",
        *(part.file_name for part in corpus.parts),
    }
    batches = [pa.ipc.open_file(part_path(corpus, number)).get_batch(0) for number in range(3)]
    assert [row for batch in batches for row in batch.column("row").to_pylist()] == list(range(10))
    assert [one for batch in batches for one in batch.column("id").to_pylist()] == IDS
    assert batches[0].schema.names == ["row", "key", "original", "id"]


def test_keys_come_one_mapped_array_a_part(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    before = pa.total_allocated_bytes()
    parts = list(corpus.iter_keys())
    assert pa.total_allocated_bytes() == before
    assert [len(keys) for keys in parts] == [4, 4, 2]
    assert all(keys.dtype == KEY_DTYPE and keys.base is not None for keys in parts)
    assert (np.concatenate(parts) == key_array(TEXTS)).all()


def test_uneven_parts_are_searched_by_their_first_rows(tmp_path: Path) -> None:
    texts = ["x" * 30, "a", "b", "y" * 70, "c", "z" * 45, "d", "e"]
    corpus = stored(tmp_path, texts, None, list(range(8)), bytes_=47)
    assert [part.rows for part in corpus.parts] == [3, 1, 3, 1]
    rows = np.random.default_rng(0).integers(0, len(texts), 60)
    assert corpus.texts(rows) == [texts[row] for row in rows]
    assert corpus.labels(rows) == rows.tolist()


@pytest.mark.parametrize("labels", [[0.5] * 10, ["a", "b"] * 5, [2**62] * 10])
def test_labels_keep_their_type(tmp_path: Path, labels: list[Any]) -> None:
    found = stored(tmp_path, TEXTS, None, labels).labels()
    assert found == labels
    assert [type(label) for label in found] == [type(label) for label in labels]


def test_what_was_not_kept_is_asked_for(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    with pytest.raises(InputError, match="has no labels: build it with --label-column"):
        corpus.labels()
    with pytest.raises(InputError, match="has no ids: build it with --id-column"):
        corpus.ids()


def test_rows_beyond_the_corpus_are_refused(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS, None, LABELS)
    assert corpus.texts(np.empty(0, np.int64)) == []
    for beyond in (-1, len(TEXTS)):
        with pytest.raises(IndexError, match=r"of 10$"):
            corpus.texts(np.array([0, beyond]))


def test_taking_a_few_rows_copies_only_those(tmp_path: Path) -> None:
    corpus = stored(tmp_path, [f"{number} {'x' * 1_000_000}" for number in range(10)], bytes_=1 << 27)
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


def test_parts_are_opened_when_their_rows_are_asked_for(tmp_path: Path) -> None:
    folder = stored(tmp_path, TEXTS).folder
    corpus = Corpus(folder)
    part_path(corpus, 2).unlink()
    assert corpus.texts(np.array([0, 7])) == [TEXTS[0], TEXTS[7]]
    assert corpus.missing_parts() == [part_path(corpus, 2)]
    with pytest.raises(CorruptCacheError, match="is damaged"):
        corpus.texts(np.array([8]))


def test_opened_parts_keep_no_file_open(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    texts = corpus.texts()
    # Files of others, whose objects are collected only now, may be closed meanwhile.
    assert len(list(descriptors.iterdir())) <= before
    assert texts == TEXTS


def rewritten(path: Path, **changes: Any) -> None:
    """Write a part anew with other columns; None leaves one out."""
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), **changes}
    kept = pa.record_batch({name: column for name, column in columns.items() if column is not None})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, kept.schema) as writer:
        writer.write_batch(kept)


def with_batches(path: Path, count: int) -> None:
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(count):
            writer.write_batch(batch)


def with_gap(path: Path) -> None:
    schema = part_schema({"original": "large_string", "id": "large_string", "label": "int64"})
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    gaps = pa.array([None, *batch.column("id").to_pylist()[1:]], pa.large_string())
    columns = [gaps if name == "id" else batch.column(name) for name in schema.names]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def linked(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere.arrow"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(b"ARROW1\0\0" + bytes(200)),
        lambda path: rewritten(path, row=None),
        lambda path: rewritten(path, original=None),
        lambda path: rewritten(path, key=None),
        lambda path: rewritten(path, id=None),
        lambda path: rewritten(path, label=None),
        lambda path: rewritten(path, label=pa.array([0.5] * 4)),
        lambda path: rewritten(path, key=pa.array([b"12345678"] * 4, pa.binary(8))),
        lambda path: rewritten(path, more=pa.array([1] * 4)),
        lambda path: with_batches(path, 0),
        lambda path: with_batches(path, 2),
        with_gap,
        linked,
        piped,
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=str.split(
        "missing empty cut zeros no-row no-text no-key no-id no-label other-label narrow-key one-more "
        "no-batch two-batches gap link pipe folder"
    ),
)
def test_a_damaged_part_is_found(tmp_path: Path, damage: Any) -> None:
    corpus = stored(tmp_path, TEXTS, IDS, LABELS)
    damage(part_path(corpus, 1))
    for read in (
        Corpus.texts,
        Corpus.keys,
        Corpus.labels,
        Corpus.ids,
        lambda one: list(one.iter_texts()),
        lambda one: list(one.iter_keys()),
    ):
        with pytest.raises(CorruptCacheError) as caught:
            read(Corpus(corpus.folder))
        message = str(caught.value)
        assert message.startswith(f"corpus part {part_path(corpus, 1)} is damaged (")
        assert f"'embedcache repair --cache {tmp_path.parent}'" in message
        assert "\n" not in message


def test_a_part_with_other_rows_is_found(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    shutil.copy(part_path(corpus, 2), part_path(corpus, 1))
    with pytest.raises(CorruptCacheError, match="2 rows, expected 4"):
        corpus.texts()


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_in_a_part_ends_cleanly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        stored(folder, TEXTS[:4], IDS[:4], LABELS[:4])
    corpus = Corpus(folder / "corpus")
    path, whole = part_path(corpus, 0), folder / "whole"
    if not whole.exists():
        shutil.copy(path, whole)
    shutil.copy(whole, path)
    size = path.stat().st_size
    flip(path, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
    try:
        assert len(corpus.texts()) == len(corpus.labels()) == len(corpus.ids()) == len(corpus.keys()) == 4
    except CorruptCacheError:
        return


@settings(max_examples=200)
@given(st.data())
def test_absurd_numbers_in_a_header_end_cleanly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "absurd"
    if not folder.exists():
        stored(folder, TEXTS[:4], IDS[:4], LABELS[:4])
    corpus = Corpus(folder / "corpus")
    path, whole = part_path(corpus, 0), folder / "whole"
    if not whole.exists():
        shutil.copy(path, whole)
    content = bytearray(whole.read_bytes())
    place = data.draw(st.integers(0, len(content) // 8 - 1)) * 8
    number = data.draw(st.sampled_from([2**63 - 1, -1, 2**62, 2**40, -(2**63), 2**31 - 1, 2**35]))
    content[place : place + 8] = number.to_bytes(8, "little", signed=True)
    path.write_bytes(content)
    try:
        assert len(corpus.texts()) == len(corpus.labels()) == len(corpus.ids()) == len(corpus.keys()) == 4
    except CorruptCacheError:
        return


def test_every_flipped_byte_of_the_description_is_found(tmp_path: Path) -> None:
    path = stored(tmp_path, TEXTS[:4]).folder / "corpus.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position, position % 8)
        with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged .*repair.*vectors are kept"):
            read_info(path.parent)
        path.write_bytes(whole)
    assert Corpus(path.parent).texts() == TEXTS[:4]


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", "{}", "[" * 100_000, '{"version": 2}'])
def test_a_damaged_description_is_found(tmp_path: Path, content: str) -> None:
    folder = stored(tmp_path, TEXTS).folder
    (folder / "corpus.json").write_text(content)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged .*vectors are kept"):
        Corpus(folder)


def set_part(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["parts"][0].update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        set_part("sha256", "../../../../etc/passwd"),
        set_part("sha256", "A" * 64),
        set_part("sha256", "a" * 63),
        set_part("sha256", "a" * 64 + "\n"),
        set_part("sha256", None),
        set_part("rows", 0),
        set_part("rows", -4),
        set_part("rows", 5),
        set_part("rows", 4.0),
        set_part("rows", True),
        lambda content: (set_part("rows", 65537)(content), content.update(rows=65543)),
        lambda content: (set_part("rows", 10**30)(content), content.update(rows=10**30 + 6)),
        lambda content: content.pop("parts"),
        lambda content: content.update(parts=[], rows=0),
        lambda content: content.update(parts="abc"),
        lambda content: content.update(name="other"),
        lambda content: content.update(rows=11),
        lambda content: content.update(digest="0" * 64),
        lambda content: content.update(columns={}),
        lambda content: content["columns"].update(extra={"type": "int64", "digest": "0" * 64}),
        lambda content: content["columns"]["label"].update(type="binary"),
        lambda content: content["columns"]["original"].update(digest="0" * 64),
        lambda content: content.update(skipped={"empty": "many"}),
    ],
)
def test_a_description_that_lies_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = stored(tmp_path, TEXTS, IDS, LABELS).folder
    reseal(folder, change)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged"):
        Corpus(folder)


def test_a_newer_corpus_asks_for_an_upgrade(tmp_path: Path) -> None:
    folder = stored(tmp_path, TEXTS).folder
    reseal(folder, lambda content: content.update(version=3, parts="another way"))
    with pytest.raises(
        CacheFormatError, match=r"has format version 3, .* reads version 2: upgrade embedcache"
    ):
        Corpus(folder)


def test_a_corpus_moved_to_another_name_is_found(tmp_path: Path) -> None:
    stored(tmp_path, TEXTS).folder.rename(tmp_path / "other")
    with pytest.raises(CorruptCacheError, match="it describes a corpus called 'corpus'"):
        Corpus(tmp_path / "other")


@pytest.mark.parametrize("what", ["corpus.json", ""])
def test_a_link_in_the_place_of_a_description_is_refused(tmp_path: Path, what: str) -> None:
    place = stored(tmp_path, TEXTS).folder / what
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCacheError, match="symbolic link"):
        Corpus(tmp_path / "corpus")


def test_the_description_is_plain_json(tmp_path: Path) -> None:
    folder = stored(tmp_path, TEXTS, IDS, LABELS).folder
    value = json.loads((folder / "corpus.json").read_text())
    assert value["version"] == 2
    assert (value["name"], value["rows"], value["skipped"]) == ("corpus", 10, {})
    assert [part["rows"] for part in value["parts"]] == [4, 4, 2]
    assert {name: column["type"] for name, column in value["columns"].items()} == {
        "original": "large_string",
        "id": "large_string",
        "label": "int64",
    }


def test_a_text_that_is_not_the_one_that_was_stored_is_never_read(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    path = part_path(corpus, 0)
    sound = path.read_bytes()
    place = sound.index(TEXTS[1].encode())
    for _ in range(2):
        assert Corpus(corpus.folder).texts() == TEXTS
        # A letter for a letter: nothing else about the file is wrong.
        path.write_bytes(sound[:place] + b"#" + sound[place + 1 :])
        with pytest.raises(CorruptCacheError, match=r"not those that its name is the digest of.*repair"):
            Corpus(corpus.folder).texts()
        with pytest.raises(CorruptCacheError):
            list(Corpus(corpus.folder).iter_keys())
        path.write_bytes(sound)
