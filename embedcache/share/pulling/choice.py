"""What somebody wants of a remote."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from embedcache.corpus.description import check_name
from embedcache.errors import InputError
from embedcache.share.choice import Choice
from embedcache.share.pulling.recode import check_kept_codec


@dataclass(frozen=True)
class PullChoice(Choice):
    """What a pull fetches, and from which pushes. By default it is all that the remote has.

    With ``rows`` or ``where`` a part of one corpus becomes a corpus of its own, and of the teachers only the
    vectors of its texts come.

    Teachers are chosen by name or by the first six digits or more of their contract ids, corpora as ``NAME``
    or ``NAME@DIGEST``.

    Attributes:
        alias: what the one corpus of ``corpora``, or else the one teacher of ``teachers``, is called here.
        rows: pull so many rows of the one corpus of ``corpora``, the first of those that ``where`` takes;
            None: all.
        where: pull only the rows of the one corpus of ``corpora`` for which this condition in SQL holds;
            None: all.
        codec: store vectors in this codec if that is smaller, ``float16`` or ``int8``; None: as they are.
        max_bytes: refuse to fetch more than this; None: fetch as much as the disk has room for.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip_manifests: leave out manifests whose names begin with these six digits or more, with all that
            they alone list.
        allow_local_names: whether names of ``teachers`` and ``corpora`` that the cache has and the remote
            lacks are left out, as a sync needs it; if False, they are refused.

    Raises:
        InputError: if these do not go together, or cannot be used.
    """

    alias: str | None = None
    rows: int | None = None
    where: str | None = None
    codec: str | None = None
    max_bytes: int | None = None
    require_signature: str | Path | None = None
    skip_manifests: Collection[str] = ()
    allow_local_names: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_part and len(self.corpora) != 1:
            raise InputError("--rows and --where take a part of one corpus: name it with one --corpus")
        if self.rows is not None and self.rows < 1:
            raise InputError(f"--rows {self.rows}: expected at least 1")
        if self.alias is not None and len(self.corpora or self.teachers) != 1:
            raise InputError("--as needs one --corpus, or else one --teacher, that it is another name of")
        if self.alias is not None:
            check_name(self.alias, "--as")
        if self.codec is not None:
            check_kept_codec(self.codec)

    @property
    def is_part(self) -> bool:
        """Whether some rows of a corpus are wanted, and vectors of these alone."""
        return self.rows is not None or self.where is not None


EVERYTHING = PullChoice()
"""All that a remote has."""
