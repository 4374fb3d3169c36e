"""``run.json``: the record of a run, enough to find, check, compare and evaluate it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from distill.config.base import StrictConfig
from distill.errors import DataError
from distill.layout import BEST, RECORD, REPLACED
from embedcache.fsio import json_digest, write_json

# Names in a configuration that the digests of a record stand for.
_NAMES = ("corpus", "teacher", "start", "triples", "sentences", "labels")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TeacherRecord(_Part):
    """A teacher whose vectors a run learnt from.

    Attributes:
        name: its name in the cache.
        spec: alias, hub id or folder it can be loaded from.
        contract_id: id of its contract.
        contract: the contract, as ``embedcache.contract.Contract.to_json`` writes it.
        share: its weight among several teachers, 0 to 1.
    """

    name: str
    spec: str
    contract_id: str
    contract: dict[str, Any]
    share: float = 1.0


class TargetsRecord(_Part):
    """Targets of a run.

    Attributes:
        dimension: their width.
        file: file of the run's folder that holds how teachers are combined; None: one teacher's vectors.
        projected_from: width before the reduction by PCA; None without one.
        energy: share of the squared length that the reduction keeps, 0 to 1; None without one.
    """

    dimension: int
    file: str | None = None
    projected_from: int | None = None
    energy: float | None = None


class CorpusRecord(_Part):
    """Corpus of the cache, or file of texts, that a run was trained on.

    Attributes:
        name: its name.
        rows: its rows, held-out ones included.
        digest: digest of its texts.
    """

    name: str
    rows: int
    digest: str


class DevRecord(_Part):
    """Development set that checkpoints were chosen on.

    Attributes:
        name: name of the file.
        sha256: digest of the file.
        rows: conditions on its rows, ``COLUMN=VALUE``; None: all rows.
    """

    name: str
    sha256: str
    rows: list[str] | None = None


class StartRecord(_Part):
    """Model that a fine-tuning began with.

    Attributes:
        spec: its spec as given.
        run: folder of the run it comes from; None where it comes from none.
        contract_id: id of the contract of the vectors it gave.
        setting: that run's ``RunRecord.setting``; None without a run.
        seeds: that run's seeds.
    """

    spec: str
    run: str | None
    contract_id: str
    setting: str | None = None
    seeds: list[int] = []


class TrainResult(_Part):
    """End of a training.

    Attributes:
        steps: steps done.
        total_steps: steps planned; more than ``steps`` where it stopped early.
        best_step: step of the best checkpoint.
        best_score: its selection score; None where there was nothing to select by.
        selected_by: name of that score; None where there was nothing to select by.
        final_loss: mean loss over the last 100 steps, or all of a shorter run.
        seconds: wall-clock seconds of the loop, evaluations included.
        rows_per_second: training rows a second, evaluations and checkpoints excluded.
        waited: share of the time that steps waited for data, 0 to 1.
        stopped_early: True if patience ran out.
    """

    steps: int
    total_steps: int
    best_step: int
    best_score: float | None = None
    selected_by: str | None = None
    final_loss: float
    seconds: float
    rows_per_second: float
    waited: float = 0.0
    stopped_early: bool = False


class MachineRecord(_Part):
    """Precision, device and library versions of a training.

    Attributes:
        precision: ``bf16``, ``fp16`` or ``no``.
        device: kind of device, as torch and its driver call it.
        torch, transformers: versions.
    """

    precision: str
    device: str
    torch: str
    transformers: str


class RunRecord(_Part):
    """Record of a run; written when it begins, and again with its result.

    Attributes:
        kind: command that made the run.
        identity: ``identity_digest()`` of the configuration it was started with, seed left out.
        seeds: the seed of each stage of its training, the first stage first.
        setting: digest of everything that affects the result except the seeds: the resolved configuration,
            the content of corpus, views, teachers and development set, and the setting of the stage before.
        recipe: recipe it was started with; None without one.
        teachers: teachers whose vectors it learnt from, in this or the stage before; may be empty.
        targets: targets made from the teachers' vectors; None without teachers.
        cache: folder of the cache; None without teachers.
        corpus: its training corpus.
        views: view of the corpus -> its digest; None of the original.
        where: SQL predicate that chose the rows; None: all rows.
        selected: rows that satisfy it; None without one.
        rows: rows trained on.
        held_out: rows kept out of training.
        skipped: reason -> rows of the file that were left out.
        in_dev: rows trained on that share a text with the development set; None without one.
        student: specification of the student.
        parameters: parameters of the student as it is saved.
        notes: sentences on how the student was made.
        labels: names of the labels, of a classifier; None of an encoder.
        label_counts: label -> rows trained on, of a classifier made by ``distill finetune``.
        in_target_space: True if vectors are comparable with the targets, number by number.
        dev: development set; None: checkpoints were chosen on held-out rows, or not at all.
        loss: name of the loss.
        order: digest of the windows that rows of a limited remote come in; None: one window.
        start: model that a fine-tuning began with; None of ``distill run``.
        stage1: record of the run it comes from; None where it comes from none.
        machine: precision, device and libraries that it was trained with; None of older runs.
        scores: name -> value of the best checkpoint's scores.
        result: its result; None while it is not finished.
    """

    version: Literal[2] = 2
    kind: Literal["run", "finetune"] = "run"
    identity: str
    seeds: list[int]
    setting: str
    recipe: str | None = None
    teachers: list[TeacherRecord] = []
    targets: TargetsRecord | None = None
    cache: str | None = None
    corpus: CorpusRecord
    views: dict[str, str | None] = {}
    where: str | None = None
    selected: int | None = None
    rows: int
    held_out: int = 0
    skipped: dict[str, int] = {}
    in_dev: int | None = None
    student: str
    parameters: int
    notes: list[str] = []
    labels: list[str] | None = None
    label_counts: dict[str, int] | None = None
    in_target_space: bool = True
    dev: DevRecord | None = None
    loss: str
    order: str | None = None
    start: StartRecord | None = None
    stage1: RunRecord | None = None
    machine: MachineRecord | None = None
    scores: dict[str, float] = {}
    result: TrainResult | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def teacher(self) -> TeacherRecord | None:
        """The first teacher; None without teachers."""
        return self.teachers[0] if self.teachers else None

    @property
    def is_finished(self) -> bool:
        """True if training has ended."""
        return self.result is not None

    @property
    def seed(self) -> int | str:
        """The seed as it is shown: one number, or ``0+1`` of stages with different seeds."""
        return self.seeds[0] if len(set(self.seeds)) == 1 else "+".join(map(str, self.seeds))

    def write(self, folder: Path) -> None:
        """Write ``folder/run.json`` atomically."""
        write_json(folder / RECORD, self.model_dump(mode="json"))


def read_record(folder: Path) -> RunRecord | None:
    """Return the record of the run in ``folder``; None where there is none that can be read."""
    # A run may be deleted to make room for another; other people's files of this name may not.
    try:
        return RunRecord.model_validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return None


def run_folder(spec: object) -> Path | None:
    """Return the run folder that ``spec`` (``RUN`` or ``RUN/best``) means; None where it is not a run."""
    if not isinstance(spec, str | Path):
        return None
    folder = Path(spec).expanduser().resolve()
    if (folder / RECORD).is_file():
        return folder
    inside_run = folder.name == BEST and (folder.parent / RECORD).is_file()
    return folder.parent if inside_run else None


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the folders of all runs in ``paths``, each once, in order.

    Args:
        paths: run folders, their ``best/`` folders, or folders with runs anywhere below them.

    Raises:
        DataError: if a path is missing or holds no run.
    """
    found: dict[Path, None] = {}
    for path in [paths] if isinstance(paths, str | Path) else paths:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; give run folders, or a folder with runs below it")
        run = run_folder(folder)
        records = (path for path in folder.rglob(RECORD) if REPLACED not in path.parts)
        below = [run] if run else sorted(path.parent.resolve() for path in records)
        if not below:
            raise DataError(f"{folder}: no run in it or below it (no {RECORD}); give a folder with runs")
        found |= dict.fromkeys(below)
    return list(found)


def digest_of(facts: object) -> str:
    """Return the sha256 of a JSON value in its canonical form."""
    return json_digest(facts)


def setting_of(config: StrictConfig, facts: dict[str, Any], before: StartRecord | None = None) -> str:
    """Return the digest of everything that affects the result of a run except its seeds.

    Args:
        config: the resolved configuration.
        facts: digests of corpus, views, teachers and development set; they stand for the files and names in
            the configuration.
        before: the model that it starts from; None without one.
    """
    named = {key: value for key, value in config.identity().items() if key not in _NAMES}
    named["evaluation"].pop("data", None)
    # A limit that all shards fit into changes nothing; `facts` has it where it does.
    named.get("stream", {}).pop("limit", None)
    start = None if before is None else before.setting or before.contract_id
    return digest_of({"config": named, "start": start, **facts})
