from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.data.sampler import epoch_batches, permutation

GOLDEN = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


def lengths_of(n: int, seed: int = 0) -> np.ndarray:
    """Lengths as texts have them: many short ones, a few long ones."""
    return np.random.default_rng(seed).lognormal(3, 0.6, size=n).astype(np.int32) + 2


def padded_tokens(lengths: np.ndarray, batches: list[np.ndarray]) -> int:
    return sum(len(batch) * int(lengths[batch].max()) for batch in batches)


def test_the_permutation_is_the_same_on_every_machine_and_in_every_version():
    assert permutation(10, seed=0, epoch=0).tolist() == GOLDEN


@given(n=st.integers(0, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 2**31 - 1))
def test_a_permutation_holds_every_number_once(n, seed, epoch):
    assert sorted(permutation(n, seed, epoch).tolist()) == list(range(n))


def test_the_permutation_depends_on_seed_and_epoch_alone():
    one = permutation(1000, seed=7, epoch=3)
    np.random.seed(1)
    assert (permutation(1000, seed=7, epoch=3) == one).all()
    others = [permutation(1000, seed=8, epoch=3), permutation(1000, seed=7, epoch=4), permutation(1000, 3, 7)]
    assert all((other != one).mean() > 0.9 for other in others)


@given(
    n=st.integers(0, 300),
    batch_size=st.integers(1, 40),
    bucket_batches=st.integers(1, 9),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_every_row_stands_in_exactly_one_batch(n, batch_size, bucket_batches, seed, epoch):
    batches = epoch_batches(lengths_of(n), batch_size, seed=seed, epoch=epoch, bucket_batches=bucket_batches)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(n))
    assert len(batches) == -(-n // batch_size)
    assert sum(len(batch) != batch_size for batch in batches) == (n % batch_size > 0)


def test_the_batches_are_a_function_of_seed_and_epoch():
    lengths = lengths_of(1000)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in epoch_batches(lengths, 16, seed=seed, epoch=epoch)]

    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)


def test_neither_batches_nor_their_order_repeat_from_epoch_to_epoch():
    lengths = lengths_of(2000)
    epochs = [
        [frozenset(batch.tolist()) for batch in epoch_batches(lengths, 16, seed=0, epoch=epoch)]
        for epoch in range(3)
    ]
    assert len(set().union(*epochs)) == 3 * 125


def test_the_order_of_batches_is_drawn_anew_every_epoch():
    def order(epoch: int) -> list[int]:
        # Rows of one length stay in shuffled order, so that a batch tells its place before the last shuffle.
        rows = permutation(640, seed=0, epoch=epoch)
        places = {int(row): place // 16 for place, row in enumerate(rows)}
        return [places[int(batch[0])] for batch in epoch_batches(np.ones(640, int), 16, seed=0, epoch=epoch)]

    assert sorted(order(0)) == list(range(40))
    assert order(0) != order(1)


def test_bucketed_batches_hold_far_less_padding_than_random_ones():
    lengths = lengths_of(4096)
    bucketed = epoch_batches(lengths, 32, seed=0, epoch=0)
    plain = epoch_batches(lengths, 32, seed=0, epoch=0, bucket_batches=1)
    tokens = int(lengths.sum())
    assert padded_tokens(lengths, plain) > 1.5 * tokens
    assert padded_tokens(lengths, bucketed) < 1.1 * tokens


@pytest.mark.parametrize("bucket_batches", [1, 64, 1000])
def test_batches_do_not_come_by_length(bucket_batches):
    lengths = lengths_of(8192)
    batches = epoch_batches(lengths, 32, seed=0, epoch=0, bucket_batches=bucket_batches)
    means = np.array([lengths[batch].mean() for batch in batches])
    order = np.argsort(np.argsort(means))
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.2


def test_rows_are_mixed_over_the_whole_corpus_and_not_only_inside_a_window():
    batches = epoch_batches(lengths_of(8192), 32, seed=0, epoch=0)
    spreads = [int(np.ptp(batch)) for batch in batches]
    assert min(spreads) > 8192 // 2
