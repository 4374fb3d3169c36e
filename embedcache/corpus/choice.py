"""Which corpus somebody means who writes ``NAME`` or ``NAME@DIGEST``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import begins_digest, check_name
from embedcache.errors import InputError


@dataclass(frozen=True)
class CorpusChoice:
    """What somebody asks for with ``--corpus NAME@DIGEST``.

    Attributes:
        name: the corpus.
        digest: how its digest begins, or on a remote that of a manifest whose version is meant; empty: the
            only one.
    """

    name: str
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> CorpusChoice:
        """Read ``NAME`` or ``NAME@DIGEST``; raise :class:`InputError` where it is none."""
        name, at, digest = text.partition("@")
        if at and not begins_digest(digest):
            raise InputError(
                f"--corpus {text[:80]!r}: expected NAME or NAME@DIGEST, of the digest six digits or more"
            )
        return cls(check_name(name), digest)

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.name}@{self.digest}" if self.digest else self.name

    def among(self, corpora: Iterable[Corpus]) -> str | None:
        """Return what the corpus of this digest is called among those of a cache; None where none has it.

        The digest tells what it is, whatever it is called; where several have it, the one of the name is it.
        """
        found = [one.name for one in corpora if one.info.digest.startswith(self.digest)]
        if self.name in found:
            return self.name
        return found[0] if found else None
