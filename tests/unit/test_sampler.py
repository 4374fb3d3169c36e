"""The order of training rows: a pure function of seed and epoch, whole or window by window."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.data import sampler
from distill.data.sampler import ORDERS, EpochBatches, epoch_batches, permutation
from distill.data.windows import WindowOrder, Windows, draw, windowed_batches


def lengths_of(n: int) -> np.ndarray:
    """Lengths as texts have them: many short ones, a few long ones."""
    return np.random.default_rng(0).lognormal(3, 0.6, size=n).astype(np.int32) + 2


def plain_permutation(n: int, *stream: int) -> np.ndarray:
    """All random words at once, sorted."""
    return np.argsort(np.random.PCG64(np.random.SeedSequence(stream)).random_raw(n), kind="stable")


def plain_batches(lengths: np.ndarray, size: int, bucket: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The definition of an epoch's batches, with a list of arrays of eight-byte numbers."""
    order = plain_permutation(len(lengths), seed, epoch)
    batches = []
    for start in range(0, len(order), size * bucket):
        rows = order[start : start + size * bucket]
        rows = rows[np.argsort(lengths[rows], kind="stable")] if bucket > 1 else rows
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    return [batches[i] for i in plain_permutation(len(batches), seed, epoch, 1)]


def padded_tokens(lengths: np.ndarray, batches) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in batches)


@pytest.mark.parametrize(
    ("n", "batch_size", "seed", "epoch", "order", "digest"),
    [
        (1000, 16, 7, 2, "bucketed", "a16574df2526c6e4"),
        (100_003, 128, 0, 0, "bucketed", "55d6dc1b5b5e26ef"),
        (1000, 16, 7, 2, "random", "cbffccd8f9394974"),
    ],
)
def test_an_epoch_is_the_same_on_every_machine_and_in_every_version(
    n, batch_size, seed, epoch, order, digest
):
    assert permutation(10, 0, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    buckets = ORDERS[order]
    batches = epoch_batches(lengths_of(n), batch_size, seed=seed, epoch=epoch, bucket_batches=buckets)
    content = b"".join(batch.astype("<i8").tobytes() for batch in batches)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_neither_batches_nor_their_order_repeat_from_epoch_to_epoch():
    epochs = [
        [frozenset(batch.tolist()) for batch in epoch_batches(lengths_of(2000), 16, seed=0, epoch=epoch)]
        for epoch in range(3)
    ]
    assert len(set().union(*epochs)) == 3 * 125


@pytest.fixture
def small_partitions(monkeypatch):
    """Many partitions of few rows, drawn a few words at a time."""
    monkeypatch.setattr(sampler, "_PARTITION_ROWS", 16)
    monkeypatch.setattr(sampler, "_DRAWN_AT_ONCE", 50)


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("n", [0, 1, 17, 500, 3001])
@pytest.mark.parametrize(("batch_size", "bucket"), [(7, 3), (16, 64), (1, 1), (7, 1)])
def test_piece_by_piece_it_is_the_same_order(n, batch_size, bucket):
    for seed, epoch in ((0, 0), (2**40, 9)):
        lengths = lengths_of(n)
        expected = plain_permutation(n, seed, epoch).tolist()
        assert permutation(n, seed, epoch).tolist() == expected
        assert permutation(n, seed, epoch, first=n // 3).tolist() == expected[: n // 3]
        found = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, bucket_batches=bucket)
        batches = plain_batches(lengths, batch_size, bucket, seed, epoch)
        assert [batch.tolist() for batch in found] == [batch.tolist() for batch in batches]


def test_an_order_takes_four_bytes_a_row_and_batches_are_cut_from_it():
    batches = epoch_batches(lengths_of(100), 8, seed=0, epoch=0)
    assert len(batches) == 13
    assert {batch.dtype for batch in batches} == {permutation(9, 0).dtype} == {np.dtype(np.uint32)}
    bases = {batch.__array_interface__["data"][0] for batch in batches}
    assert max(bases) - min(bases) == 4 * (100 - 4)


def test_lengths_are_asked_for_a_bucket_at_a_time():
    asked = []

    class Watched:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, rows) -> np.ndarray:
            asked.append(len(rows))
            return np.asarray(rows) % 17

    epoch_batches(Watched(), 10, seed=1, epoch=1, bucket_batches=8)
    assert asked == [80] * 12 + [40]
    asked.clear()
    epoch_batches(Watched(), 10, seed=1, epoch=1, bucket_batches=1)
    windowed_batches(groups(1000, 8).windows(0), Watched(), 10, seed=1, epoch=1, bucket_batches=1)
    assert asked == []


# --- windows ---


