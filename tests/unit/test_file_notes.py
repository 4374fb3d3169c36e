"""Notes on checked files, of which a cache may have a million."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from embedcache.fsio import file_state
from embedcache.store import digests
from embedcache.store.digests import FileNotes, NotedFiles, read_noted, write_noted

MANY = 1_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Notes on a million shards, and on an index, whose name is longer."""
    note = tmp_path_factory.mktemp("large") / "checked.bin"
    names = np.array([f"{number:064x}.arrow".encode() for number in range(MANY)])
    states = np.arange(5 * MANY, dtype="<u8").reshape(-1, 5)
    index = f"{7:032x}-{7:064x}.mdb"
    write_noted(note, NotedFiles(names, states).union(NotedFiles.of({index: [1, 2, 3, 4, 5]})))
    return note


def test_notes_on_a_million_files_are_known_in_little_memory(large: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    notes = read_noted(large)
    for number in (0, 1, 77_777, MANY - 1):
        assert notes.get(f"{number:064x}.arrow") == list(range(5 * number, 5 * number + 5))
    assert notes.get(f"{MANY:064x}.arrow") is None
    assert notes.get("x" * 300) is None
    assert notes.get(f"{7:032x}-{7:064x}.mdb") == [1, 2, 3, 4, 5]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_of_very_many_files_none_is_read_again(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, shard = tmp_path / "checked.bin", tmp_path / "shard.arrow"
    shard.write_bytes(b"vectors")
    note.write_bytes(large.read_bytes())
    digest = hashlib.sha256(b"vectors").hexdigest()
    assert FileNotes(note).find_liars({shard: digest}) == []
    assert len(read_noted(note).names) == MANY + 2
    read: list[Path] = []
    monkeypatch.setattr(digests, "sha256_file", read.append)
    notes = FileNotes(note)
    assert notes.knows(shard)
    assert notes.find_liars({shard: "0" * 64}) == []
    assert read == []


def test_any_flipped_or_missing_byte_makes_notes_none(tmp_path: Path) -> None:
    note, files = tmp_path / "checked.bin", [tmp_path / "a", tmp_path / "bc"]
    for path in files:
        path.write_text(path.name)
    FileNotes(note).remember(files)
    data = note.read_bytes()
    for place in range(len(data)):
        note.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ValueError, match="digest"):
            read_noted(note)
        note.write_bytes(data[:place])
        with pytest.raises(ValueError, match=r"bytes|digest"):
            read_noted(note)
    assert not FileNotes(note).knows(files[0])


@pytest.mark.parametrize(
    ("count", "width", "rest"),
    [(1 << 62, 255, 100), (-1, 1, 0), (1, 0, 40), (2, 1, 41), (0, 1, 1), (1, 1 << 40, 41), (1, 300, 340)],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, count: int, width: int, rest: int) -> None:
    note = tmp_path / "checked.bin"
    content = np.array([count, width], dtype="<i8").tobytes() + bytes(rest)
    note.write_bytes(hashlib.sha256(content).digest() + content)
    with pytest.raises(ValueError, match="do not fit"):
        read_noted(note)
    assert FileNotes(note).find_liars({}) == []


def test_a_file_too_large_for_notes_is_not_read(tmp_path: Path) -> None:
    note = tmp_path / "checked.bin"
    with note.open("wb") as handle:
        handle.truncate(1 << 42)
    with pytest.raises(ValueError, match="bytes, expected"):
        read_noted(note)


def test_states_of_every_file_system_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    file.write_text("a")
    state = [*file_state(file)[:1], -1, 5, 6, (1 << 64) - 1]
    monkeypatch.setattr(digests, "file_state", lambda path: state)
    FileNotes(tmp_path / "checked.bin").remember([file])
    assert FileNotes(tmp_path / "checked.bin").knows(file)


def test_no_notes_are_no_notes(tmp_path: Path) -> None:
    write_noted(tmp_path / "checked.bin", NotedFiles.of({}))
    assert len(read_noted(tmp_path / "checked.bin").names) == 0
