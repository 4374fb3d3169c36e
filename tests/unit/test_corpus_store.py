"""A corpus is a function of its rows, and at any instant it is there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus_helpers
import pytest
from corpus_helpers import IDS, LABELS, TEXTS, content, cut, stored
from damage import flip_middle

from embedcache import fsio
from embedcache.corpus import part
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError, InputError, StorageError
from embedcache.fsio import TEMPORARY_PREFIX, read_sealed_json, sha256_file, write_sealed_json
from embedcache.testing import sentences

# The first part is that of TEXTS, the others are not.
OTHERS = [*TEXTS[:4], *sentences(5, seed=1)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus_helpers.small_parts(monkeypatch)


def digest(folder: Path, *columns: Any, rows: int = 3) -> str:
    found = stored(folder, *columns, rows=rows).info.digest
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 10, 100])
@pytest.mark.parametrize("bytes_", [20, 100, 1 << 20])
def test_how_the_reader_cuts_its_batches_does_not_show(tmp_path: Path, rows: int, bytes_: int) -> None:
    stored(tmp_path / "one", TEXTS, IDS, LABELS, rows=3, bytes_=bytes_)
    stored(tmp_path / "two", TEXTS, IDS, LABELS, rows=rows, bytes_=bytes_)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_part_ends_before_the_row_that_would_make_it_too_large(tmp_path: Path) -> None:
    def parts(*columns: Any) -> list[int]:
        found = stored(tmp_path, *columns, bytes_=10, replace=True).parts
        return [one.rows for one in found]

    assert parts(["12345", "6789", "0", "a"]) == [3, 1]
    assert parts(["12345", "6789", "01", "a"]) == [2, 2]
    assert parts(["a", "x" * 50, "b", "c", "d", "e", "f"]) == [1, 1, 4, 1]
    assert parts(["äöüß€", "b"]) == [1, 1]
    assert parts(["a", "b", "c"], ["1234", "567", "8"]) == [2, 1]
    assert parts(["a", "b", "c"], None, ["1234", "567", "8"]) == [2, 1]


def test_parts_hold_what_their_documentation_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    assert (part.PART_ROWS, part.PART_BYTES) == (65536, 134217728)
    texts = [str(number) for number in range(65537)]
    assert [one.rows for one in stored(tmp_path, texts, rows=8192).parts] == [65536, 1]


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


def test_what_the_reader_skipped_is_kept(tmp_path: Path) -> None:
    report = ReadReport()

    def batches() -> Iterator[RowBatch]:
        yield from cut(TEXTS)
        report.skip("empty", "file:3")

    corpus, _ = store_corpus(tmp_path, "corpus", batches(), report)
    assert corpus.info.skipped == {"empty": 1}
    assert Corpus(corpus.folder).info == corpus.info


@pytest.mark.parametrize("columns", [(TEXTS,), (TEXTS, IDS, LABELS)])
def test_the_same_rows_again_write_nothing(
    tmp_path: Path, columns: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, *columns)
    before = content(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(fsio, "on_write_step", Failing(0, OSError(errno.EROFS, "Read-only file system")))
    for replace in (False, True):
        corpus, was_there = store_corpus(tmp_path, "corpus", cut(*columns), ReadReport(), replace=replace)
        assert was_there
        assert corpus.texts() == TEXTS
    assert content(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


@pytest.mark.parametrize(
    ("there", "new", "why"),
    [
        ((TEXTS,), (TEXTS[:9],), "it has 10 rows, this one has 9 rows, row 9 (counted from 0) is the first"),
        ((TEXTS[:8],), (TEXTS,), "it has 8 rows, this one has 10 rows, row 8 (counted from 0) is the first"),
        (
            (TEXTS,),
            ([*TEXTS[:5], "else", *TEXTS[6:]],),
            "both have 10 rows, with other texts, row 5 (counted from 0) is the first that differs",
        ),
        ((TEXTS,), (TEXTS[1:],), "it has 10 rows, this one has 9 rows, row 0"),
        (
            (TEXTS, IDS, LABELS),
            (TEXTS, IDS),
            "both have the same 10 texts, it has labels (it was built with --label-column), this one has",
        ),
        (
            (TEXTS,),
            (TEXTS, IDS),
            "both have the same 10 texts, it has no ids (it was built without --id-column), this one has)",
        ),
        (
            (TEXTS, None, LABELS),
            (TEXTS, None, [*LABELS[:6], 7, *LABELS[7:]]),
            "both have the same 10 texts, with other labels, row 6",
        ),
        ((TEXTS, IDS), (TEXTS, [*IDS[:-1], "last"]), "both have the same 10 texts, with other ids, row 9"),
        (
            (TEXTS, None, LABELS),
            (TEXTS, None, [str(label) for label in LABELS]),
            "both have the same 10 texts, with other labels)",
        ),
        ((TEXTS, IDS), (OTHERS,), "it has 10 rows, this one has 9 rows, it has ids (it was built with"),
    ],
)
def test_other_rows_under_the_same_name_are_refused_saying_why(
    tmp_path: Path, there: tuple[Any, ...], new: tuple[Any, ...], why: str
) -> None:
    stored(tmp_path, *there)
    before = content(tmp_path)
    with pytest.raises(InputError) as caught:
        stored(tmp_path, *new)
    assert f"the cache holds another corpus called 'corpus' ({why}" in str(caught.value)
    assert "choose another --name, or replace it with --replace (vectors are kept)" in str(caught.value)
    assert content(tmp_path) == before


def test_a_replaced_corpus_leaves_nothing_behind(tmp_path: Path) -> None:
    stored(tmp_path / "fresh", OTHERS, LABELS[:0] or None)
    stored(tmp_path / "replaced", TEXTS, IDS, LABELS)
    corpus, was_there = store_corpus(tmp_path / "replaced", "corpus", cut(OTHERS), ReadReport(), replace=True)
    assert not was_there
    assert corpus.texts() == OTHERS
    assert content(tmp_path / "replaced") == content(tmp_path / "fresh")


def test_parts_that_both_have_stay_as_they_are(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    shared = corpus.folder / corpus.parts[0].file_name
    before = shared.stat()
    replaced = stored(tmp_path, OTHERS, replace=True)
    assert replaced.parts[0] == corpus.parts[0]
    assert replaced.parts[1:] != corpus.parts[1:]
    assert (shared.stat().st_ino, shared.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("place", [1, 3, 4, 9])
def test_repeated_ids_are_refused(tmp_path: Path, place: int) -> None:
    ids = [*IDS]
    ids[place] = IDS[0]
    expected = rf"^1 of 10 ids stand more than once \(row {place} again has 'id-0'\): ids must be unique"
    with pytest.raises(InputError, match=expected):
        stored(tmp_path, TEXTS, ids)
    assert list(tmp_path.iterdir()) == []
    stored(tmp_path, TEXTS, IDS)
    before = content(tmp_path)
    with pytest.raises(InputError, match=expected):
        stored(tmp_path, TEXTS, ids, replace=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("error", [InputError("cut off"), ValueError("odd")])
@pytest.mark.parametrize("replace", [False, True])
def test_a_reader_that_fails_leaves_nothing(tmp_path: Path, error: Exception, replace: bool) -> None:
    def batches() -> Iterator[RowBatch]:
        yield from cut(OTHERS)
        raise error

    with pytest.raises(type(error)):
        store_corpus(tmp_path, "corpus", batches(), ReadReport())
    assert list(tmp_path.iterdir()) == []
    stored(tmp_path, TEXTS)
    before = content(tmp_path)
    with pytest.raises(type(error)):
        store_corpus(tmp_path, "corpus", batches(), ReadReport(), replace=replace)
    assert content(tmp_path) == before


def test_no_rows_are_refused(tmp_path: Path) -> None:
    for batches in ([], [RowBatch([], None, [])]):
        with pytest.raises(InputError, match="there are no rows for corpus 'corpus'"):
            store_corpus(tmp_path, "corpus", batches, ReadReport())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (
            RowBatch(["a"], None, None),
            "a batch has 1 originals; expected as many of each, of original, id, label",
        ),
        (RowBatch(["a"], ["1", "2"], [1]), "a batch has 1 originals, 2 ids, 1 labels"),
        (RowBatch(["a"], ["1"], []), "1 ids, 0 labels"),
        (RowBatch(["a"], ["1"], [0.5]), "label 0.5 is of type float, expected int"),
        (RowBatch(["a"], ["1"], [True]), "label True is of type bool, expected int"),
        (RowBatch(["a"], ["1"], [2**63]), "a value cannot be stored"),
        (RowBatch(["a"], [1], [1]), "id 1 is of type int, expected str"),  # type: ignore[list-item]
        (RowBatch(["a"], ["\ud800"], [1]), "expected text that is UTF-8"),
        (RowBatch(["\ud800"], ["1"], [1]), "expected text that is UTF-8"),
        (RowBatch([None], ["1"], [1]), "original None is of type NoneType"),  # type: ignore[list-item]
    ],
)
def test_batches_that_do_not_fit_together_are_refused(tmp_path: Path, batch: RowBatch, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        store_corpus(tmp_path, "corpus", [*cut(TEXTS, IDS, LABELS), batch], ReadReport())
    assert list(tmp_path.iterdir()) == []


def test_a_label_of_no_known_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label True is of type bool; expected str, int or float"):
        stored(tmp_path, TEXTS, None, [True] * 10)


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


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "corpus").symlink_to(tmp_path / "outside")
    for replace in (False, True):
        with pytest.raises(CorruptCacheError, match="is a symbolic link"):
            stored(tmp_path / "corpora", TEXTS, replace=replace)
    assert list((tmp_path / "outside").iterdir()) == []


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("damage", [Path.unlink, flip_middle, linked, lambda path: path.write_bytes(b"")])
def test_the_same_command_writes_damaged_parts_anew(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    corpus = stored(tmp_path / "corpora", TEXTS, IDS)
    before = content(tmp_path / "corpora")
    damage(corpus.folder / corpus.parts[1].file_name)
    _, was_there = store_corpus(tmp_path / "corpora", "corpus", cut(TEXTS, IDS), ReadReport())
    assert was_there
    shutil.rmtree(tmp_path / "corpora" / "elsewhere", ignore_errors=True)
    after = content(tmp_path / "corpora")
    after.pop("elsewhere", None)
    assert after == before
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_a_damaged_description_is_only_replaced_when_asked_to(tmp_path: Path) -> None:
    corpus = stored(tmp_path, TEXTS)
    before = content(tmp_path)
    flip_middle(corpus.folder / "corpus.json")
    broken = content(tmp_path)
    with pytest.raises(CorruptCacheError, match=r"corpus\.json is damaged"):
        stored(tmp_path, TEXTS)
    assert content(tmp_path) == broken
    stored(tmp_path, TEXTS, replace=True)
    assert content(tmp_path) == before


def test_a_corpus_of_a_newer_version_is_not_replaced(tmp_path: Path) -> None:
    path = stored(tmp_path, TEXTS).folder / "corpus.json"
    write_sealed_json(path, {**read_sealed_json(path), "version": 3})
    before = content(tmp_path)
    with pytest.raises(CacheFormatError, match="upgrade embedcache"):
        stored(tmp_path, OTHERS, replace=True)
    assert content(tmp_path) == before


class Failing:
    """Raises ``error`` at write step number ``at`` and every one after it; -1: never. Keeps what it saw."""

    def __init__(self, at: int, error: BaseException | None = None) -> None:
        self.at = at
        self.error = error
        self.seen: list[tuple[str, str]] = []

    def __call__(self, step: str, path: Path) -> None:
        self.seen.append((step, path.name))
        if self.error is not None and len(self.seen) > self.at:
            raise self.error


def files_are_whole(folder: Path) -> None:
    for path in folder.rglob("*.arrow"):
        if not path.name.startswith(TEMPORARY_PREFIX):
            assert sha256_file(path) == path.stem


FAILURES = {
    "disk full": OSError(errno.ENOSPC, "No space left on device"),
    "i/o error": OSError(errno.EIO, "Input/output error"),
    "interrupt": KeyboardInterrupt(),
    "kill": KeyboardInterrupt(),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("before", [None, (TEXTS, IDS)], ids=["new", "replaced"])
def test_whatever_fails_wherever_the_same_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, before: tuple[Any, ...] | None
) -> None:
    new = (OTHERS, IDS[:9])
    expected = content(stored(tmp_path / "expected", *new).folder)
    if before is not None:
        stored(tmp_path / "start", *before)
    else:
        (tmp_path / "start").mkdir()
    undisturbed = Failing(-1)
    shutil.copytree(tmp_path / "start", tmp_path / "undisturbed")
    monkeypatch.setattr(fsio, "on_write_step", undisturbed)
    stored(tmp_path / "undisturbed", *new, replace=True)
    assert len(undisturbed.seen) >= 20
    if failure == "kill":
        # The dead clean nothing up.
        monkeypatch.setattr(fsio, "_remove", lambda temporary: None)
    for at in range(len(undisturbed.seen)):
        folder = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "start", folder)
        monkeypatch.setattr(fsio, "on_write_step", Failing(at, FAILURES[failure]))
        with pytest.raises((StorageError, KeyboardInterrupt)) as caught:
            stored(folder, *new, replace=True)
        assert isinstance(caught.value, StorageError) == failure.startswith(("disk", "i/o"))
        monkeypatch.setattr(fsio, "on_write_step", None)
        files_are_whole(folder)
        if before is not None:
            assert Corpus(folder / "corpus").texts() in (before[0], OTHERS)
        elif (folder / "corpus" / "corpus.json").exists():
            assert Corpus(folder / "corpus").texts() == OTHERS
        stored(folder, *new, replace=True)
        left = content(folder / "corpus")
        temporary = {name for name in left if name.startswith(TEMPORARY_PREFIX)}
        assert not temporary or failure == "kill"
        assert {name: data for name, data in left.items() if name not in temporary} == expected


def test_what_was_written_before_an_interrupt_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> Iterator[RowBatch]:
        yield from cut(TEXTS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_corpus(tmp_path, "corpus", batches(), ReadReport())
    there = {path.name for path in tmp_path.rglob("*.arrow")}
    assert len(there) == 2
    steps = Failing(-1)
    monkeypatch.setattr(fsio, "on_write_step", steps)
    corpus = stored(tmp_path, TEXTS)
    written = {name for step, name in steps.seen if step == "renamed"}
    assert written == {"corpus.json", *(one.file_name for one in corpus.parts)} - there


def test_while_a_corpus_is_replaced_one_of_the_two_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, TEXTS)
    seen = []

    def look(step: str, path: Path) -> None:
        seen.append(Corpus(tmp_path / "corpus").texts())

    monkeypatch.setattr(fsio, "on_write_step", look)
    stored(tmp_path, OTHERS, replace=True)
    switch = seen.index(OTHERS)
    assert switch > 0
    assert seen == [TEXTS] * switch + [OTHERS] * (len(seen) - switch)


def at_the_last_moment(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let ``act`` happen once, just before the description appears."""

    def hook(step: str, path: Path) -> None:
        if (step, path.name) == ("synced", "corpus.json"):
            monkeypatch.setattr(fsio, "on_write_step", None)
            act()

    monkeypatch.setattr(fsio, "on_write_step", hook)