def groups(n: int, shards: int, size: int = 10, room: int = 30, seed: int = 0) -> WindowOrder:
    group_of = (np.arange(n) * shards // max(n, 1)).astype(np.uint32)
    names = [f"shard {shard}" for shard in range(shards)]
    return WindowOrder(group_of, [(shard,) for shard in range(shards)], [size] * shards, names, room, seed)


def batches_of(order: WindowOrder, n: int, seed: int, epoch: int) -> EpochBatches:
    return windowed_batches(order.windows(epoch), lengths_of(n), 32, seed=seed, epoch=epoch)


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    batch_size=st.integers(1, 40),
    bucket=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 5),
)
def test_every_row_is_in_one_batch_and_windows_follow_each_other(sizes, batch_size, bucket, seed, epoch):
    n = sum(sizes)
    window_of = np.repeat(np.arange(len(sizes)), sizes)
    shuffled = np.random.default_rng(1).permutation(n)
    rows = shuffled[np.argsort(window_of[shuffled], kind="stable")].astype(np.uint32)
    windows = Windows(rows, np.cumsum([0, *sizes]))
    batches = windowed_batches(
        windows, lengths_of(n), batch_size, seed=seed, epoch=epoch, bucket_batches=bucket
    )
    assert len(batches) == -(-n // batch_size)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(n))
    assert all(len(batch) == batch_size for batch in batches if len(batch) != n % batch_size)
    latest = 0
    for batch in batches:
        met = window_of[batch]
        # A batch is of the latest window, or fills that up with the ones that follow.
        assert met.min() >= latest
        latest = met.max()
    for start in (0, len(batches) // 2):
        parts = list(batches.windows(start))
        assert [row.tolist() for part in parts for row in part] == [row.tolist() for row in batches[start:]]
        # No batch but the first of a part has rows of the window before.
        assert all(len({window_of[row].max() for row in part}) == 1 for part in parts[:-1])


def test_windows_are_the_same_in_every_version_and_put_rows_of_like_length_together():
    """Resumed runs depend on it."""
    order, lengths = groups(1000, 8), lengths_of(6400)
    found = [batch.tolist() for epoch in range(2) for batch in batches_of(order, 1000, 3, epoch)]
    assert hashlib.sha256(str(found).encode()).hexdigest()[:16] == "e875231199c6af25"
    mixed = windowed_batches(order.windows(1), lengths[:1000], 32, seed=3, epoch=1, bucket_batches=1)
    content = str([batch.tolist() for batch in mixed]).encode()
    assert hashlib.sha256(content).hexdigest()[:16] == "6c1caa5d5401029e"
    plain = epoch_batches(lengths, 32, seed=0, epoch=0, bucket_batches=1)
    assert padded_tokens(lengths, plain) > 1.3 * lengths.sum()
    for bucketed in (batches_of(groups(6400, 4), 6400, 0, 0), epoch_batches(lengths, 32, seed=0, epoch=0)):
        assert padded_tokens(lengths, bucketed) < 1.1 * lengths.sum()


def test_windows_hold_as_many_shards_as_fit_others_in_every_epoch():
    order = groups(700, 7, size=10, room=30)
    compositions = set()
    for epoch in range(6):
        windows, shards = order.windows(epoch), order.shards(epoch)
        assert [len(one) for one in shards] == [3, 3, 1]
        assert sorted(shard for one in shards for shard in one) == list(range(7))
        assert [sorted(set((windows.window(k) // 100).tolist())) for k in range(len(windows))] == shards
        compositions.add(frozenset(map(frozenset, shards)))
    assert len(compositions) > 3


def test_shards_of_unequal_size_never_exceed_the_room():
    sizes = np.random.default_rng(5).integers(1, 40, size=50).tolist()
    order = WindowOrder(
        np.repeat(np.arange(50), 7), [(shard,) for shard in range(50)], sizes, [""] * 50, 60, seed=2
    )
    for epoch in range(4):
        assert max(sum(sizes[shard] for shard in one) for one in order.shards(epoch)) <= 60


def test_several_teachers_keep_the_shards_they_share_in_one_window():
    # Shards 0 to 3 of one teacher, each cut in two by those of the other, 4 to 11.
    shards = [(place // 2, 4 + place) for place in range(8)]
    order = WindowOrder(np.repeat(np.arange(8), 10), shards, [20] * 4 + [10] * 8, [""] * 12, 40, seed=1)
    assert sorted(order.shards(0)) == [[k, 4 + 2 * k, 5 + 2 * k] for k in range(4)]


def test_some_rows_of_an_order_stay_in_their_windows():
    order, kept = groups(400, 8), np.flatnonzero(np.arange(400) % 3)
    some = order.restricted(kept)
    for epoch in range(2):
        places = np.arange(len(kept))
        assert some.window_of(places, epoch).tolist() == order.window_of(kept, epoch).tolist()
    assert some.digest != order.digest


def test_shards_that_no_row_is_read_from_change_neither_the_order_nor_its_digest():
    group_of = np.repeat(np.arange(4), 10)

    def order(names: list[str], needed: list[int], sizes: list[int]) -> WindowOrder:
        return WindowOrder(group_of, [(shard,) for shard in needed], sizes, names, 20, seed=3)

    plain = order(["a", "c", "e", "g"], [0, 1, 2, 3], [9, 10, 7, 8])
    # Others have come before, between and after them.
    later = order(["0", "a", "b", "c", "d", "e", "g", "z"], [1, 3, 5, 6], [1, 9, 2, 10, 3, 7, 8, 4])
    for epoch in range(4):
        assert plain.windows(epoch).rows.tolist() == later.windows(epoch).rows.tolist()
    assert plain.digest == later.digest
    others = [
        order(["a", "c", "e", "h"], [0, 1, 2, 3], [9, 10, 7, 8]),
        order(["a", "c", "e", "g"], [1, 0, 2, 3], [9, 10, 7, 8]),
        order(["a", "c", "e", "g"], [0, 1, 2, 3], [9, 10, 8, 8]),
    ]
    assert len({plain.digest, *(other.digest for other in others)}) == 4


def test_rows_are_drawn_from_the_first_window():
    order = groups(1000, 10)
    drawn = draw(order, 1000, seed=0, stream=9, count=40)
    assert len(set(drawn.tolist())) == 40
    assert set(order.window_of(drawn, 0).tolist()) == {0}
    assert drawn.tolist() != draw(order, 1000, seed=1, stream=9, count=40).tolist()
    assert len(set(draw(None, 1000, seed=0, stream=9, count=40).tolist())) == 40
