"""How much of a view a teacher has encoded.

Nothing is written down about that, so it shows from the vectors: rows that kept their text have the corpus's
vectors anyway, and two views have some texts in common. What counts are the rows with a text of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedcache.corpus.corpus import View
from embedcache.missing import Locator

_BLOCK_ROWS = 65536


@dataclass(frozen=True)
class ViewCoverage:
    """How much of a view has vectors.

    Attributes:
        own: rows whose text is not that of the corpus.
        embedded: how many of them have a vector.
    """

    own: int
    embedded: int

    @classmethod
    def of(cls, view: View, store: Locator) -> ViewCoverage:
        """Look up the texts of ``view`` that are its own in ``store``.

        Raises:
            CorruptCacheError: if a part of the view or of its corpus is missing or damaged.
        """
        own = embedded = 0
        for start in range(0, len(view), _BLOCK_ROWS):
            rows = np.arange(start, min(start + _BLOCK_ROWS, len(view)))
            keys = view.keys_of(rows)
            changed = keys[keys != view.of.keys_of(rows)]
            own += len(changed)
            embedded += int(np.count_nonzero(store.locate(changed) >= 0))
        return cls(own, embedded)

    @property
    def is_embedded(self) -> bool:
        """Whether the view was given to the teacher: most of its own texts have a vector."""
        return 2 * self.embedded > self.own

    @property
    def missing(self) -> int:
        """Rows whose own text has no vector."""
        return self.own - self.embedded
