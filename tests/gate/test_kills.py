"""Killed at any write step, a build is finished by the same command, and byte for byte as if nothing was."""

from __future__ import annotations

import pytest
from crashing import Storm, memory_folder

from embedcache.fsio import WRITE_STEPS
from embedcache.testing import sentences

# Two shards. Duplicates among the rows: a build must not count them as lost.
TEXTS = [*sentences(140, seed=11), *sentences(10, seed=11)]


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_killed_at_each_write_step_of_each_kind_of_file(store: str) -> None:
    with memory_folder() as folder:
        storm = Storm(folder / "storm", TEXTS, settings={"store": store})
        # A step that no build takes would prove nothing.
        assert {step for step, _ in storm.steps} | {"remove"} == {
            step for step in WRITE_STEPS if store == "lmdb" or "lmdb" not in step
        }
        storm.fail_at_steps(storm.one_of_each(seed=1))
