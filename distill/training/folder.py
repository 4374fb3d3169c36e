"""Folder of a run: claimed, locked, begun, continued and finished, and its student saved atomically."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from distill.errors import CheckpointError, ConfigError
from distill.layout import (
    BEST,
    CHECKPOINT,
    CONFIG,
    HELD_OUT,
    LOCK,
    METRICS,
    RECORD,
    REPLACED,
    resume_command,
)
from distill.reaugkd.head import LabelHead
from distill.record import RunRecord, read_record
from distill.students.save import make_readable, saving
from embedcache.errors import RemoteError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, write_bytes
from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


_OLD = "-old"


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raise ``ConfigError`` where ``folder`` holds a run or other things that may not be replaced."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give a folder", "out")
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} - {LOCK, REPLACED}:
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
            f"{folder} holds an interrupted run; resume it with '{resume_command(folder)}', or replace it "
            "with --overwrite",
            "out",
        )


def read_interrupted(folder: Path) -> RunRecord:
    """Return the record of the interrupted run in ``folder``.

    Raises:
        CheckpointError: if there is none, or it is finished, or had not begun.
    """
    record = read_record(folder)
    if record is None:
        raise CheckpointError(f"{folder} holds no run: give the folder of an interrupted run")
    if record.is_finished:
        raise CheckpointError(f"the run in {folder} is finished: its student is {folder / BEST}")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"the run in {folder} was interrupted before it began (no {CONFIG}): start it again by the same "
            "command"
        )
    return record


@contextmanager
def advising(folder: Path) -> Iterator[None]:
    """Add the command that resumes the run to Ctrl-C and to errors of a remote, if there is a checkpoint.

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
            raise RemoteError(f"{stop}; resume the run from its last checkpoint with {command}") from stop
        raise KeyboardInterrupt(f"resume with {command}") from stop


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from training into ``folder`` inside the block.

    Raises:
        ConfigError: if one does already.
    """
    lock = FileLock(make_directory(folder) / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            f"another process is training into {folder}: wait until it has ended, or give another --out",
            "out",
        ) from None
    try:
        yield
    finally:
        lock.release()


def begin_folder(folder: Path, config: str, record: RunRecord, held_out: Sequence[str]) -> None:
    """Clear ``folder`` of the run it held, and write record, configuration and held-out texts.

    Args:
        folder: the run's folder.
        config: the configuration, as YAML.
        record: the record of a run that has no result yet.
        held_out: the texts kept out of training.
    """
    before, kept = read_record(folder), folder / REPLACED
    # A finished student is not given up for one that may never be finished.
    keep = before is not None and before.is_finished and (folder / BEST).is_dir()
    if keep:
        shutil.rmtree(kept, ignore_errors=True)
        make_directory(kept)
    # The record goes last, so that an interrupted removal leaves a folder still recognised as a run.
    for path in sorted(folder.iterdir(), key=lambda path: path.name == RECORD):
        if path.name in (LOCK, REPLACED):
            continue
        if keep:
            path.rename(kept / path.name)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    record.write(folder)
    write_bytes(folder / CONFIG, config.encode())
    if len(held_out):
        lines = (json.dumps(text, ensure_ascii=False) for text in held_out)
        write_bytes(folder / HELD_OUT, ("\n".join(lines) + "\n").encode())


def finish_folder(folder: Path, record: RunRecord) -> None:
    """Write the record of a finished run, and remove its checkpoint and the run it replaces."""
    record.write(folder)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def continue_folder(folder: Path, config: str, record: RunRecord, step: int) -> None:
    """Bring ``folder`` to its state after ``step`` steps, to resume from there."""
    _sweep(folder)
    _cut_metrics(folder, step)
    # They name the cache, which may have moved.
    record.write(folder)
    write_bytes(folder / CONFIG, config.encode())


def _sweep(folder: Path) -> None:
    """Remove partial files of a killed process; put back the student it was replacing."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if path.name.endswith(_OLD) and not (folder / BEST).exists():
            path.rename(folder / BEST)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _cut_metrics(folder: Path, step: int) -> None:
    """Cut the metrics after ``step`` steps."""
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
        classifier: its classifier, saved with it; None for an encoder alone.
    """
    target = folder / BEST
    staging = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
    old = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{_OLD}")
    try:
        with saving(target), quiet_transformers():
            model.save_pretrained(str(staging), create_model_card=False)
            for weights in staging.rglob("*.safetensors"):
                make_readable(weights)
            if classifier is not None:
                classifier.kept().write(staging)
            if target.exists():
                target.rename(old)
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
