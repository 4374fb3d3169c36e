from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.data import sampler
from distill.data.sampler import epoch_batches, permutation

GOLDEN = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


def lengths_of(n: int, seed: int = 0) -> np.ndarray:
    """Lengths as texts have them: many short ones, a few long ones."""
    return np.random.default_rng(seed).lognormal(3, 0.6, size=n).astype(np.int32) + 2


def plain_permutation(n: int, *stream: int) -> np.ndarray:
    """All random words at once, sorted."""
    return np.argsort(np.random.PCG64(np.random.SeedSequence(stream)).random_raw(n), kind="stable")


def plain_batches(lengths: np.ndarray, size: int, bucket: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The definition of an epoch's batches, with a list of arrays of eight-byte numbers."""
    order = plain_permutation(len(lengths), seed, epoch)
    batches = []
    for start in range(0, len(order), size * bucket):
        rows = order[start : start + size * bucket]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    return [batches[i] for i in plain_permutation(len(batches), seed, epoch, 1)]


def padded_tokens(lengths: np.ndarray, batches) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in batches)


def test_the_permutation_is_the_same_on_every_machine_and_in_every_version():
    assert permutation(10, 0, 0).tolist() == GOLDEN


@given(n=st.integers(0, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 2**31 - 1))
def test_a_permutation_holds_every_number_once(n, seed, epoch):
    assert sorted(permutation(n, seed, epoch).tolist()) == list(range(n))


def test_neither_batches_nor_their_order_repeat_from_epoch_to_epoch():
    lengths = lengths_of(2000)
    epochs = [
        [frozenset(batch.tolist()) for batch in epoch_batches(lengths, 16, seed=0, epoch=epoch)]
        for epoch in range(3)
    ]
    assert len(set().union(*epochs)) == 3 * 125


def test_bucketed_batches_hold_far_less_padding_than_random_ones():
    lengths = lengths_of(4096)
    bucketed = epoch_batches(lengths, 32, seed=0, epoch=0)
    plain = epoch_batches(lengths, 32, seed=0, epoch=0, bucket_batches=1)
    tokens = int(lengths.sum())
    assert padded_tokens(lengths, plain) > 1.5 * tokens
    assert padded_tokens(lengths, bucketed) < 1.1 * tokens


@pytest.mark.parametrize(
    ("n", "batch_size", "seed", "epoch", "digest"),
    [(1000, 16, 7, 2, "a16574df2526c6e4"), (100_003, 128, 0, 0, "55d6dc1b5b5e26ef")],
)
def test_an_epoch_is_the_same_in_every_version(n, batch_size, seed, epoch, digest):
    batches = epoch_batches(lengths_of(n), batch_size, seed=seed, epoch=epoch)
    content = b"".join(batch.astype("<i8").tobytes() for batch in batches)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


@pytest.fixture
def small_partitions(monkeypatch):
    """Many partitions of few rows, drawn a few words at a time."""
    monkeypatch.setattr(sampler, "_PARTITION_ROWS", 16)
    monkeypatch.setattr(sampler, "_DRAWN_AT_ONCE", 50)


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("n", [0, 1, 16, 17, 33, 500, 3001])
@pytest.mark.parametrize(("batch_size", "bucket"), [(7, 3), (16, 64), (1, 1)])
def test_piece_by_piece_it_is_the_same_order(n, batch_size, bucket):
    for seed, epoch in ((0, 0), (3, 1), (2**40, 9)):
        lengths = lengths_of(n)
        assert permutation(n, seed, epoch).tolist() == plain_permutation(n, seed, epoch).tolist()
        found = epoch_batches(lengths, batch_size, seed=seed, epoch=epoch, bucket_batches=bucket)
        expected = plain_batches(lengths, batch_size, bucket, seed, epoch)
        assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]


@pytest.mark.usefixtures("small_partitions")
def test_equal_words_keep_their_order(monkeypatch):
    class Coarse:
        """Words of which most are equal to others."""

        def __init__(self, sequence) -> None:
            self._words = np.random.default_rng(0).integers(0, 40, size=700).astype(np.uint64) << np.uint64(
                58
            )
            self._at = 0

        def random_raw(self, count):
            self._at += count
            return self._words[self._at - count : self._at]

    monkeypatch.setattr(np.random, "PCG64", Coarse)
    expected = np.argsort(Coarse(None).random_raw(700), kind="stable")
    assert permutation(700, 0, 0).tolist() == expected.tolist()


@pytest.mark.usefixtures("small_partitions")
@pytest.mark.parametrize("first", [0, 1, 40, 499, 500, 900])
def test_the_beginning_of_a_permutation_can_be_had_alone(first):
    assert permutation(500, 1, 2, first=first).tolist() == permutation(500, 1, 2)[:first].tolist()


def test_an_order_takes_four_bytes_a_row():
    assert permutation(100, 0, 0).dtype == np.uint32
    batches = epoch_batches(lengths_of(100), 8, seed=0, epoch=0)
    assert {batch.dtype for batch in batches} == {np.dtype(np.uint32)}
    bases = {batch.__array_interface__["data"][0] for batch in batches}
    assert max(bases) - min(bases) == 4 * (100 - 4), "batches are cut from one array"


def test_batches_are_a_sequence():
    batches = epoch_batches(lengths_of(100), 8, seed=0, epoch=0)
    every = [batch.tolist() for batch in batches]
    assert len(every) == len(batches) == 13
    assert batches[-1].tolist() == every[12]
    assert [batch.tolist() for batch in batches[3:9:2]] == every[3:9:2]
    with pytest.raises(IndexError):
        batches[13]


def test_lengths_are_asked_for_a_bucket_at_a_time():
    asked = []

    class Watched:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, rows) -> np.ndarray:
            asked.append(len(rows))
            return np.asarray(rows) % 17

    found = epoch_batches(Watched(), 10, seed=1, epoch=1, bucket_batches=8)
    assert asked == [80] * 12 + [40]
    same = epoch_batches(np.arange(1000) % 17, 10, seed=1, epoch=1, bucket_batches=8)
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in same]
