"""Protocol of a store whose vectors are fetched when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embedcache.store.base import Positions

if TYPE_CHECKING:
    from embedcache.check.live import Computing


@runtime_checkable
class Streaming(Protocol):
    """A store over shards that are not all here."""

    @property
    def shard_names(self) -> Sequence[str]:
        """What the bytes of each shard are known by, by number; empty for what is here for good."""
        ...

    @property
    def shard_sizes(self) -> Sequence[int]:
        """Bytes of each shard, by number; 0 of what is here for good."""
        ...

    def shards_at(self, positions: Positions) -> NDArray[np.int64]:
        """Return the number of the shard of each position."""
        ...

    def want(self, windows: Sequence[Sequence[int]]) -> None:
        """Have shards fetched in the background.

        Args:
            windows: numbers of the shards that are needed at once, then those needed after them, and so on.
        """
        ...

    def admit(self, positions: Positions, computing: Computing) -> None:
        """Compare a sample of the shards at these positions that arrived since with the live teacher.

        Args:
            positions: the rows that are about to be trained on.
            computing: how to run the teacher; without its model on this machine nothing is compared.

        Raises:
            RemoteError: if the sample does not match, or a shard cannot be fetched.
        """
        ...

    def interrupt(self) -> None:
        """Fetch nothing more."""
        ...
