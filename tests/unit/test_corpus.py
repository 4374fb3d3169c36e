"""Stored corpora: rows in order, stored as a whole or not at all, and damage found when it is read."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import corpus_helpers
import numpy as np
import pyarrow as pa
import pytest
from corpus_helpers import IDS, LABELS, TEXTS, Failing, content, cut, stored
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache import fsio
from embedcache.corpus import part
from embedcache.corpus.corpus import Corpus, CorpusRef
from embedcache.corpus.description import read_info
from embedcache.corpus.origin import SourceNote, note_path, observe, read_note, unchanged, write_note
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch
from embedcache.corpus.sources import memory_rows
from embedcache.corpus.store import store_corpus
from embedcache.errors import (
    CacheFormatError,
    CorruptCacheError,
    EmbedCacheError,
    InputError,
    StorageError,
)
from embedcache.fsio import read_sealed_json, sha256_file, write_sealed_json
from embedcache.keys import key_array

OTHERS = [*TEXTS[:5], "another text", *TEXTS[7:]]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_helpers.small_parts(monkeypatch)


def part_path(corpus: Corpus, number: int) -> Path:
    return corpus.folder / corpus.parts[number].file_name


# --- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [LABELS, [f"l{one}" for one in LABELS], [one / 4 for one in LABELS]])
def test_rows_come_back_in_order_over_several_parts(tmp_path: Path, labels: list[Any]) -> None:
    stored(tmp_path, TEXTS, IDS, labels)
    corpus = Corpus(tmp_path / "corpus")
    assert (len(corpus), corpus.name) == (10, "corpus")
    assert (corpus.texts(), corpus.ids(), corpus.labels()) == (TEXTS, IDS, labels)
    assert {type(label) for label in corpus.labels()} == {type(labels[0])}
    assert list(corpus.iter_texts()) == [TEXTS[:4], TEXTS[4:8], TEXTS[8:]]
    assert [len(keys) for keys in corpus.iter_keys()] == [4, 4, 2]
    assert (corpus.keys() == key_array(TEXTS)).all()
    rows = np.array([9, 0, 5, 5, 3])
    assert corpus.texts(rows) == [TEXTS[row] for row in rows]
    assert corpus.labels(rows.astype(np.uint32)) == [labels[row] for row in rows]
    assert (corpus.keys_of(rows) == corpus.keys()[rows]).all()
    assert corpus.texts(np.empty(0, np.int64)) == []
    for beyond in (-1, 10):
        with pytest.raises(IndexError):
            corpus.texts(np.array([0, beyond]))


def test_columns_that_were_not_kept_are_an_error(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    with pytest.raises(InputError, match="id_column"):
        corpus.ids()
    with pytest.raises(InputError, match="label_column"):
        corpus.labels()


def test_parts_are_opened_when_their_rows_are_asked_for_and_keep_no_file_open(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    part_path(corpus, 2).unlink()
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    assert corpus.texts(np.array([0, 7])) == [TEXTS[0], TEXTS[7]]
    assert len(list(descriptors.iterdir())) <= before
    assert corpus.missing_parts() == [part_path(corpus, 2)]
    with pytest.raises(CorruptCacheError):
        corpus.texts(np.array([8]))


def test_a_corpus_is_named_with_its_digest_or_without() -> None:
    assert CorpusRef.parse("words@abcdef01") == CorpusRef("words", "abcdef01")
    assert CorpusRef.parse("words") == CorpusRef("words")
    for wrong in ("words@abc", "words@ABCDEF", "../words", "words@", ""):
        with pytest.raises(InputError):
            CorpusRef.parse(wrong)


# --- the same rows are the same files --------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("bytes_", [1, 60, 1 << 20])
def test_how_the_reader_cuts_its_batches_does_not_show(tmp_path: Path, rows: int, bytes_: int) -> None:
    one = stored(tmp_path / "one", TEXTS, IDS, LABELS, rows=rows, bytes_=bytes_)
    other = stored(tmp_path / "other", TEXTS, IDS, LABELS, rows=4, bytes_=bytes_)
    assert content(one.folder) == content(other.folder)
    assert one.texts() == TEXTS
    assert all(sha256_file(part_path(one, number)) == file.sha256 for number, file in enumerate(one.parts))


def test_a_part_ends_before_the_row_that_would_make_it_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x" * 10, "y" * 10, "z" * 30, "ab", "c"]
    assert [file.rows for file in stored(tmp_path, texts, bytes_=20).parts] == [2, 1, 2]
    monkeypatch.undo()
    assert (part.PART_ROWS, part.PART_BYTES) == (65536, 128 << 20)


def test_the_digest_depends_on_every_row_and_column_and_on_no_name(tmp_path: Path) -> None:
    variants = [
        (TEXTS,),
        (TEXTS[:9],),
        (TEXTS[::-1],),
        (OTHERS,),
        (TEXTS, IDS),
        (TEXTS, IDS[::-1]),
        (TEXTS, None, LABELS),
        (TEXTS, IDS, LABELS),
        (TEXTS, None, [str(label) for label in LABELS]),
        (TEXTS, None, [float(label) for label in LABELS]),
    ]
    digests = [stored(tmp_path / str(n), *one).info.digest for n, one in enumerate(variants)]
    assert len(set(digests)) == len(variants)
    assert stored(tmp_path, TEXTS, name="other").info.digest == digests[0]


# --- storing ---------------------------------------------------------------------------------------------


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
    ("new", "difference"),
    [
        ((TEXTS[:9], IDS[:9]), "10 rows .*, not 9 rows"),
        (([*TEXTS[:9], "x"], IDS), "digest"),
        ((TEXTS,), "rows of id, text .*, not 10 rows of text"),
    ],
)
def test_other_rows_are_refused_or_replace_the_corpus(
    tmp_path: Path, new: tuple[Any, ...], difference: str
) -> None:
    before = content(stored(tmp_path, TEXTS, IDS).folder)
    with pytest.raises(InputError, match=rf"'corpus'.*{difference}.*overwrite"):
        stored(tmp_path, *new)
    assert Corpus(tmp_path / "corpus").ids() == IDS
    assert content(tmp_path / "corpus").items() >= before.items()
    assert stored(tmp_path, *new, replace=True).info == stored(tmp_path / "x", *new).info


@pytest.mark.parametrize("place", [1, 9])
def test_repeated_ids_are_refused(tmp_path: Path, place: int) -> None:
    with pytest.raises(InputError, match=rf"row {place}\).*unique"):
        stored(tmp_path, TEXTS, [*IDS[:place], IDS[0], *IDS[place + 1 :]])
    assert not (tmp_path / "corpus" / "corpus.json").exists()


@pytest.mark.parametrize(
    "batch",
    [
        RowBatch(["a"], None, None),
        RowBatch(["a"], ["1", "2"], [1]),
        RowBatch(["a"], ["1"], ["x"]),
        RowBatch(["a"], ["1"], [2**63]),
        RowBatch(["\ud800"], ["1"], [1]),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path, batch: RowBatch) -> None:
    with pytest.raises(InputError):
        store_corpus(tmp_path, "corpus", iter([RowBatch(["x"], ["0"], [0]), batch]), ReadReport())
    assert not (tmp_path / "corpus" / "corpus.json").exists()


@pytest.mark.parametrize("error", [InputError("bad row"), KeyboardInterrupt(), None])
def test_a_reader_that_fails_leaves_what_was_there(tmp_path: Path, error: BaseException | None) -> None:
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
    # What is written need not be written again.
    files = {path.name: path.stat().st_ino for path in (tmp_path / "new").glob("*")}
    stored(tmp_path, OTHERS, name="new")
    assert files.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "new").iterdir()}.items()


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot name a corpus"):
        stored(tmp_path / "corpora", TEXTS, name=name)
    assert stored(tmp_path, TEXTS, name="ž_1.x-y").name == "ž_1.x-y"


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "corpus").symlink_to(tmp_path / "outside")
    for replace in (False, True):
        with pytest.raises(CorruptCacheError, match="symbolic link"):
            stored(tmp_path / "corpora", TEXTS, replace=replace)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("damage", [Path.unlink, linked, lambda path: path.write_bytes(b"")])
def test_the_same_call_writes_damaged_parts_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    corpus = stored(tmp_path / "corpora", TEXTS, IDS)
    before = content(corpus.folder)
    damage(part_path(corpus, 1))
    assert store_corpus(tmp_path / "corpora", "corpus", cut(TEXTS, IDS), ReadReport())[1]
    assert content(corpus.folder) == before
    assert not part_path(corpus, 1).is_symlink()


def test_a_damaged_description_is_only_replaced_when_asked_to_and_a_newer_one_never(tmp_path: Path) -> None:
    path = stored(tmp_path, TEXTS).folder / "corpus.json"
    sound = path.read_bytes()
    path.write_bytes(sound[:-9])
    with pytest.raises(CorruptCacheError):
        stored(tmp_path, TEXTS)
    assert stored(tmp_path, TEXTS, replace=True).texts() == TEXTS
    write_sealed_json(path, {**read_sealed_json(path), "version": 3, "parts": "another way"})
    before = content(tmp_path)
    for read in (lambda: stored(tmp_path, OTHERS, replace=True), lambda: Corpus(path.parent)):
        with pytest.raises(CacheFormatError, match="upgrade embedcache"):
            read()
    assert content(tmp_path) == before


@pytest.mark.parametrize("failure", ["disk full", "interrupt", "kill"])
@pytest.mark.parametrize("before", [None, (TEXTS, IDS)], ids=["new", "replaced"])
def test_whatever_fails_wherever_the_same_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, before: tuple[Any, ...] | None
) -> None:
    new = (OTHERS, IDS[:9])
    expected = content(stored(tmp_path / "expected", *new).folder)
    (tmp_path / "start").mkdir()
    if before is not None:
        stored(tmp_path / "start", *before)
    undisturbed = Failing(-1)
    shutil.copytree(tmp_path / "start", tmp_path / "undisturbed")
    monkeypatch.setattr(fsio, "on_write_step", undisturbed)
    stored(tmp_path / "undisturbed", *new, replace=True)
    assert undisturbed.steps > 10
    for step in range(0, undisturbed.steps, 2):
        folder = tmp_path / f"{step}"
        shutil.copytree(tmp_path / "start", folder)
        error = OSError(errno.ENOSPC, "full") if failure == "disk full" else KeyboardInterrupt()
        monkeypatch.setattr(fsio, "on_write_step", Failing(step, error))
        with pytest.MonkeyPatch.context() as patch:
            if failure == "kill":
                # The dead clean nothing up.
                patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
            with suppress(StorageError if failure == "disk full" else KeyboardInterrupt):
                stored(folder, *new, replace=True)
        monkeypatch.setattr(fsio, "on_write_step", None)
        # At any instant the old corpus or the new one is there.
        if before is not None or (folder / "corpus" / "corpus.json").exists():
            assert Corpus(folder / "corpus").texts() in ([TEXTS, OTHERS] if before else [OTHERS])
        stored(folder, *new, replace=True)
        assert content(folder / "corpus").items() >= expected.items()


# --- several builds at once ------------------------------------------------------------------------------


def at_the_last_moment(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another build finish just before this one writes its description."""

    def hook(step: str, path: Path) -> None:
        if (step, path.name) == ("written", "corpus.json"):
            monkeypatch.setattr(fsio, "on_write_step", None)
            act()

    monkeypatch.setattr(fsio, "on_write_step", hook)


