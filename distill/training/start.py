"""What a model that is trained further comes from: a folder, a hub id, an alias, or a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distill.errors import ConfigError
from distill.layout import BEST, default_folder, describe_missing
from distill.record import RunRecord, StartRecord, read_record, run_folder


@dataclass(frozen=True)
class Start:
    """What is trained further.

    Attributes:
        model: the model's place.
        run: the run it comes from; None where it comes from none.
        record: that run's record; None without a run.
    """

    model: str
    run: Path | None
    record: RunRecord | None

    def describe(self, spec: str, contract_id: str) -> StartRecord:
        """Return what the record of the next run says of it.

        Args:
            spec: how it was named.
            contract_id: of the vectors that it gave.
        """
        before = self.record
        return StartRecord(
            spec=spec,
            run=None if self.run is None else str(self.run),
            contract_id=contract_id,
            # Two runs are one student but for their seeds only where what they began with was.
            setting=None if before is None else before.setting,
            seeds=[] if before is None else before.seeds,
        )

    def refuse_folder(self, folder: Path, what: str) -> None:
        """Raise :class:`ConfigError` where what is trained further lies in the folder that is to be replaced.

        Args:
            folder: the folder of the new run.
            what: what messages call what is trained.
        """
        if self.run == folder.resolve():
            raise ConfigError(f"{folder} is the run that the {what} comes from; give another --out", "out")


def default_out(spec: str, file: str, kind: str) -> str:
    """Return the folder of a run that names none: by what is trained further, the file and the kind.

    Args:
        spec: what is trained further.
        file: the file of texts.
        kind: what the run's record says it is.
    """
    run = run_folder(spec)
    start = run.name if run else Path(spec).name
    return default_folder(f"{start}-{Path(file).name.split('.')[0]}-{kind}")


def find_start(spec: str) -> Start:
    """Return what ``spec`` names; of a run, its best student.

    Raises:
        ConfigError: if there is no such folder, or the run is damaged or not finished.
    """
    run = run_folder(spec)
    if run is None:
        if missing := describe_missing(spec):
            raise ConfigError(f"{missing}", "start")
        return Start(spec, None, None)
    record = read_record(run)
    if record is None:
        raise ConfigError(
            f"the record of the run {run} is damaged; name {run / BEST} copied elsewhere", "start"
        )
    if not record.is_finished:
        raise ConfigError(
            f"the run {run} is not finished; go on with it by 'distill {record.kind} --resume {run}'", "start"
        )
    return Start(str(run / BEST), run, record)
