"""Notes of fetched shards: as much work for a shard however many there are, and no last copy deleted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from share_helpers import make_cache

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.errors import StorageError
from embedcache.share import push
from embedcache.share.mirror.known_notes import KnownNotes
from embedcache.share.mirror.mirror import Mirror
from embedcache.share.mirror_notes import StreamNote, streamed_shards

CONTRACT, REMOTE = "c" * 64, "d" * 32
ROWS = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache of sixty small shards; not to be changed."""
    return make_cache(tmp_path_factory.mktemp("notes") / "cache", shard_rows=ROWS)


@pytest.fixture
def remote(whole: Cache, tmp_path: Path) -> Path:
    push(whole, str(tmp_path / "remote"))
    return tmp_path / "remote"


def largest(whole: Cache) -> int:
    return max(shard.bytes for shard in whole.store(whole.teacher().contract).shards)


def object_of(remote: Path, name: str) -> Path:
    return remote / "objects" / name[:2] / name


def shard_names(mirror: Path) -> set[str]:
    return {path.stem for path in mirror.glob("teachers/*/shards/[0-9a-f]*.arrow")}


class Opened:
    """Counts files that are opened, and folders that are listed, below a folder. A hook stays for good."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.count = 0
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is not None and event in ("open", "os.listdir", "os.scandir"):
            self.count += str(arguments[0]).startswith(self.folder)

    @contextmanager
    def below(self, folder: Path) -> Iterator[None]:
        self.folder, self.count = str(folder), 0
        try:
            yield
        finally:
            self.folder = None


def test_a_fetch_opens_as_many_files_however_many_shards_there_are(remote, whole, tmp_path):
    opened, counts = Opened(), {}
    contract = whole.teacher().contract
    for room in (3, 40):
        folder = tmp_path / f"mirror-{room}"
        with Mirror.open(str(remote), folder, limit=room * largest(whole)) as mirror:
            names = mirror.store(contract)._names
            mirror.store(contract).want([[0, 1], [2]])
            for name in names[:45]:
                mirror._shards.open(contract.id, name)
            with opened.below(folder):
                for name in names[45:]:
                    mirror._shards.open(contract.id, name)
        counts[room] = opened.count
        assert len(shard_names(folder)) in (room, room + 1)
    # A shard is deleted for each that comes, now and then none or two.
    assert 0 < counts[40] < 1.2 * counts[3]


def test_what_was_damaged_on_the_remote_since_is_not_deleted_here(remote, whole, tmp_path):
    contract = whole.teacher().contract
    with Mirror.open(str(remote), tmp_path / "mirror", limit=3 * largest(whole)) as mirror:
        names = mirror.store(contract)._names
        mirror._shards.open(contract.id, names[0])
        damaged = object_of(remote, names[0])
        right = damaged.read_bytes()
        damaged.write_bytes(bytes([*right[:-1], right[-1] ^ 1]))
        for name in names[1:12]:
            mirror._shards.open(contract.id, name)
        assert names[0] in shard_names(tmp_path / "mirror")
        # Once it is mended on the remote, which gives it another time, it may go.
        damaged.write_bytes(right)
        for name in names[12:24]:
            mirror._shards.open(contract.id, name)
        assert names[0] not in shard_names(tmp_path / "mirror")


def test_an_object_that_was_sent_again_is_read_before_the_shard_is_deleted(remote, whole, tmp_path):
    contract = whole.teacher().contract
    with Mirror.open(str(remote), tmp_path / "mirror", limit=largest(whole)) as mirror:
        names = mirror.store(contract)._names
        mirror._shards.open(contract.id, names[0])
        os.utime(object_of(remote, names[0]), (1, 1))
        mirror._shards.open(contract.id, names[1])
        assert shard_names(tmp_path / "mirror") == {names[1]}
        # Where nothing tells when the object was written, as after a crash of the machine, as well.
        (note,) = (tmp_path / "mirror" / "derived" / "stream").glob("*/*.json")
        note.write_bytes(b"")
        damaged = object_of(remote, names[1])
        damaged.write_bytes(bytes(damaged.stat().st_size))
        with pytest.raises(StorageError, match="which are kept"):
            mirror._shards.open(contract.id, names[2])


def test_what_another_process_has_done_is_seen(remote, whole, tmp_path):
    contract, limit = whole.teacher().contract, 4 * largest(whole)
    with (
        Mirror.open(str(remote), tmp_path / "mirror", limit=limit) as one,
        Mirror.open(str(remote), tmp_path / "mirror", limit=limit) as other,
    ):
        names = one.store(contract)._names
        for number, name in enumerate(names[:20]):
            (one, other)[number % 2]._shards.open(contract.id, name)
            shards = [path.stat().st_size for path in (tmp_path / "mirror").glob("teachers/*/shards/*.arrow")]
            assert sum(shards) <= limit
        # The one that would be the next to go is wanted again.
        kept = sorted(shard_names(tmp_path / "mirror") & set(names[:18]))[0]
        one._shards.want(contract.id, [kept])
        other._shards.open(contract.id, names[30])
        assert kept in shard_names(tmp_path / "mirror")


def test_notes_that_were_deleted_by_hand_keep_nobody_waiting(remote, whole, tmp_path):
    contract = whole.teacher().contract
    with Mirror.open(str(remote), tmp_path / "mirror", limit=3 * largest(whole)) as mirror:
        names = mirror.store(contract)._names
        for name in names[:3]:
            mirror._shards.open(contract.id, name)
        for path in (tmp_path / "mirror").glob("derived/stream/*/*.json"):
            path.unlink()
        (path,) = (tmp_path / "mirror").glob(f"teachers/*/shards/{names[0]}.arrow")
        path.unlink()
        began = time.monotonic()
        for name in [names[0], *names[3:10]]:
            mirror._shards.open(contract.id, name)
        # Not ten minutes, as for a shard that another process fetches.
        assert time.monotonic() - began < 60
        # Without a note a shard stays.
        assert set(names[1:3]) <= shard_names(tmp_path / "mirror")


def test_a_shard_with_a_note_of_an_older_version_stays(remote, whole, tmp_path):
    contract, folder = whole.teacher().contract, tmp_path / "mirror"
    with Mirror.open(str(remote), folder, limit=2 * largest(whole)) as mirror:
        names = mirror.store(contract)._names
        mirror._shards.open(contract.id, names[0])
    (note,) = folder.glob("derived/stream/*/*.json")
    note.rename(note.with_name(f"{names[0]}.json"))
    assert not streamed_shards(Cache(folder), contract.id)
    with Mirror.open(str(remote), folder, limit=2 * largest(whole)) as mirror:
        store = mirror.store(contract)
        for start in range(0, 40, ROWS):
            store.gather(np.arange(start, start + ROWS))
    assert names[0] in shard_names(folder)
    assert not [finding for finding in verify(folder).findings if "derived" in finding.path]


@pytest.fixture
def notes(tmp_path: Path) -> KnownNotes:
    (tmp_path / CONTRACT).mkdir()
    known = KnownNotes(tmp_path, [CONTRACT], REMOTE)
    known.refresh()
    return known


def write_note(folder: Path, number: int, remote: str = REMOTE) -> StreamNote:
    note = StreamNote(folder, CONTRACT, f"{number:064x}", 10, remote)
    note.path.touch()
    os.utime(note.path, ns=(number, number))
    return note


def numbers(notes: KnownNotes, *, and_wanted: bool = True) -> list[int]:
    return [int(note.name, 16) for note in notes.oldest_first(and_wanted=and_wanted)]


def test_notes_are_in_the_order_of_their_times_and_what_is_wanted_is_last(notes, tmp_path):
    written = {number: write_note(tmp_path, number) for number in (5, 3, 1, 4, 2)}
    notes.refresh()
    assert notes.bytes == 50
    assert numbers(notes) == [1, 2, 3, 4, 5]
    # Another process has wanted one, and somebody has deleted one, without a word.
    os.utime(written[2].path, ns=(10, 10))
    written[3].path.unlink()
    assert numbers(notes) == [1, 4, 5, 2]
    assert notes.bytes == 40
    notes.want(CONTRACT, [written[1].name, written[4].name])
    assert numbers(notes) == [5, 2, 1, 4]
    assert numbers(notes, and_wanted=False) == [5, 2]
    notes.want(CONTRACT, [])
    assert numbers(notes, and_wanted=False) == [5, 2, 1, 4]
    notes.touch(written[5].key)
    assert numbers(notes) == [2, 1, 4, 5]


def test_notes_are_read_again_once_another_process_has_announced_a_change(notes, tmp_path):
    other = KnownNotes(tmp_path, [CONTRACT], REMOTE)
    notes.announce()
    notes.add(write_note(tmp_path, 1))
    other.refresh()
    assert numbers(other) == [1]
    # Nothing was announced, so nothing is read.
    write_note(tmp_path, 2)
    notes.refresh()
    assert numbers(notes) == [1]
    other.announce()
    notes.refresh()
    assert sorted(numbers(notes)) == [1, 2]


def test_notes_of_another_remote_are_known_and_left_alone(notes, tmp_path):
    note = write_note(tmp_path, 1, remote="e" * 32)
    notes.refresh()
    assert notes.get(note.key) == note
    assert numbers(notes) == []
    assert notes.bytes == 0


@pytest.mark.parametrize("damage", ["empty", "link", "folder"])
def test_a_damaged_state_is_no_state(notes, tmp_path, damage):
    state = tmp_path / "state"
    notes.announce()
    state.unlink()
    if damage == "empty":
        state.touch()
    elif damage == "link":
        state.symlink_to(tmp_path / "elsewhere")
    else:
        state.mkdir()
    write_note(tmp_path, 1)
    notes.refresh()
    assert numbers(notes) == [1]
    if damage == "empty":
        notes.announce()
    else:
        # Nothing is written where a link leads.
        with pytest.raises(StorageError, match="state"):
            notes.announce()
        assert not (tmp_path / "elsewhere").exists()
