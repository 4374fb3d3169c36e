"""A run's folder: whose it is, what lies in it from the start, and how its student is kept whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from distill.config.models import RunConfig
from distill.errors import CheckpointError, ConfigError
from distill.layout import BEST, CHECKPOINT, CONFIG, HELD_OUT, LOCK, METRICS, RECORD, resume_command
from distill.record import RunRecord, read_record
from distill.students.save import saving, share
from embedcache.errors import RemoteError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, write_bytes
from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.classification.config import TeachConfig
    from distill.config.finetune import FinetuneConfig
    from distill.data.dataset import DistillDataset
    from distill.reaugkd.head import LabelHead

_OLD = "-old"

C = TypeVar("C", "RunConfig", "FinetuneConfig", "TeachConfig")


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raise :class:`ConfigError` where ``folder`` holds a run or other things that may not be replaced."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give a folder", "out")
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} - {LOCK}:
        return
    record = read_record(folder)
    if record is None:
        raise ConfigError(f"{folder} is not empty and holds no run; give another --out", "out")
    if overwrite:
        return
    if record.is_finished:
        raise ConfigError(
            f"{folder} holds a run already; give another --out, or replace it with --overwrite", "out"
        )
    if (folder / CHECKPOINT).is_file():
        raise ConfigError(
            f"{folder} holds a run that was interrupted; go on with "
            f"'{resume_command(folder)}', or "
            "start anew with --overwrite",
            "out",
        )


def claim_folder(config: C, default: Callable[[], str]) -> tuple[Path, C]:
    """Return the folder of a run that begins, and the configuration with it filled in.

    Args:
        config: the configuration.
        default: gives the folder where the configuration names none.

    Raises:
        ConfigError: if it holds a run or other things that may not be replaced.
    """
    folder = Path(config.out or default()).expanduser()
    require_free(folder, overwrite=config.overwrite)
    return folder, config.model_copy(update={"out": str(folder)})


def read_interrupted(folder: Path, kind: str) -> RunRecord:
    """Return the record of the run in ``folder``, which was interrupted.

    Args:
        folder: the run's folder.
        kind: the command it has to be of: ``run`` or ``finetune``.

    Raises:
        CheckpointError: if there is none, or it is of the other command, finished, or had not begun.
    """
    record = read_record(folder)
    if record is None:
        raise CheckpointError(f"{folder} holds no run: give the folder of an interrupted 'distill {kind}'")
    if record.kind != kind:
        raise CheckpointError(
            f"the run in {folder} is one of 'distill {record.kind}': go on with '{resume_command(folder)}'"
        )
    if record.is_finished:
        raise CheckpointError(f"the run in {folder} is finished: its student is {folder / BEST}")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"the run in {folder} was interrupted before it began, there is no {CONFIG}: start it by the "
            "same command again"
        )
    return record


@contextmanager
def advising(folder: Path) -> Iterator[None]:
    """Let what ends training from outside say how to go on, where there is a checkpoint to go on from.

    Raises:
        KeyboardInterrupt: on Ctrl-C inside the block.
        RemoteError: if a remote that is trained from cannot be read any more.
    """
    try:
        yield
    except (KeyboardInterrupt, RemoteError) as stop:
        record = read_record(folder)
        if record is None or not (folder / CHECKPOINT).is_file():
            raise
        command = f"'{resume_command(folder)}'"
        if isinstance(stop, RemoteError):
            # What it says to do again is not the command that began the run.
            raise RemoteError(f"{stop}; the run goes on from its last checkpoint with {command}") from stop
        raise KeyboardInterrupt(f"go on with {command}") from stop


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from training into ``folder`` inside the block.

    Raises:
        ConfigError: if one does already.
    """
    path = make_directory(folder) / LOCK
    with _only_holder(path) as file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _only_holder(path: Path) -> Iterator[TextIO]:
    """Open the file at ``path`` with its lock held."""
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Who held it may have removed it since it was opened; then it keeps nobody out.
                current = path.stat().st_ino == os.fstat(file.fileno()).st_ino
            except BlockingIOError:
                file.seek(0)
                # It is empty for the moment between being locked and being written.
                number = file.read().strip()
                raise ConfigError(
                    f"another process{f' (number {number})' if number else ''} is training into "
                    f"{path.parent}: wait until it has ended; a new run can go into another --out meanwhile",
                    "out",
                ) from None
            except FileNotFoundError:
                current = False
            if current:
                yield file
                return


