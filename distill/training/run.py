"""One run, from a configuration to a student on disk."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.card import CardFacts, write_card
from distill.config import RunConfig
from distill.data.dataset import DistillDataset, open_dataset
from distill.data.targets import Targets
from distill.data.tokens import tokenise_corpus
from distill.errors import ConfigError, StudentError
from distill.layout import BEST, HELD_OUT, RECORD
from distill.losses.registry import make_loss
from distill.students.save import saving
from distill.students.student import build_student, count_parameters
from distill.training.device import cpu_threads, make_accelerator, seeded
from distill.training.record import new_record, read_record
from distill.training.selection import make_selector
from distill.training.tracking import OnProgress, Tracker, TrainProgress, require_tensorboard
from distill.training.trainer import Trainer, TrainResult
from embedcache.cache import Cache, CachedTeacher
from embedcache.fsio import TEMPORARY_PREFIX, make_directory, write_bytes, write_json
from embedcache.teacher.by_contract import load_by_contract
from embedcache.teacher.load import Teacher, quiet_transformers
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the run's folder.
        config: the configuration with all defaults filled in.
        result: how training ended.
        parameters: parameters of the student.
        teachers: the teachers' names.
        corpus: the corpus's name.
        corpus_rows: rows of the corpus.
        rows: rows trained on.
        selected: rows that satisfy ``training.where``; None where there is none.
    """

    folder: Path
    config: RunConfig
    result: TrainResult
    parameters: int
    teachers: tuple[str, ...]
    corpus: str
    corpus_rows: int
    rows: int
    selected: int | None

    @property
    def best(self) -> Path:
        """The folder of the best student; ``SentenceTransformer(run.best)`` opens it."""
        return self.folder / BEST


def run_config(config: RunConfig, on_progress: OnProgress | None = None) -> Run:
    """Train the student that ``config`` describes.

    The run's folder receives ``config.yaml`` (everything filled in), ``run.json`` (teachers, corpus, result),
    ``metrics.jsonl``, ``held_out.txt``, ``targets.safetensors`` where targets are combined or projected, and
    ``best/``, the student as a sentence-transformers folder.

    Raises:
        ConfigError: if the configuration cannot be run as it is.
        DataError: if vectors are missing or the corpus is too small.
        StudentError: if the student cannot be built or does not fit the teacher.
        TrainingError: if the loss becomes NaN or infinite.
        EmbedCacheError: if the cache cannot be used.
    """
    cache = Cache(config.cache)
    dataset = open_dataset(
        cache,
        corpus=config.corpus,
        teacher=config.teacher,
        weights=config.teacher_weights,
        target_dim=config.target_dim,
        where=config.training.where,
        held_out=lambda distinct: config.resolved(distinct).evaluation.held_out or 0,
        limit=config.training.limit,
        # Who sets a limit knows how few rows there will be.
        least_selected=1 if config.training.limit else config.resolved(1).training.batch_size or 1,
        seed=config.seed,
    )
    if on_progress is not None and dataset.selected is not None:
        on_progress(TrainProgress("select", dataset.selected, len(dataset.corpus)))
    corpus, teacher, targets = dataset.corpus, dataset.teacher, dataset.targets
    config = config.resolved(len(dataset) + len(dataset.held_out)).model_copy(
        update={
            "corpus": corpus.name,
            "teacher": config.teacher or teacher.name,
            "out": config.out or _default_out(config, corpus.name),
        }
    )
    folder = Path(str(config.out)).expanduser()
    _require_free(folder, overwrite=config.overwrite)
    if config.tracking.tensorboard:
        require_tensorboard()

    accelerator = make_accelerator(config.training)
    model = build_student(
        config.student.spec,
        teacher.contract,
        lambda: load_live_teacher(cache, teacher, config.teacher_model),
        dimension=targets.dimension if targets.combination else None,
        head=config.student.head,
        pooling=config.student.pooling,
        max_length=config.student.max_length,
        dropout=config.student.dropout,
        seed=config.seed,
    )
    tokenizer = _tokenizer_of(model, config.student.spec)
    selector = make_selector(config.evaluation.data, dataset, tokenizer)
    if selector is None and config.evaluation.patience is not None:
        raise ConfigError(
            f"evaluation.patience: {config.evaluation.patience} evaluations without a new best can only be "
            f"counted where there are evaluations, and {len(dataset.held_out)} rows are held out; "
            "hold out at least 10, give --dev, or leave --patience out"
        )
    tokens = tokenise_corpus(cache, corpus, tokenizer, _prepare_progress(on_progress, len(corpus)))
    parameters = count_parameters(model)
    record = new_record(cache, dataset, config, parameters)

    def save_best() -> None:
        _save(accelerator.unwrap_model(model), folder / BEST)

    trainer = Trainer(
        model,
        make_loss(config.loss, targets.dimension),
        dataset,
        tokens,
        tokenizer,
        selector,
        config,
        accelerator,
        save_best,
    )
    # From here on files are written; everything that can be refused has been.
    _start_folder(folder, config, dataset, record)
    with (
        Tracker(folder, tensorboard=config.tracking.tensorboard) as tracker,
        cpu_threads(config.training.threads),
        seeded(config.seed, accelerator.device),
    ):
        result = trainer.train(tracker, on_progress)
    record["result"] = asdict(result)
    write_json(folder / RECORD, record)
    shutil.rmtree(_replaced(folder), ignore_errors=True)
    run = Run(
        folder,
        config,
        result,
        parameters,
        teachers=targets.names,
        corpus=corpus.name,
        corpus_rows=len(corpus),
        rows=len(dataset),
        selected=dataset.selected,
    )
    _write_card(run, dataset, selector.name if selector else None)
    return run