def test_two_builders_of_the_same_rows_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = content(stored(tmp_path / "expected", TEXTS, IDS).folder)
    at_the_last_moment(monkeypatch, lambda: stored(tmp_path / "both", TEXTS, IDS))
    corpus, was_there = store_corpus(tmp_path / "both", "corpus", cut(TEXTS, IDS), ReadReport())
    assert was_there
    assert corpus.texts() == TEXTS
    assert content(corpus.folder) == expected


def test_of_two_builders_of_other_rows_the_slower_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = content(stored(tmp_path / "expected", TEXTS).folder)
    at_the_last_moment(monkeypatch, lambda: stored(tmp_path / "both", TEXTS))
    with pytest.raises(
        InputError, match=r"another corpus called 'corpus' \(it has 10 rows, this one has 9 rows"
    ):
        stored(tmp_path / "both", OTHERS)
    assert content(tmp_path / "both" / "corpus") == expected


def test_a_builder_told_to_replace_replaces_what_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = content(stored(tmp_path / "expected", OTHERS).folder)
    at_the_last_moment(monkeypatch, lambda: stored(tmp_path / "both", TEXTS))
    assert stored(tmp_path / "both", OTHERS, replace=True).texts() == OTHERS
    assert content(tmp_path / "both" / "corpus") == expected


