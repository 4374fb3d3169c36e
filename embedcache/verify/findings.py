"""Findings of a verification."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, order=True)
class Finding:
    """Something about a file of a cache.

    Attributes:
        path: the file, relative to the cache; a shard inside an LMDB file is ``FILE#NAME``.
        kind: value of its :class:`embedcache.inventory.Kind`.
        what: what was found.
        fix: what to do.
        is_damage: False if nothing is lost and everything can be used.
    """

    path: str
    kind: str
    what: str
    fix: str
    is_damage: bool = True


@dataclass(frozen=True)
class Verification:
    """Result of verifying a cache.

    Attributes:
        cache: its folder.
        findings: damage first.
        files: number of files outside ``derived/``.
        bytes: their size.
        seconds: time taken.
    """

    cache: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    seconds: float

    @property
    def damage(self) -> list[Finding]:
        """Findings that are damage."""
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def notes(self) -> list[Finding]:
        """Findings that are not."""
        return [finding for finding in self.findings if not finding.is_damage]

    def to_json(self) -> dict[str, object]:
        """Return the verification as a JSON object."""
        return {**asdict(self), "sound": not self.damage}


def printable(text: str) -> str:
    """Return a text from a foreign file as it can be shown: control codes and stray bytes escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def first_line(error: BaseException) -> str:
    """Return an error in one line."""
    return printable(next(iter(str(error).splitlines()), "")) or type(error).__name__