def run(*, on_progress: OnProgress | None = None, **settings: Any) -> Run:
    """Train a student; the keyword form of :func:`run_config`.

    Args:
        on_progress: called after every step.
        settings: keys of the configuration. Those of ``distill.config.SHORT_KEYS`` may stand without their
            group: ``student="layers:3"``, ``epochs=4``, ``lr=3e-4``; every other key is given in its group:
            ``optimizer={"eps": 1e-6}``.

    Raises:
        ConfigError: naming every key that is unknown or has a value that cannot be used; else as
            :func:`run_config`.
    """
    from distill.config import SHORT_KEYS, load_config

    flags: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flags |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flags[SHORT_KEYS.get(key, key)] = value
    texts = {key: str(value) if isinstance(value, Path) else value for key, value in flags.items()}
    return run_config(load_config(flags=texts), on_progress)


def load_live_teacher(cache: Cache, teacher: CachedTeacher, source: str | None = None) -> Teacher:
    """Load the teacher itself, and make sure it is the one the cache holds vectors of.

    Args:
        cache: the cache.
        teacher: the cached teacher.
        source: alias, hub id or folder to load from; default: as it was built.

    Raises:
        TeacherError: if it cannot be found.
        ContractMismatchError: if it is another teacher now; it names the fields that differ.
    """
    return load_by_contract(
        source or cache.model_source(teacher),
        teacher.contract,
        name=teacher.name,
        remedy="say where that one is with --teacher-model",
    )


def _default_out(config: RunConfig, corpus: str) -> str:
    student = Path(config.student.spec).name if "/" in config.student.spec else config.student.spec
    words = f"{corpus}-{student}-{config.loss.name}"
    return str(Path("runs") / "".join(c if c.isalnum() or c in "._-" else "_" for c in words))