def test_many_builders_of_one_name_have_one_winner(tmp_path: Path) -> None:
    rows = [[f"builder {number}", *TEXTS] for number in range(6)]
    start = threading.Barrier(len(rows))
    outcomes: list[list[str] | EmbedCacheError] = []

    def work(texts: list[str]) -> None:
        start.wait()
        try:
            outcomes.append(stored(tmp_path, texts).texts())
        except EmbedCacheError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(texts,)) for texts in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [one for one in outcomes if isinstance(one, list)]
    refused = [one for one in outcomes if isinstance(one, InputError)]
    assert (len(winners), len(refused)) == (1, len(rows) - 1)
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.texts() == winners[0]
    assert {path.name for path in corpus.folder.iterdir()} == {
        "corpus.json",
        *(one.file_name for one in corpus.parts),
    }


def test_a_part_that_another_build_deletes_meanwhile_is_missed_in_time(tmp_path: Path) -> None:
    def batches() -> Iterator[RowBatch]:
        yield from cut(TEXTS)
        next((tmp_path / "corpus").glob("*.arrow")).unlink()

    with pytest.raises(StorageError, match=r"was deleted by another build .* run the same command again"):
        store_corpus(tmp_path, "corpus", batches(), ReadReport())
    assert not (tmp_path / "corpus" / "corpus.json").exists()
    assert stored(tmp_path, TEXTS).texts() == TEXTS


def test_leftovers_of_a_replacement_do_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, TEXTS)
    steps: list[tuple[str, Path]] = []

    def stop(step: str, path: Path) -> None:
        steps.append((step, path))
        if step == "remove":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(fsio, "on_write_step", stop)
    with pytest.raises(StorageError, match="the file system is read-only"):
        stored(tmp_path, OTHERS, replace=True)
    corpus, was_there = store_corpus(tmp_path, "corpus", cut(OTHERS), ReadReport())
    assert was_there
    assert corpus.texts() == OTHERS
    assert steps[-1][0] == "remove"
    monkeypatch.setattr(fsio, "on_write_step", None)
    stored(tmp_path, OTHERS)
    assert content(corpus.folder) == content(stored(tmp_path / "expected", OTHERS).folder)