def start_folder(folder: Path, config: RunConfig, dataset: DistillDataset, record: RunRecord) -> None:
    """Clear ``folder`` of the run it held, and write what a run begins with."""
    begin_folder(folder, config.to_yaml(), record, dataset.texts(dataset.held_out))
    if dataset.targets.combination is not None:
        dataset.targets.combination.save(folder)


def begin_folder(folder: Path, config: str, record: RunRecord, held_out: Sequence[str]) -> None:
    """Clear ``folder`` of the run it held, and write what every training begins with.

    Args:
        folder: the run's folder.
        config: the configuration, as YAML.
        record: the record of a run that has no result yet.
        held_out: the texts kept out of training.
    """
    kept = replaced(folder)
    # A finished student is not given up for one that may never be finished.
    before = read_record(folder)
    if before is not None and before.is_finished and (folder / BEST).is_dir():
        shutil.rmtree(kept, ignore_errors=True)
        make_directory(kept)
        # Should this be interrupted, what is left is still known as a run, and no longer as a finished one.
        order = {BEST: 0, RECORD: 2}
        for path in sorted(folder.iterdir(), key=lambda path: order.get(path.name, 1)):
            if path.name != LOCK:
                path.rename(kept / path.name)
    else:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
    record.write(folder)
    write_bytes(folder / CONFIG, config.encode())
    if len(held_out):
        lines = (json.dumps(text, ensure_ascii=False) for text in held_out)
        write_bytes(folder / HELD_OUT, ("\n".join(lines) + "\n").encode())


def finish_folder(folder: Path, record: RunRecord) -> None:
    """Write the record of a finished run, and remove what only an unfinished one needs."""
    record.write(folder)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    shutil.rmtree(replaced(folder), ignore_errors=True)


def replaced(folder: Path) -> Path:
    """Return where the finished run that ``folder`` held is kept until the new one is finished too."""
    return folder.with_name(f"{folder.name}.replaced")


def continue_folder(folder: Path, config: str, record: RunRecord, step: int) -> None:
    """Bring ``folder`` to where a run was after ``step`` steps, after which it goes on."""
    _sweep(folder)
    _cut_metrics(folder, step)
    # They name the cache, which may have moved.
    record.write(folder)
    write_bytes(folder / CONFIG, config.encode())


def _sweep(folder: Path) -> None:
    """Remove what a killed process was writing, but for the student it was replacing."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.name.endswith(_OLD) and not (folder / BEST).exists():
            path.rename(folder / BEST)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _cut_metrics(folder: Path, step: int) -> None:
    """Leave only the metrics of the first ``step`` steps."""
    path = folder / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    kept = []
    for line in lines:
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError):
            # The last line of a run that was killed may be cut off.
            break
        kept.append(line + "\n")
    write_bytes(path, "".join(kept).encode())


def save_student(model: SentenceTransformer, folder: Path, classifier: LabelHead | None = None) -> None:
    """Save ``model`` so that ``folder/best`` is always a whole model, the old one or the new.

    Args:
        model: the student.
        folder: the run's folder.
        classifier: what reads its vectors, to be saved with it.
    """
    target = folder / BEST
    staging = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
    old = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{_OLD}")
    try:
        with saving(target), quiet_transformers():
            model.save_pretrained(str(staging), create_model_card=False)
            for weights in staging.rglob("*.safetensors"):
                share(weights)
            if classifier is not None:
                classifier.kept().write(staging)
            if target.exists():
                target.rename(old)
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
