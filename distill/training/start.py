"""Model that a fine-tuning begins with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distill.errors import ConfigError
from distill.layout import BEST, describe_missing, resume_command
from distill.record import RunRecord, StartRecord, read_record, run_folder


@dataclass(frozen=True)
class Start:
    """Model that is fine-tuned.

    Attributes:
        model: folder, hub id or alias.
        run: the run it comes from; None where it comes from none.
        record: that run's record; None without a run.
    """

    model: str
    run: Path | None = None
    record: RunRecord | None = None

    def describe(self, spec: str, contract_id: str) -> StartRecord:
        """Return its part of the record of the next run.

        Args:
            spec: how it was named.
            contract_id: id of the contract of its vectors.
        """
        before = self.record
        return StartRecord(
            spec=spec,
            run=None if self.run is None else str(self.run),
            contract_id=contract_id,
            setting=None if before is None else before.setting,
            seeds=[] if before is None else before.seeds,
        )


def find_start(spec: str) -> Start:
    """Return the model that ``spec`` names; of a run, its best student.

    Raises:
        ConfigError: if there is no such folder, or the run is damaged or not finished.
    """
    run = run_folder(spec)
    if run is None:
        if missing := describe_missing(spec):
            raise ConfigError(f"{missing}", "start")
        return Start(spec)
    record = read_record(run)
    if record is None:
        raise ConfigError(f"the record of the run {run} is damaged; give a copy of {run / BEST}", "start")
    if not record.is_finished:
        raise ConfigError(f"the run {run} is not finished; resume it with '{resume_command(run)}'", "start")
    return Start(str(run / BEST), run, record)
