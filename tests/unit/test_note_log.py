"""Notes in a file that only grows: what a pull has converted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from note_helpers import SOURCE, shard
from share_helpers import make_cache

from embedcache import note_log
from embedcache.cache import Cache
from embedcache.check.verify import verify
from embedcache.conversions import Conversions
from embedcache.note_log import check_log
from embedcache.own_notes import ANCHOR
from embedcache.share import PullChoice, pull, push


def noted(cache: Path) -> list[str]:
    return sorted(Conversions(Cache(cache)).all())


def file_of(cache: Path) -> Path:
    return cache / "derived" / "remotes" / "converted.log"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with one note."""
    folder = Cache.create(tmp_path / "cache").folder
    Conversions(Cache(folder)).add({shard(0): SOURCE})
    return folder


def test_notes_last_and_are_part_of_a_sound_cache(cache: Path) -> None:
    Conversions(Cache(cache)).add({shard(1): shard(0)})
    assert Conversions(Cache(cache)).all() == {shard(0): SOURCE, shard(1): shard(0)}
    assert Conversions(Cache(cache)).get(shard(2)) is None
    assert not verify(cache).findings


def test_one_more_note_is_one_more_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(note_log, "write_bytes")
    notes, sizes = Conversions(Cache(cache)), [file_of(cache).stat().st_size]
    for number in range(1, 50):
        notes.add({shard(number): SOURCE})
        sizes.append(file_of(cache).stat().st_size)
    assert {after - before for before, after in pairwise(sizes)} == {2 * 64 + 19}
    # What is noted already adds nothing.
    notes.add({shard(7): SOURCE})
    assert file_of(cache).stat().st_size == sizes[-1]
    assert noted(cache) == sorted(map(shard, range(50)))


def test_a_pull_writes_one_line_for_each_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cache(tmp_path / "mine", codec="float32", shard_rows=5)
    push(tmp_path / "mine", str(tmp_path / "remote"))
    written: list[Path] = []
    monkeypatch.setattr(note_log, "write_step", lambda step, path: written.append(path))
    monkeypatch.setattr(
        note_log, "write_bytes", lambda path, *data: (written.append(path), path.write_bytes(b"".join(data)))
    )
    done = pull(tmp_path / "there", str(tmp_path / "remote"), PullChoice(codec="int8"))
    file = file_of(tmp_path / "there")
    assert done.converted == len(noted(tmp_path / "there")) == 48
    # Each is written and synced, the first with the file.
    assert written.count(file) == 2 * done.converted


def test_a_line_that_was_not_finished_is_no_note_and_in_nobodys_way(cache: Path) -> None:
    before = file_of(cache).read_bytes()
    Conversions(Cache(cache)).add({shard(1): SOURCE})
    after = file_of(cache).read_bytes()
    for end in range(len(before), len(after)):
        file_of(cache).write_bytes(after[:end])
        assert noted(cache) == [shard(0)]
        assert not verify(cache).findings
    reader = Conversions(Cache(cache))
    Conversions(Cache(cache)).add({shard(2): SOURCE})
    reader.refresh()
    assert sorted(reader.all()) == noted(cache) == sorted([shard(0), shard(2)])
    assert len(file_of(cache).read_bytes()) == len(after)


def test_any_flipped_byte_is_found_and_takes_no_note_before_it_along(cache: Path) -> None:
    for number in (1, 2):
        Conversions(Cache(cache)).add({shard(number): shard(number + 1)})
    data = file_of(cache).read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        file_of(cache).write_bytes(bytes(changed))
        with pytest.raises(ValueError, match="are as they were written"):
            check_log(file_of(cache))
        if place >= last:
            assert noted(cache) == sorted(map(shard, range(2)))
    (finding,) = verify(cache).findings
    assert finding.is_damage


def test_of_somebody_elses_file_one_line_is_read(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(cache, tmp_path / "copy")
    with file_of(tmp_path / "copy").open("ab") as handle:
        handle.truncate(1 << 40)
    assert noted(tmp_path / "copy") == []
    file_of(tmp_path / "copy").write_bytes(b"x" * 1000)
    assert noted(tmp_path / "copy") == []


@pytest.mark.parametrize(
    "lose", [lambda file: file.unlink(), lambda file: file.with_name(ANCHOR).unlink()], ids=["file", "anchor"]
)
def test_what_is_lost_is_written_again_by_whoever_knows_it(cache: Path, lose: Callable[[Path], None]) -> None:
    notes = Conversions(Cache(cache))
    lose(file_of(cache))
    assert noted(cache) == []
    notes.add({shard(1): SOURCE})
    assert file_of(cache).is_file()


def test_threads_lose_nothing_to_each_other(cache: Path) -> None:
    notes = Conversions(Cache(cache))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: notes.add({shard(number): SOURCE}), range(1, 40)))
    assert sorted(notes.all()) == noted(cache) == sorted(map(shard, range(40)))


def test_without_a_place_to_write_notes_last_as_long_as_the_object(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    notes = Conversions(Cache(cache))
    notes.add({shard(1): SOURCE})
    assert dict(notes.all()) == {shard(0): SOURCE, shard(1): SOURCE}
    assert noted(cache) == [shard(0)]
