"""A run's folder: whose it is, what lies in it from the start, and how its student is kept whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.config import RunConfig
from distill.errors import ConfigError
from distill.layout import BEST, CHECKPOINT, CONFIG, HELD_OUT, LOCK, METRICS, RECORD
from distill.students.save import saving
from distill.training.record import read_record
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, write_bytes, write_json
from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.data.dataset import DistillDataset


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raise :class:`ConfigError` where ``folder`` holds a run or other things that may not be replaced."""
    if folder.is_file():
        raise ConfigError(f"out: {folder} is a file; give a folder")
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} - {LOCK}:
        return
    record = read_record(folder)
    if record is None:
        raise ConfigError(f"out: {folder} is not empty and holds no run; give another --out")
    if overwrite:
        return
    if record.get("result", True) is not None:
        raise ConfigError(
            f"out: {folder} holds a run already; give another --out, or replace it with --overwrite"
        )
    if (folder / CHECKPOINT).is_file():
        raise ConfigError(
            f"out: {folder} holds a run that was interrupted; go on with 'distill run --resume {folder}', or "
            "start anew with --overwrite"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from training into ``folder`` inside the block.

    Raises:
        ConfigError: if one does already.
    """
    path = make_directory(folder) / LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one that held it may have removed it meanwhile; another may have made a new one.
            taken = not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except BlockingIOError:
            taken = True
        if taken:
            file.seek(0)
            raise ConfigError(
                f"out: another process ({file.read().strip() or 'unknown'}) is training into {folder}; wait "
                "for it, or give another --out"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def start_folder(folder: Path, config: RunConfig, dataset: DistillDataset, record: dict[str, Any]) -> None:
    """Clear ``folder`` of the run it held, and write what a run begins with."""
    kept = replaced(folder)
    # A finished student is not given up for one that may never be finished.
    if (read_record(folder) or {}).get("result") is not None:
        shutil.rmtree(kept, ignore_errors=True)
        make_directory(kept)
        for path in folder.iterdir():
            if path.name != LOCK:
                path.rename(kept / path.name)
    else:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
    write_json(folder / RECORD, record)
    write_bytes(folder / CONFIG, config.to_yaml().encode())
    if dataset.targets.combination is not None:
        dataset.targets.combination.save(folder)
    if len(dataset.held_out):
        lines = (json.dumps(text, ensure_ascii=False) for text in dataset.texts(dataset.held_out))
        write_bytes(folder / HELD_OUT, ("\n".join(lines) + "\n").encode())


def finish_folder(folder: Path, record: dict[str, Any]) -> None:
    """Write the record of a finished run, and remove what only an unfinished one needs."""
    write_json(folder / RECORD, record)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    shutil.rmtree(replaced(folder), ignore_errors=True)


def replaced(folder: Path) -> Path:
    """Return where the finished run that ``folder`` held is kept until the new one is finished too."""
    return folder.with_name(f"{folder.name}.replaced")


def cut_metrics(folder: Path, step: int) -> None:
    """Leave only the metrics of the first ``step`` steps, after which a resumed run goes on."""
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


def save_student(model: SentenceTransformer, folder: Path) -> None:
    """Save ``model`` so that ``folder/best`` is always a whole model, the old one or the new."""
    target = folder / BEST
    staging = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
    old = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-old")
    try:
        with saving(target), quiet_transformers():
            model.save_pretrained(str(staging), create_model_card=False)
            if target.exists():
                target.rename(old)
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