def _require_free(folder: Path, *, overwrite: bool) -> None:
    if folder.is_file():
        raise ConfigError(f"out: {folder} is a file; give a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    record = read_record(folder)
    if record is None:
        raise ConfigError(f"out: {folder} is not empty and holds no run; give another --out")
    # A run without a result was interrupted; the same command starts it anew.
    if record.get("result", True) is not None and not overwrite:
        raise ConfigError(
            f"out: {folder} holds a run already; give another --out, or replace it with --overwrite"
        )


def _start_folder(folder: Path, config: RunConfig, dataset: DistillDataset, record: dict[str, Any]) -> None:
    kept = _replaced(folder)
    if folder.is_dir():
        # A finished student is not given up for one that may never be finished.
        if (read_record(folder) or {}).get("result") is not None:
            shutil.rmtree(kept, ignore_errors=True)
            folder.rename(kept)
        else:
            shutil.rmtree(folder)
    make_directory(folder)
    write_json(folder / RECORD, record)
    write_bytes(folder / "config.yaml", config.to_yaml().encode())
    if dataset.targets.combination is not None:
        dataset.targets.combination.save(folder)
    if len(dataset.held_out):
        lines = (json.dumps(text, ensure_ascii=False) for text in dataset.corpus.texts(dataset.held_out))
        write_bytes(folder / HELD_OUT, ("\n".join(lines) + "\n").encode())


def _replaced(folder: Path) -> Path:
    """Return where the finished run that ``folder`` held is kept until the new one is finished too."""
    return folder.with_name(f"{folder.name}.replaced")


def _tokenizer_of(model: SentenceTransformer, spec: str) -> FastTokenizer:
    model.prompts, model.default_prompt_name = {}, None
    tokenizer = fast_tokenizer(model, int(model.max_seq_length or 0), "")
    if tokenizer is None:
        raise StudentError(
            f"student {spec!r} has no tokenizer with a fast (Rust) backend, which training needs; "
            "choose a text encoder such as BERT, MiniLM or MPNet"
        )
    return tokenizer


def _prepare_progress(on_progress: OnProgress | None, rows: int) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    return lambda done: on_progress(TrainProgress("prepare", done, rows))


def _save(model: SentenceTransformer, target: Path) -> None:
    """Save ``model`` so that ``target`` is always a whole model, the old one or the new."""
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


def _folder_name(spec: str) -> str:
    """Return the spec; of a folder its name alone, which says as much to others as its place does."""
    folder = Path(spec).expanduser()
    return folder.resolve().name if folder.is_dir() else spec


def _write_card(run: Run, dataset: DistillDataset, selected_by: str | None) -> None:
    config, result = run.config, run.result
    where = config.training.where
    selected = {} if where is None else {"selected by": where, "selected": run.selected}
    scores = (
        {} if result.best_score is None or selected_by is None else {selected_by: result.best_score * 100}
    )
    write_card(
        run.best,
        CardFacts(
            student=_folder_name(config.student.spec),
            teachers=[
                (teacher.origin.get("model_id", teacher.name), teacher.contract.to_json())
                for teacher in dataset.targets.teachers
            ],
            corpus={
                "name": run.corpus,
                "rows": len(dataset.corpus),
                **selected,
                "trained on": run.rows,
                "digest": dataset.corpus.info.digest,
            },
            loss=config.loss.name,
            settings={
                "epochs": config.training.epochs,
                "batch size": config.training.batch_size,
                "peak learning rate": config.optimizer.lr,
                "schedule": config.optimizer.schedule,
                "seed": config.seed,
                **_targets_settings(dataset.targets),
            },
            scores=scores,
            parameters=run.parameters,
            dimension=dataset.targets.dimension,
            seconds=result.seconds,
        ),
    )


def _targets_settings(targets: Targets) -> dict[str, object]:
    """Return how the targets were made, for the card; nothing for one teacher's vectors as they are."""
    if targets.combination is None:
        return {}
    found: dict[str, object] = {}
    if len(targets.names) > 1:
        shares = zip(targets.names, targets.combination.shares, strict=True)
        found["shares of the teachers"] = ", ".join(f"{name} {share:.4g}" for name, share in shares)
    if targets.combination.energy is not None:
        found["targets reduced by PCA"] = (
            f"from {sum(targets.combination.widths)} to {targets.dimension} dimensions, "
            f"which keep {targets.combination.energy:.2%} of their squared length"
        )
    return found
