"""Which teachers and corpora a push or a pull is about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from embedcache.errors import InputError


@dataclass(frozen=True)
class Choice:
    """Teachers and corpora that are chosen. By default it is all.

    Attributes:
        teachers: these teachers alone; empty: all.
        corpora: these corpora alone; empty: all. Vectors are chosen by ``teachers`` alone.
        text: whether corpora and their views are shared; without them vectors serve who has the same texts.

    Raises:
        InputError: if these do not go together.
    """

    teachers: Collection[str] = ()
    corpora: Collection[str] = ()
    text: bool = True

    def __post_init__(self) -> None:
        if self.corpora and not self.text:
            raise InputError(
                "--corpus together with --no-text: with the one texts are shared, with the other none"
            )
