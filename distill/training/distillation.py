"""Distillation: rows of a cache, a student, and a loss on the teacher's vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from distill.config.models import ONLINE, RunConfig
from distill.data.dataset import DistillDataset, open_rows
from distill.data.labelled import LabelledRows
from distill.data.sampler import ORDERS
from distill.data.source import DistillSource
from distill.device import with_precision
from distill.errors import ConfigError
from distill.evaluation.pairs import PairSet
from distill.layout import TARGETS, default_folder
from distill.losses.registry import get_loss
from distill.reaugkd.soft_labels import open_soft_labels
from distill.record import CorpusRecord, RunRecord, TargetsRecord, TeacherRecord, setting_of
from distill.training.optimizer import warmup_steps
from distill.training.preparation import make_objective, prepare_student, teacher_loader, tokenise_view
from distill.training.remote import OpenedCache, open_cache, refuse_unknown_rows
from distill.training.selection import read_dev
from distill.training.streams import Streams
from distill.training.task import StudentParts, Task, Work, describe_dev
from distill.training.tracking import OnProgress, tell
from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.origin import read_note
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.readers import ReadOptions
from embedcache.pairs import split_pair
from embedcache.teacher.aliases import ALIASES


@dataclass(frozen=True)
class DistillTask(Task):
    """Task of ``distill run``.

    Attributes:
        config: the resolved configuration.
        cache: the cache.
        dataset: rows and targets.
        dev: rows to choose checkpoints on; None: those held out.
    """

    config: RunConfig
    cache: Cache
    dataset: DistillDataset
    dev: PairSet | LabelledRows | None = None

    def folder(self) -> Path:
        """Return the folder of the run."""
        spec = self.config.student.spec
        student = Path(spec).name if "/" in spec else spec
        named = default_folder(f"{self.dataset.corpus.name}-{student}-{self.config.loss.name}")
        return Path(self.config.out or named).expanduser()

    def prepare(self, accelerator: Accelerator, on_progress: OnProgress | None) -> Work:
        """Build student, objective and source."""
        cache, config, dataset = self.cache, self.config, self.dataset
        notes: list[str] = []

        def note(text: str) -> None:
            notes.append(text)
            tell(on_progress, text)

        if dataset.order is None:  # shards of a mirror come during the training
            for teacher, store in zip(dataset.targets.teachers, dataset.targets.stores, strict=True):
                if unchecked := sum(cache.unchecked(store).values()):
                    note(
                        f"{unchecked:,} vectors of teacher {teacher.name!r} were imported: stated, not "
                        "checked ('embedcache doctor --deep' compares them with the model)"
                    )
        live_teacher = teacher_loader(cache, config, dataset)
        student = prepare_student(cache, config, dataset, self.dev, note, on_progress, live_teacher)
        views = tuple(
            tokenise_view(cache, dataset.corpus, name, student.tokenizer, on_progress)
            for name in config.training.views or [ORIGINAL]
        )
        objective = make_objective(cache, config, dataset, student, live_teacher, accelerator)
        streams = Streams(dataset, config)
        ahead = streams.fetch if streams else None
        texts, buckets = get_loss(config.loss.name).views, ORDERS[config.training.order]
        source = DistillSource(dataset, views, texts, ahead, buckets)
        return Work(student, objective, source, self._record(student, notes))

    def save(self, folder: Path) -> None:
        """Write how the teachers' vectors become targets."""
        if self.dataset.targets.combination is not None:
            self.dataset.targets.combination.save(folder)

    def held_out_texts(self) -> Sequence[str]:
        """Return the texts kept out of training."""
        return self.dataset.texts(self.dataset.held_out)

    def _record(self, student: StudentParts, notes: Sequence[str]) -> Callable[..., RunRecord]:
        config, dataset = self.config, self.dataset
        corpus = dataset.corpus
        return partial(
            RunRecord,
            seeds=[config.seed],
            setting=run_setting(dataset, config),
            teachers=_teacher_records(self.cache, dataset, config.teacher_model),
            targets=_targets_record(dataset),
            cache=str(self.cache.folder.resolve()),
            corpus=CorpusRecord(name=corpus.name, rows=len(corpus), digest=corpus.info.digest),
            views=_view_digests(dataset, config),
            where=config.training.where,
            selected=dataset.selected,
            rows=len(dataset),
            held_out=len(dataset.held_out),
            student=config.student.spec,
            parameters=student.parameters,
            notes=list(notes),
            labels=None if dataset.soft is None else list(dataset.soft.names),
            # Without its head, or learning from labels alone, a student gives vectors of another space.
            in_target_space=not config.student.drop_head and get_loss(config.loss.name).reads_vectors,
            dev=describe_dev(config.evaluation.data, config.evaluation.rows),
            loss=config.loss.name,
            order=None if dataset.order is None else dataset.order.digest,
        )


