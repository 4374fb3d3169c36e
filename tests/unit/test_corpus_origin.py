"""An unchanged source need not be read again; whatever may have changed is."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from embedcache import fsio
from embedcache.corpus.origin import (
    SourceNote,
    note_path,
    observe,
    read_note,
    unchanged,
    write_note,
)
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import Source

OPTIONS = ReadOptions(text_column="text", limit=5)
OLD = 1_600_000_000_123_456_789


def aged(path: Path, text: str = "a\nb\n", mtime_ns: int = OLD) -> Path:
    path.write_text(text)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Source]:
    return [aged(tmp_path / "one.txt"), aged(tmp_path / "two.txt", "c\n")]


@pytest.fixture
def note(files: list[Source]) -> SourceNote:
    seen = observe(files)
    assert seen is not None
    return SourceNote("d" * 64, seen, OPTIONS)


def test_a_note_comes_back_as_it_was_written(tmp_path: Path, note: SourceNote) -> None:
    write_note(tmp_path / "derived", "news", note)
    assert read_note(tmp_path / "derived", "news") == note
    assert note_path(tmp_path / "derived", "news") == tmp_path / "derived" / "sources" / "news.json"
    assert note.paths == [tmp_path / "one.txt", tmp_path / "two.txt"]
    assert read_note(tmp_path / "derived", "other") is None


def test_sources_left_alone_are_unchanged(
    tmp_path: Path, files: list[Source], note: SourceNote, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unchanged(note, files, OPTIONS)
    (tmp_path / "link.txt").symlink_to(tmp_path / "one.txt")
    assert unchanged(note, [tmp_path / "link.txt", files[1]], OPTIONS)
    monkeypatch.chdir(tmp_path)
    assert unchanged(note, [Path("one.txt"), Path("two.txt")], OPTIONS)


def test_other_files_or_options_are_not_the_same(
    tmp_path: Path, files: list[Source], note: SourceNote
) -> None:
    assert not unchanged(note, files[:1], OPTIONS)
    assert not unchanged(note, files[::-1], OPTIONS)
    assert not unchanged(note, [*files, aged(tmp_path / "three.txt")], OPTIONS)
    for change in ({"limit": 6}, {"limit": None}, {"text_column": None}, {"label_column": "label"}):
        assert not unchanged(note, files, dataclasses.replace(OPTIONS, **change))


def test_a_change_of_a_file_shows(tmp_path: Path, files: list[Source], note: SourceNote) -> None:
    aged(tmp_path / "one.txt", "a\nb\nc\n")
    assert not unchanged(note, files, OPTIONS), "another size"
    aged(tmp_path / "one.txt", mtime_ns=OLD + 1)
    assert not unchanged(note, files, OPTIONS), "another time"
    aged(tmp_path / "one.txt", "x\ny\n")
    assert not unchanged(note, files, OPTIONS), "the old size and time put back"
    (tmp_path / "one.txt").unlink()
    assert not unchanged(note, files, OPTIONS), "gone"


def test_what_cannot_be_told_from_a_changed_file_is_not_noted(tmp_path: Path) -> None:
    old = aged(tmp_path / "old.txt")
    assert observe([old]) is not None
    assert observe(["-"]) is None
    assert observe([old, "-"]) is None
    assert observe([tmp_path / "none.txt"]) is None
    os.mkfifo(tmp_path / "pipe")
    assert observe([tmp_path / "pipe"]) is None


def test_a_file_so_fresh_that_it_may_change_unseen_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = OLD + 10_000_000_000
    monkeypatch.setattr("embedcache.corpus.origin.time.time_ns", lambda: now)
    assert observe([aged(tmp_path / "fresh.txt", mtime_ns=now - 1_000_000)]) is None
    assert observe([aged(tmp_path / "settled.txt", mtime_ns=now - 100_000_000)]) is not None
    whole_second = now // 1_000_000_000 * 1_000_000_000 - 1_000_000_000
    assert observe([aged(tmp_path / "coarse.txt", mtime_ns=whole_second)]) is None
    assert observe([aged(tmp_path / "coarse.txt", mtime_ns=whole_second - 1_000_000_000)]) is not None


def test_a_name_that_is_not_utf8_is_not_noted(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    assert observe([aged(path)]) is None


def test_a_damaged_note_counts_as_none(tmp_path: Path, note: SourceNote) -> None:
    write_note(tmp_path, "news", note)
    path = note_path(tmp_path, "news")
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert read_note(tmp_path, "news") is None
    for content in (b"", b"[]", b"\xff"):
        path.write_bytes(content)
        assert read_note(tmp_path, "news") is None
    for value in ({}, {"version": 1}, {"version": 99, "digest": "", "files": [], "options": {}}):
        fsio.write_sealed_json(path, value)
        assert read_note(tmp_path, "news") is None
    write_note(tmp_path, "news", note)
    assert path.read_bytes() == whole


def test_where_nothing_can_be_written_nothing_is_noted(
    tmp_path: Path, note: SourceNote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(step: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(fsio, "on_write_step", refuse)
    write_note(tmp_path / "derived", "news", note)
    assert read_note(tmp_path / "derived", "news") is None


def test_an_identical_note_is_not_written_again(
    tmp_path: Path, note: SourceNote, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_note(tmp_path, "news", note)
    steps: list[str] = []
    monkeypatch.setattr(fsio, "on_write_step", lambda step, path: steps.append(step))
    write_note(tmp_path, "news", note)
    assert steps == []
    write_note(tmp_path, "news", dataclasses.replace(note, digest="e" * 64))
    assert "renamed" in steps
