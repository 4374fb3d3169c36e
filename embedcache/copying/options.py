"""Options of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embedcache.codecs import check_codec_name
from embedcache.errors import InputError

FIRST, LAST = "FIRST", "LAST"
"""Values of ``--prefer``: the source whose vectors are kept among those in one codec."""


@dataclass(frozen=True)
class CopyOptions:
    """Part of the sources that is copied, and its form.

    Attributes:
        teachers: teachers, by name or 12 digits of the contract id, ``NAME=NEW`` to rename; default: all.
        corpora: corpora, with the vectors of their texts only, ``NAME[=NEW]``; default: all corpora
            and all vectors.
        where: SQL expression; only rows for which it holds are copied, with the vectors of their texts.
        codec: codec of the copy; vectors in a coarser one stay as they are. Default: no change.
        store: ``arrow`` or ``lmdb``; default: as the target, else ``arrow``.
        shard_rows: rows of a full shard; shards of other sizes are written again. Default: no change.
        prefer: ``FIRST`` or ``LAST``, the source whose vectors are kept in a conflict within one codec.
    """

    teachers: Sequence[str] = ()
    corpora: Sequence[str] = ()
    where: str | None = None
    codec: str | None = None
    store: str | None = None
    shard_rows: int | None = None
    prefer: str | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be.

        Raises:
            InputError: if a value cannot be.
        """
        if self.codec is not None:
            check_codec_name(self.codec)
        if self.prefer not in (None, FIRST, LAST):
            raise InputError(f"prefer {self.prefer}: expected {FIRST} or {LAST}")
        if self.shard_rows is not None and self.shard_rows < 1:
            raise InputError(f"shard_rows {self.shard_rows}: expected at least 1")