def run_setting(dataset: DistillDataset, config: RunConfig) -> str:
    """Return the digest of everything that affects the result of a run over ``dataset`` except its seed."""
    dev = describe_dev(config.evaluation.data, config.evaluation.rows)
    facts = {
        "corpus": dataset.corpus.info.digest,
        "views": _view_digests(dataset, config),
        "teachers": [contract.id for contract in dataset.targets.contracts],
        "dev": dev and dev.sha256,
        # Only rows that come in windows come in another order.
        "limit": None if dataset.order is None else config.stream.limit,
    }
    return setting_of(config, facts)


def _view_digests(dataset: DistillDataset, config: RunConfig) -> dict[str, str | None]:
    return {
        name: None if name == ORIGINAL else dataset.corpus.view(name).info.digest
        for name in config.training.views or [ORIGINAL]
    }


@contextmanager
def open_distillation(
    config: RunConfig, on_progress: OnProgress | None = None, before: RunRecord | None = None
) -> Iterator[DistillTask]:
    """Open the data of a run; a remote stays open inside the block.

    Args:
        config: the configuration.
        on_progress: called with what is fetched and selected.
        before: the record of a run to resume.

    Raises:
        ConfigError, DataError, InputError: as ``open_data``.
        EmbedCacheError: if the cache or the remote cannot be used.
    """
    labelled = get_loss(config.loss.name).inside == "classes"
    dev = None if labelled else read_dev(config.evaluation, labelled=False)
    with open_cache(config, on_progress, digest=None if before is None else before.corpus.digest) as opened:
        dataset, resolved = open_data(opened, config, on_progress)
        if labelled:  # its columns may be named as the corpus's are
            dev = read_dev(resolved.evaluation, labelled=True)
        yield DistillTask(resolved, opened.cache, dataset, dev)


def open_data(
    opened: OpenedCache, config: RunConfig, on_progress: OnProgress | None = None
) -> tuple[DistillDataset, RunConfig]:
    """Return rows and targets, and the configuration with everything filled in that depends on them.

    Raises:
        ConfigError: if loss, views, teacher, warm-up and development file do not fit each other.
        DataError: if the loss's queue is longer than the rows to train on; else as ``open_rows``.
        InputError: as ``open_rows``.
    """
    cache, facts = opened.cache, get_loss(config.loss.name)
    refuse_unknown_rows(config.training.where, opened)
    views = _choose_views(config.loss.name, config.training.views, cache.corpus(opened.corpus))
    opened_rows = open_rows(
        cache,
        corpus=opened.corpus,
        teacher=config.cached_teacher,
        weights=config.teacher_weights,
        target_dim=config.target_dim,
        view=views[0],
        where=config.training.where,
        limit=config.training.limit,
        open_store=opened.open_store,
    )
    distinct = len(opened_rows.rows)
    resolved = config.resolved(distinct)
    settings, held_out = resolved.loss.settings, resolved.evaluation.held_out or 0
    facts.refuse_long_queue(settings, distinct - held_out)
    dataset = opened_rows.split(
        held_out,
        queue=int(settings["queue"]) if facts.full_queue else 0,
        queue_apart=facts.rows_apart(settings) > 0,
        seed=config.seed,
        cache_limit=config.stream.limit,
    )
    if dataset.selected is not None:
        tell(on_progress, f"{dataset.selected:,} of {len(dataset.corpus):,} rows selected by --where")
    warmup_steps(resolved.optimizer.warmup, resolved.training.count_steps(len(dataset)))
    _refuse_other_teacher(resolved, dataset)
    if facts.inside == "classes":
        dataset = _with_soft_labels(cache, resolved, dataset)
        resolved = _with_dev_columns(resolved, cache, dataset)
    elif (given := resolved.evaluation.of_dev) and resolved.evaluation.data is None:
        raise ConfigError(f"{', '.join(given)}: for a development file; give --dev FILE, or leave them out")
    name = config.teacher or dataset.teacher.name
    return dataset, resolved.model_copy(
        update={
            "corpus": dataset.corpus.name,
            "teacher": f"{ONLINE}:{dataset.teacher.name}" if config.online else name,
            "training": with_precision(resolved.training).model_copy(update={"views": views}),
        }
    )


def _with_soft_labels(cache: Cache, config: RunConfig, dataset: DistillDataset) -> DistillDataset:
    if config.student.drop_head:
        raise ConfigError(
            f"with the loss {config.loss.name} a classifier reads the vectors after the head; leave it out",
            "student.drop_head",
        )
    rows = np.concatenate([dataset.rows, dataset.held_out])
    labelled = "labels" in get_loss(config.loss.name).make_from.needs(config.loss.settings)
    soft = open_soft_labels(cache, dataset.teacher, dataset.corpus, dataset.view, rows, labelled=labelled)
    return replace(dataset, soft=soft)


