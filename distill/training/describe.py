"""Records of runs, made from what they train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distill.config.models import RunConfig
from distill.data.dataset import DistillDataset
from distill.data.targets import Targets
from distill.errors import CheckpointError
from distill.layout import TARGETS
from distill.losses.registry import get_loss
from distill.record import (
    CorpusRecord,
    DevRecord,
    RunRecord,
    TargetsRecord,
    TeacherRecord,
    first_difference,
    seeds_of,
    setting_of,
)
from embedcache.cache import Cache
from embedcache.corpus.part import ORIGINAL
from embedcache.fsio import sha256_file
from embedcache.teacher.resolve import ALIASES


def new_record(
    cache: Cache,
    dataset: DistillDataset,
    config: RunConfig,
    parameters: int,
    recipe: str | None,
    identity: str,
    notes: Sequence[str] = (),
) -> RunRecord:
    """Return the record of a run that has no result yet.

    Args:
        cache: the cache it is trained from.
        dataset: what it is trained on.
        config: the resolved configuration.
        parameters: parameters of the student as it is saved.
        recipe: the recipe that it was started with; None without one.
        identity: digest of the configuration as it was given.
        notes: sentences on how the student was made.
    """
    views = {
        name: None if name == ORIGINAL else dataset.corpus.view(name).info.digest
        for name in config.training.views or [ORIGINAL]
    }
    dev = describe_dev(config.evaluation.data, config.evaluation.rows)
    order = dataset.order.digest
    facts = {
        "corpus": dataset.corpus.info.digest,
        "views": views,
        "teachers": [contract.id for contract in dataset.targets.contracts],
        "dev": None if dev is None else dev.sha256,
        # Only rows that come in windows come in another order.
        "limit": None if order is None else config.stream.limit,
    }
    return RunRecord(
        identity=identity,
        seeds=seeds_of(config.seed),
        setting=setting_of(config, facts),
        recipe=recipe,
        teachers=_teachers(cache, dataset.targets, config.teacher_model),
        targets=_targets(dataset.targets),
        cache=str(cache.folder.resolve()),
        corpus=CorpusRecord(
            name=dataset.corpus.name, rows=len(dataset.corpus), digest=dataset.corpus.info.digest
        ),
        views=views,
        where=config.training.where,
        selected=dataset.selected,
        rows=len(dataset),
        held_out=len(dataset.held_out),
        student=config.student.spec,
        parameters=parameters,
        notes=list(notes),
        labels=None if dataset.soft is None else list(dataset.soft.names),
        # Without its head, or learning from labels alone, a student gives vectors of another space.
        in_target_space=is_in_target_space(config),
        dev=dev,
        loss=config.loss.name,
        order=order,
    )


def is_in_target_space(config: RunConfig) -> bool:
    """Return whether the student's vectors are comparable with its targets, number by number."""
    return not config.student.drop_head and get_loss(config.loss.name).targets != "soft labels alone"


def describe_dev(data: str | None, rows: Sequence[str] | None = None) -> DevRecord | None:
    """Return the record of a development set; None where there is none."""
    if data is None:
        return None
    path = Path(data)
    return DevRecord(name=path.name, sha256=sha256_file(path), rows=list(rows) if rows else None)


FIXED = (
    *("corpus", "views", "teachers", "rows", "held_out", "selected", "order"),
    *("labels", "parameters", "dev", "start"),
)


def refuse_other_data(before: RunRecord, now: RunRecord) -> None:
    """Raise :class:`CheckpointError` where the record of a run to resume differs from what is there now."""
    found = first_difference(before, now, FIXED)
    if found is not None:
        key, was, is_now = found
        raise CheckpointError(
            f"cannot resume: the run's {key} was {was} and is {is_now} now; restore it, or start the run "
            "again with --overwrite"
        )


def _teachers(cache: Cache, targets: Targets, first_model: str | None) -> list[TeacherRecord]:
    shares = targets.combination.shares if targets.combination else (1.0,)
    models = [first_model, *(None for _ in targets.teachers[1:])]
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


def _targets(targets: Targets) -> TargetsRecord:
    made = targets.combination
    return TargetsRecord(
        dimension=targets.dimension,
        file=None if made is None else TARGETS,
        projected_from=None if made is None or made.projection is None else sum(made.widths),
        energy=None if made is None else made.energy,
    )


def _absolute(spec: str) -> str:
    """Return the spec; of a folder its whole path, which means the same wherever it is read."""
    folder = Path(spec).expanduser()
    return str(folder.resolve()) if spec not in ALIASES and folder.is_dir() else spec
