"""The queue of teacher vectors: its content after pushes, and its saved form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distill.losses.queue import TeacherQueue


def on_the_circle(*degrees: float) -> Tensor:
    """Return vectors (n, 2) of length one, which tell each other apart by their angle."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def angles(queue: TeacherQueue) -> list[int]:
    x, y = queue.content().double().T
    return [round(float(angle)) for angle in torch.atan2(y, x).rad2deg()]


def push(queue: TeacherQueue, *rows: int) -> None:
    """Push vectors whose angle in degrees is their row number, and whose length is 3."""
    queue.push(3 * on_the_circle(*rows), torch.tensor(rows))


def held(queue: TeacherQueue) -> list[int]:
    """Return the rows in the queue, having made sure that the vectors are theirs."""
    rows = queue.rows[: len(queue)].tolist()
    assert angles(queue) == rows
    return rows


@given(size=st.integers(0, 6), batches=st.lists(st.integers(0, 9), max_size=8))
@settings(max_examples=60, deadline=None)
def test_it_holds_the_last_rows_of_any_batches(size, batches):
    queue, history = TeacherQueue(size, 2), []
    for count in batches:
        rows = range(len(history) + 1, len(history) + 1 + count)
        push(queue, *rows)
        history += rows
        assert sorted(held(queue)) == history[len(history) - min(size, len(history)) :]


@pytest.mark.parametrize("batches", [[(1, 2)], [(1, 2, 3), (4, 5, 6)], [(1, 2, 3, 4)], []])
def test_a_state_holds_rows_alone_and_with_their_vectors_it_goes_on_the_same(batches):
    first, second = TeacherQueue(4, 2), TeacherQueue(4, 2)
    for rows in batches:
        push(first, *rows)
    push(second, 77)
    state = first.state_dict()
    assert set(state) == {"rows", "pointer", "filled"}
    second.load_state_dict(state)
    assert len(second) == len(first)
    # In pieces, as many rows are.
    for start in range(0, len(second), 3):
        rows = second.rows[: len(second)][start : start + 3]
        second.refill(start, 3 * on_the_circle(*rows.tolist()))
    assert held(second) == held(first)
    for queue in (first, second):
        push(queue, 20, 21, 22)
    assert held(second) == held(first)
    assert torch.equal(second.content(), first.content())
    assert int(second.pointer) == int(first.pointer)