def _with_dev_columns(config: RunConfig, cache: Cache, dataset: DistillDataset) -> RunConfig:
    """Return the configuration with the columns of the development file of a classifier.

    They default to those that the corpus was built from, if the cache still knows: most often it is the same
    file, or one that was made with it.
    """
    evaluation, corpus = config.evaluation, dataset.corpus
    if evaluation.data is None:
        if given := evaluation.of_dev:
            raise ConfigError(
                f"{', '.join(given)}: for a development file; give --dev FILE, or leave them out"
            )
        return config
    note = read_note(cache.derived_folder, corpus.name)
    # A corpus may have come from elsewhere since.
    built = note.options if note is not None and note.digest == corpus.info.digest else ReadOptions()
    has_pairs = split_pair(dataset.texts(dataset.rows[:1])[0]) is not None
    if evaluation.text2 is not None and not has_pairs:
        raise ConfigError(
            f"{evaluation.text2!r} is the column of a second text, and {corpus.title} is "
            "of single texts; leave it out",
            "evaluation.text2",
        )
    columns = {
        "text": evaluation.text or built.text_column,
        "text2": (evaluation.text2 or built.text2_column or "text2") if has_pairs else None,
        "label": evaluation.label or built.label_column or "label",
    }
    return config.model_copy(update={"evaluation": evaluation.model_copy(update=columns)})


def _refuse_other_teacher(config: RunConfig, dataset: DistillDataset) -> None:
    """Refuse a loss on layers without the live teacher, and the live teacher without such a loss."""
    name, loss = config.loss.name, get_loss(config.loss.name)
    needs = loss.make_from.needs(config.loss.settings)
    live = "live teacher" in needs
    if live and not config.online:
        raise ConfigError(
            f"loss {name}: it reads the teacher's layers, so the teacher runs at every step: give --teacher "
            "online (or online:NAME), or choose another loss"
        )
    if config.online and not live:
        raise ConfigError(
            f"teacher {config.teacher!r}: the loss {name}, as it is set, reads cached vectors only; leave "
            "'online' out, or choose a loss with loss.hidden above 0, such as lmx-kd"
        )
    reads_inside = live or "token table" in needs or loss.inside == "classes"
    if reads_inside and dataset.targets.combination:
        raise ConfigError(
            f"loss {name}: it reads the inside of one teacher, found combined or projected targets; name one "
            "--teacher and leave target_dim out"
        )


def _teacher_records(cache: Cache, dataset: DistillDataset, model: str | None) -> list[TeacherRecord]:
    targets = dataset.targets
    shares = targets.combination.shares if targets.combination else (1.0,)
    models = [model, *(None for _ in targets.teachers[1:])]
    return [
        TeacherRecord(
            name=teacher.name,
            spec=_absolute(model or cache.model_source(teacher)),
            contract_id=teacher.contract.id,
            contract=teacher.contract.to_json(),
            share=share,
        )
        for teacher, model, share in zip(targets.teachers, models, shares, strict=True)
    ]


def _targets_record(dataset: DistillDataset) -> TargetsRecord:
    made = dataset.targets.combination
    if made is None:
        return TargetsRecord(dimension=dataset.targets.dimension)
    return TargetsRecord(
        dimension=dataset.targets.dimension,
        file=TARGETS,
        projected_from=None if made.projection is None else sum(made.widths),
        energy=made.energy,
    )


def _absolute(spec: str) -> str:
    """Return the spec; of a folder its whole path, which means the same wherever it is read."""
    folder = Path(spec).expanduser()
    return str(folder.resolve()) if spec not in ALIASES and folder.is_dir() else spec


def _choose_views(loss: str, asked: list[str] | None, corpus: Corpus) -> list[str]:
    """Return the views to train on, the one that the teacher has encoded first.

    By default that is the original, and for losses of two views all others there are.

    Raises:
        ConfigError: if the corpus lacks a view, or the loss takes another number of them.
    """
    there, wanted = [ORIGINAL, *corpus.view_names()], get_loss(loss).views
    chosen = list(dict.fromkeys(asked or there[: 1 if wanted == 1 else None]))
    if unknown := [name for name in chosen if name not in there]:
        raise ConfigError(
            f"{corpus.title} has no view {unknown[0]!r} (views: {', '.join(there)}): name one of them, or "
            "add it with 'embedcache build --view'",
            "training.views",
        )
    if len(chosen) < wanted or (wanted == 1 and len(chosen) > 1):
        raise ConfigError(
            f"loss {loss} takes {'one view' if wanted == 1 else 'two views'} of each row, found "
            f"{', '.join(chosen)} (views: {', '.join(there)}): name {'one' if wanted == 1 else 'another'}, "
            "add views with 'embedcache build --view', or choose another loss ('distill list losses')",
            "training.views",
        )
    return chosen