@pytest.mark.parametrize(("first", "replace"), [(OTHERS, False), (TEXTS, False), (TEXTS, True)])
def test_of_two_builders_the_slower_agrees_is_refused_or_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[str], replace: bool
) -> None:
    at_the_last_moment(monkeypatch, lambda: stored(tmp_path, first))
    if first == OTHERS or replace:
        stored(tmp_path, OTHERS, replace=replace)
    else:
        with pytest.raises(InputError, match="other rows"):
            stored(tmp_path, OTHERS)
    assert Corpus(tmp_path / "corpus").texts() == (OTHERS if replace else first)


def test_many_builders_of_one_name_have_one_winner(tmp_path: Path) -> None:
    start = threading.Barrier(6)
    outcomes: list[list[str] | EmbedCacheError] = []

    def work(texts: list[str]) -> None:
        start.wait()
        try:
            outcomes.append(stored(tmp_path, texts).texts())
        except EmbedCacheError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=([f"builder {n}", *TEXTS],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in outcomes if isinstance(one, list)]
    assert sum(isinstance(one, InputError) for one in outcomes) == 5
    assert Corpus(tmp_path / "corpus").texts() == winner


# --- damage and hostile files ----------------------------------------------------------------------------


def rewritten(path: Path, batches: int = 1, **changes: Any) -> None:
    """Write a part again with other columns; None leaves one out."""
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), **changes}
    kept = {name: column for name, column in columns.items() if column is not None}
    nullable = [pa.field(name, column.type, nullable=False) for name, column in kept.items()]
    batch = pa.RecordBatch.from_arrays(list(kept.values()), schema=pa.schema(nullable))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "no row": lambda path: rewritten(path, row=None),
    "other label": lambda path: rewritten(path, label=pa.array([0.5] * 4)),
    "one more": lambda path: rewritten(path, more=pa.array([1] * 4)),
    "gap": lambda path: rewritten(path, label=pa.array([None, 1, 2, 3])),
    "no batch": lambda path: rewritten(path, 0),
    "two batches": lambda path: rewritten(path, 2),
    "other rows": lambda path: shutil.copy(sorted(path.parent.glob("*.arrow"))[-1], path),
    "link": linked,
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    # A letter for a letter: nothing else about the file is wrong.
    "letter": lambda path: path.write_bytes(path.read_bytes().replace(TEXTS[4].encode()[:5], b"#####")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_found_whatever_is_read(tmp_path: Path, damage: str) -> None:
    corpus = stored(tmp_path, TEXTS, IDS, LABELS)
    assert corpus.texts() == TEXTS
    path = sorted(part_path(corpus, number) for number in range(2))[0]
    DAMAGE[damage](path)
    for read in (Corpus.texts, Corpus.keys, Corpus.labels, lambda one: list(one.iter_keys())):
        with pytest.raises(CorruptCacheError, match=rf"{path.name} .*'embedcache repair") as caught:
            read(Corpus(corpus.folder))
        assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_bit_or_absurd_number_in_a_part_ends_cleanly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    if not folder.exists():
        stored(folder, TEXTS[:4], IDS[:4], LABELS[:4])
        (folder / "whole").write_bytes(part_path(Corpus(folder / "corpus"), 0).read_bytes())
    whole = bytearray((folder / "whole").read_bytes())
    place = data.draw(st.integers(0, len(whole) // 8 - 1)) * 8
    if data.draw(st.booleans()):
        whole[place + data.draw(st.integers(0, 7))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        number = data.draw(st.sampled_from([2**63 - 1, -1, 2**62, 2**40, -(2**63), 2**31 - 1, 2**35]))
        whole[place : place + 8] = number.to_bytes(8, "little", signed=True)
    corpus = Corpus(folder / "corpus")
    part_path(corpus, 0).write_bytes(whole)
    if whole != (folder / "whole").read_bytes():
        with pytest.raises(CorruptCacheError):
            corpus.texts()


def test_every_flipped_byte_of_the_description_is_found(tmp_path: Path) -> None:
    path = stored(tmp_path, TEXTS[:4]).folder / "corpus.json"
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged"):
            read_info(path.parent)


def set_part(key: str, value: object) -> Change:
    return lambda content: content["parts"][0].update({key: value})


LIES: list[Change] = [
    set_part("sha256", "../../../../etc/passwd"),
    set_part("sha256", "a" * 63),
    set_part("sha256", "a" * 64 + "\n"),
    set_part("rows", 0),
    set_part("rows", 4.0),
    set_part("rows", True),
    set_part("more", 1),
    lambda value: (set_part("rows", 65537)(value), value.update(rows=65543)),
    lambda value: (set_part("rows", 10**30)(value), value.update(rows=10**30 + 6)),
    lambda value: value["parts"].append(value["parts"][0]),
    lambda value: value.pop("parts"),
    lambda value: value.update(parts=[], rows=0),
    lambda value: value.update(name="other"),
    lambda value: value.update(rows=11),
    lambda value: value.update(digest="0" * 64),
    lambda value: value.update(more=1),
    lambda value: value.update(columns={}),
    lambda value: value["columns"].update(extra={"type": "int64", "digest": "0" * 64}),
    lambda value: value["columns"]["label"].update(type="binary"),
    lambda value: value["columns"]["original"].update(digest="0" * 64),
    lambda value: value.update(skipped={"empty": "many"}),
    lambda value: value.update(version="2"),
    lambda value: value.clear(),
]


@pytest.mark.parametrize("number", range(len(LIES)))
def test_a_description_that_lies_is_refused(tmp_path: Path, number: int) -> None:
    folder = stored(tmp_path, TEXTS, IDS, LABELS).folder
    value = read_sealed_json(folder / "corpus.json")
    LIES[number](value)
    write_sealed_json(folder / "corpus.json", value)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged") as caught:
        Corpus(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["corpus.json", ""])
def test_a_corpus_behind_a_link_or_of_another_name_is_refused(tmp_path: Path, what: str) -> None:
    place = stored(tmp_path, TEXTS).folder / what
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCacheError, match="symbolic link"):
        Corpus(tmp_path / "corpus")
    stored(tmp_path, TEXTS, name="other").folder.rename(tmp_path / "renamed")
    with pytest.raises(CorruptCacheError, match="'other'"):
        Corpus(tmp_path / "renamed")


# --- the note of the sources -----------------------------------------------------------------------------

OPTIONS = ReadOptions(text_column="text", limit=5, rows=("a=b",), delimiter=";")
OLD = 1_600_000_000_123_456_789


def aged(path: Path, text: str = "a\nb\n", mtime_ns: int = OLD) -> Path:
    path.write_text(text)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def noted(files: list[Path]) -> SourceNote:
    seen = observe(files)
    assert seen is not None
    return SourceNote("d" * 64, seen, OPTIONS, "text")


def test_sources_left_alone_are_unchanged_and_any_change_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [aged(tmp_path / "one.txt"), aged(tmp_path / "two.txt", "c\n")]
    note = noted(files)
    write_note(tmp_path / "derived", "corpus", note)
    # An identical note is not written again.
    monkeypatch.setattr(fsio, "on_write_step", Failing(0))
    write_note(tmp_path / "derived", "corpus", note)
    found = read_note(tmp_path / "derived", "corpus")
    assert found == note
    monkeypatch.chdir(tmp_path)
    assert unchanged(found, [Path("one.txt"), Path("two.txt")], OPTIONS)
    assert not unchanged(note, files[::-1], OPTIONS)
    assert not unchanged(note, files[:1], OPTIONS)
    assert not unchanged(note, files, dataclasses.replace(OPTIONS, limit=6))
    for change in (
        lambda: aged(files[0], "a\nc\n"),  # another ctime
        lambda: aged(files[0], "a\nb\nc\n"),
        lambda: (files[0].unlink(), aged(files[0])),
    ):
        change()
        assert not unchanged(note, files, OPTIONS)


def test_what_may_change_unseen_is_not_noted(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.txt"
    fresh.write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    for source in ("-", fresh, tmp_path / "gone", tmp_path / "pipe", memory_rows(["a"])):
        assert observe([source]) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 3}', None])
def test_a_damaged_note_counts_as_none(tmp_path: Path, text: str | None) -> None:
    write_note(tmp_path, "corpus", noted([aged(tmp_path / "one.txt")]))
    path = note_path(tmp_path, "corpus")
    if text is None:
        value = read_sealed_json(path)
        write_sealed_json(path, {**value, "files": [[value["files"][0][0], ["4"]]]})
    else:
        path.write_text(text)
    assert read_note(tmp_path, "corpus") is None
