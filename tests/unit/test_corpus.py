"""Stored corpora: rows in order, stored as a whole or not at all, and damage found when it is read."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import corpus_helpers
import numpy as np
import pytest
from corpus_helpers import IDS, LABELS, TEXTS, Failing, content, cut, stored

from embedcache import fsio
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import read_info
from embedcache.corpus.origin import SourceNote, note_path, observe, read_note, unchanged, write_note
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch
from embedcache.corpus.sources import memory_rows
from embedcache.corpus.store import store_corpus
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, sha256_file, write_sealed_json
from embedcache.keys import key_array

OTHERS = [*TEXTS[:5], "another text", *TEXTS[7:]]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_helpers.small_parts(monkeypatch)


def part_path(corpus: Corpus, number: int) -> Path:
    return corpus.folder / corpus.parts[number].file_name


# Rows


@pytest.mark.parametrize("labels", [LABELS, [f"l{one}" for one in LABELS], [one / 4 for one in LABELS]])
def test_rows_come_back_in_order_over_several_parts(tmp_path: Path, labels: list[Any]) -> None:
    stored(tmp_path, TEXTS, IDS, labels)
    corpus = Corpus(tmp_path / "corpus")
    assert (len(corpus), corpus.name) == (10, "corpus")
    assert (corpus.texts(), corpus.ids(), corpus.labels()) == (TEXTS, IDS, labels)
    assert {type(label) for label in corpus.labels()} == {type(labels[0])}
    assert list(corpus.iter_texts()) == [TEXTS[:4], TEXTS[4:8], TEXTS[8:]]
    assert (corpus.keys() == key_array(TEXTS)).all()
    with pytest.raises(InputError, match="label_column"):
        stored(tmp_path, TEXTS, IDS, name="bare").labels()
    rows = np.array([9, 0, 5, 5, 3])
    assert corpus.texts(rows) == [TEXTS[row] for row in rows]
    assert corpus.labels(rows.astype(np.uint32)) == [labels[row] for row in rows]
    assert (corpus.keys_of(rows) == corpus.keys()[rows]).all()
    assert corpus.texts(rows[:0]) == []
    for beyond in (-1, 10):
        with pytest.raises(IndexError):
            corpus.texts(np.array([0, beyond]))


# The same rows are the same files


@pytest.mark.parametrize(("rows", "bytes_"), [(1, 1 << 20), (7, 60), (100, 1)])
def test_how_the_reader_cuts_its_batches_does_not_show(tmp_path: Path, rows: int, bytes_: int) -> None:
    one = stored(tmp_path / "one", TEXTS, IDS, LABELS, rows=rows, bytes_=bytes_)
    other = stored(tmp_path / "other", TEXTS, IDS, LABELS, rows=4, bytes_=bytes_)
    assert content(one.folder) == content(other.folder)
    assert one.texts() == TEXTS
    assert all(sha256_file(part_path(one, number)) == file.sha256 for number, file in enumerate(one.parts))


def test_the_digest_depends_on_every_row_and_column_and_on_no_name(tmp_path: Path) -> None:
    numbers = [LABELS, [str(label) for label in LABELS], [float(label) for label in LABELS]]
    variants: list[tuple[Any, ...]] = [(TEXTS,), (TEXTS[:9],), (TEXTS[::-1],), (OTHERS,)]
    variants += [(TEXTS, IDS), (TEXTS, IDS[::-1]), *((TEXTS, None, labels) for labels in numbers)]
    digests = [stored(tmp_path / str(n), *one).info.digest for n, one in enumerate(variants)]
    assert len(set(digests)) == len(variants)
    assert stored(tmp_path, TEXTS, name="other").info.digest == digests[0]


# Storing


def test_the_same_rows_again_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ReadReport()
    report.skip("empty", "rows.txt:3")
    first, was_there = store_corpus(tmp_path, "corpus", cut(TEXTS, IDS), report)
    assert not was_there
    assert read_info(first.folder).skipped == {"empty": 1}
    monkeypatch.setattr(fsio, "on_write_step", Failing(0))
    for replace in (False, True):
        _, was_there = store_corpus(tmp_path, "corpus", cut(TEXTS, IDS), ReadReport(), replace=replace)
        assert was_there


@pytest.mark.parametrize(
    "batch",
    [
        RowBatch(["a"], None, None),
        RowBatch(["a"], ["1", "2"], [1]),
        RowBatch(["a"], ["1"], ["x"]),
        RowBatch(["a"], ["1"], [2**63]),
        RowBatch(["\ud800"], ["1"], [1]),
        RowBatch(["an id there was"], ["0"], [1]),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(tmp_path: Path, batch: RowBatch) -> None:
    with pytest.raises(InputError):
        store_corpus(tmp_path, "corpus", iter([RowBatch(["x"], ["0"], [0]), batch]), ReadReport())
    assert not (tmp_path / "corpus" / "corpus.json").exists()


@pytest.mark.parametrize("error", [InputError("bad row"), KeyboardInterrupt(), None])
def test_a_reader_that_fails_or_has_no_rows_changes_nothing(
    tmp_path: Path, error: BaseException | None
) -> None:
    def failing() -> Iterator[RowBatch]:
        if error is not None:
            yield from cut(OTHERS)
            raise error

    stored(tmp_path, TEXTS)
    for name in ("corpus", "new"):
        with pytest.raises(InputError if error is None else type(error)):
            store_corpus(tmp_path, name, failing(), ReadReport(), replace=True)
    assert Corpus(tmp_path / "corpus").texts() == TEXTS
    assert not (tmp_path / "new" / "corpus.json").exists()


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a corpus"):
        stored(tmp_path / "corpora", TEXTS, name=name)
    assert stored(tmp_path, TEXTS, name="ž_1.x-y").name == "ž_1.x-y"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "corpus").symlink_to(tmp_path / "outside")
    for replace in (False, True):
        with pytest.raises(CorruptCacheError, match="symbolic link"):
            stored(tmp_path, TEXTS, replace=replace)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_killed_anywhere_the_old_corpus_or_the_new_one_is_there_and_the_same_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    expected = content(stored(tmp_path / "expected", OTHERS, IDS[:9]).folder)
    (tmp_path / "start").mkdir()
    if is_replaced:
        stored(tmp_path / "start", TEXTS, IDS)
    steps, step = 100, 0
    while step < steps:
        folder = Path(shutil.copytree(tmp_path / "start", tmp_path / str(step)))
        hook = Failing(step, KeyboardInterrupt())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fsio, "on_write_step", hook)
            # The dead clean nothing up.
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
            with suppress(KeyboardInterrupt):
                stored(folder, OTHERS, IDS[:9], replace=True)
                steps = step
        if is_replaced or (folder / "corpus" / "corpus.json").exists():
            assert Corpus(folder / "corpus").texts() in (OTHERS, TEXTS if is_replaced else OTHERS)
        stored(folder, OTHERS, IDS[:9], replace=True)
        assert content(folder / "corpus").items() >= expected.items()
        step += 2
    assert 10 < steps < 100


@pytest.mark.parametrize(("first", "replace"), [(OTHERS, False), (TEXTS, False), (TEXTS, True)])
def test_of_two_builders_the_slower_agrees_is_refused_or_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[str], replace: bool
) -> None:
    def finish_first(step: str, path: Path) -> None:
        if (step, path.name) == ("written", "corpus.json"):
            monkeypatch.setattr(fsio, "on_write_step", None)
            stored(tmp_path, first)

    monkeypatch.setattr(fsio, "on_write_step", finish_first)
    if first == OTHERS or replace:
        stored(tmp_path, OTHERS, replace=replace)
    else:
        with pytest.raises(InputError, match="other rows"):
            stored(tmp_path, OTHERS)
    assert Corpus(tmp_path / "corpus").texts() == (OTHERS if replace else first)


# Damage


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "link": linked,
    # A letter for a letter: nothing else about the file is wrong.
    "letter": lambda path: path.write_bytes(path.read_bytes().replace(TEXTS[4].encode()[:5], b"#####")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_found_by_every_read_and_the_same_call_writes_it_again(
    tmp_path: Path, damage: str
) -> None:
    corpus = stored(tmp_path, TEXTS, IDS, LABELS)
    before, path = content(corpus.folder), part_path(corpus, 1)
    DAMAGE[damage](path)
    for read in (Corpus.texts, Corpus.keys, Corpus.labels, lambda one: list(one.iter_keys())):
        with pytest.raises(CorruptCacheError, match=rf"{path.name} .*'embedcache repair"):
            read(Corpus(corpus.folder))
    stored(tmp_path, TEXTS, IDS, LABELS)
    assert content(corpus.folder) == before
    assert not path.is_symlink()


def test_a_damaged_description_is_only_replaced_when_asked_to_and_a_newer_one_never(tmp_path: Path) -> None:
    path = stored(tmp_path, TEXTS).folder / "corpus.json"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptCacheError):
        stored(tmp_path, TEXTS)
    assert stored(tmp_path, TEXTS, replace=True).texts() == TEXTS
    write_sealed_json(path, {**read_sealed_json(path), "version": 3, "parts": "another way"})
    before = content(tmp_path)
    with pytest.raises(CacheFormatError, match="upgrade embedcache"):
        stored(tmp_path, OTHERS, replace=True)
    assert content(tmp_path) == before


LIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "rows of a part": lambda value: value["parts"][0].update(rows=0),
    "more rows than a part has": lambda value: (
        value["parts"][0].update(rows=65537),
        value.update(rows=65543),
    ),
    "a part twice": lambda value: value["parts"].append(value["parts"][0]),
    "no parts": lambda value: value.update(parts=[], rows=0),
    "rows": lambda value: value.update(rows=11),
    "digest": lambda value: value.update(digest="0" * 64),
    "no columns": lambda value: value.update(columns={}),
    "type of a column": lambda value: value["columns"]["label"].update(type="binary"),
    "a field more": lambda value: value.update(more=1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_description_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    folder = stored(tmp_path, TEXTS, IDS, LABELS).folder
    value = read_sealed_json(folder / "corpus.json")
    LIES[lie](value)
    write_sealed_json(folder / "corpus.json", value)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged"):
        Corpus(folder)


# The note of the sources

OPTIONS = ReadOptions(text_column="text", limit=5, rows=("a=b",), delimiter=";")


def aged(path: Path, text: str = "a\nb\n") -> Path:
    path.write_text(text)
    os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    return path


def noted(folder: Path, files: list[Path]) -> SourceNote:
    write_note(folder, "corpus", SourceNote("d" * 64, observe(files), OPTIONS, "text"))
    found = read_note(folder, "corpus")
    assert found is not None
    return found


def test_sources_left_alone_are_unchanged_and_any_change_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [aged(tmp_path / "one.txt"), aged(tmp_path / "two.txt", "c\n")]
    note = noted(tmp_path / "derived", files)
    monkeypatch.chdir(tmp_path)
    assert unchanged(note, [Path("one.txt"), Path("two.txt")], OPTIONS, append=False)
    assert not unchanged(note, files[::-1], OPTIONS, append=False)
    assert not unchanged(note, files[:1], OPTIONS, append=False)
    assert not unchanged(note, files, dataclasses.replace(OPTIONS, limit=6), append=False)
    for change in (
        lambda: aged(files[0], "a\nc\n"),  # another ctime
        lambda: aged(files[0], "a\nb\nc\n"),
        lambda: (files[0].unlink(), aged(files[0])),
    ):
        change()
        assert not unchanged(note, files, OPTIONS, append=False)


def test_files_that_may_change_unseen_are_not_noted(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.txt"
    fresh.write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    for source in ("-", fresh, tmp_path / "gone", tmp_path / "pipe", memory_rows(["a"])):
        assert observe([source]) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 3}'])
def test_a_damaged_note_counts_as_none(tmp_path: Path, text: str) -> None:
    noted(tmp_path, [aged(tmp_path / "one.txt")])
    note_path(tmp_path, "corpus").write_text(text)
    assert read_note(tmp_path, "corpus") is None
