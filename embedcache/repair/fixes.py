"""Outcomes of a repair."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from embedcache.fsio import explain_os_error, fsync_directory, make_directory
from embedcache.inventory import QUARANTINE, Kind
from embedcache.live import Computing
from embedcache.verify import Finding, Verifier
from embedcache.verify.files import UPGRADE

MADE, ENCODED, MOVED = "made again", "encoded again", "moved aside"
LOST, LEFT = "texts missing", "not repaired"
"""Outcomes; the last two need the user."""


@dataclass(frozen=True)
class Fix:
    """Outcome for a file that was damaged or missing.

    Attributes:
        path: the file, relative to the cache.
        kind: value of its :class:`embedcache.inventory.Kind`.
        outcome: one of the constants above.
        detail: more on it, or what to do.
    """

    path: str
    kind: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Repair:
    """Result of a repair, or with ``dry_run`` its plan.

    Attributes:
        cache: the cache's folder.
        dry_run: True if nothing was done.
        fixes: what became of each damaged or missing file.
        rows_encoded: rows encoded, or to encode.
        seconds: time taken.
    """

    cache: str
    dry_run: bool
    fixes: tuple[Fix, ...]
    rows_encoded: int
    seconds: float

    @property
    def left(self) -> list[Fix]:
        """Fixes that need the user."""
        return [fix for fix in self.fixes if fix.outcome in (LOST, LEFT)]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {**asdict(self), "whole": not self.left}


class Work:
    """What the steps of a repair share.

    Args:
        verifier: verifier of the cache; it is run.
        computing: how to run teachers.
        dry_run: write nothing.

    Attributes:
        folder: the cache's folder.
        texts: sound corpora and views.
        fixes: outcomes so far.
        rows: rows encoded so far.
    """

    def __init__(self, verifier: Verifier, computing: Computing, *, dry_run: bool) -> None:
        self.verifier, self.computing, self.dry_run = verifier, computing, dry_run
        self.folder, self.progress, self.texts = verifier.folder, verifier.progress, verifier.texts
        self.findings = verifier.run().damage
        self.fixes: list[Fix] = []
        self.rows = 0

    def damage(self, *kinds: Kind, folder: str = "") -> list[Finding]:
        """Return damage to files of some kinds that is not dealt with, but for what a newer version wrote."""
        done, values = {fix.path for fix in self.fixes}, [kind.value for kind in kinds]
        found = [one for one in self.findings if one.kind in values and one.path.startswith(folder)]
        return [one for one in found if one.path not in done and one.fix != UPGRADE]

    def done(self, finding: Finding, outcome: str, detail: str = "") -> None:
        """List what became of a finding."""
        self.fixes.append(Fix(finding.path, finding.kind, outcome, detail))

    def move_aside(self, path: str) -> None:
        """Move a file to the quarantine, where it keeps its path; harmless if it is missing.

        Raises:
            StorageError: if it cannot be moved.
        """
        source = target = self.folder / path
        if self.dry_run or not os.path.lexists(source):
            return
        number = 0
        while target is source or os.path.lexists(target):
            target = self.folder / QUARANTINE / (f"{path}.{number}" if number else path)
            number += 1
        make_directory(target.parent)
        try:
            source.rename(target)
            fsync_directory(target.parent)
            fsync_directory(source.parent)
        except OSError as error:
            raise explain_os_error(error, target) from error
