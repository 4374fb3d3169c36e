"""A build killed at any write step is finished by the same command, to the same bytes as without a kill."""

from __future__ import annotations

import pytest
from crashing import Storm, memory_folder

from embedcache.fsio import WRITE_STEPS
from embedcache.testing import sentences

# Two shards. Duplicates among the rows: a build must not count them as lost.
TEXTS = [*sentences(140, seed=11), *sentences(10, seed=11)]


@pytest.mark.parametrize(("store", "first"), [("arrow", 0), ("lmdb", 1)])
def test_killed_at_every_other_kind_of_write_step(store: str, first: int) -> None:
    with memory_folder() as folder:
        storm = Storm(folder / "storm", TEXTS, settings={"store": store})
        # A step that no build takes would prove nothing.
        assert {step for step, _ in storm.steps} | {"remove"} == {
            step for step in WRITE_STEPS if store == "lmdb" or "lmdb" not in step
        }
        # Each step on each kind of file is one kind; the stores share most of them.
        storm.fail_at_steps(storm.one_of_each(seed=1)[first::2])
