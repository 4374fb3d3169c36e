"""What the sets of a task consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

Items = Sequence[tuple[str, ...]]
"""Test items, each with the texts it is made of: two of a pair, one of an example."""


@runtime_checkable
class HasTestItems(Protocol):
    """A task that says what its sets consist of."""

    def test_items(self) -> Mapping[str, Items]:
        """Return the items of each set by the set's name."""
        ...
