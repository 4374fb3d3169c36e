"""Reference teacher of an evaluation: the one that was named, or the one that runs name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from distill.evaluation.model_kinds import TeacherModel, open_model
from distill.evaluation.models import Model, Spec, Vectors
from distill.layout import RECORD, TARGETS
from distill.record import RunRecord, TeacherRecord, read_record

if TYPE_CHECKING:
    from distill.data.combination import Combination


def find_teacher(
    models: Sequence[Model], asked: Spec | None, notes: list[str], device: str, compute_dtype: str
) -> Model | None:
    """Return the teacher asked for, else the one that all runs name.

    Raises:
        DataError, TeacherError: if a teacher cannot be found.
    """
    if asked is not None:
        found = open_model(asked, device=device, compute_dtype=compute_dtype)
        return next((model for model in models if model is found or model.spec == str(asked)), found)
    teachers: dict[str | None, Model] = {}
    for run in dict.fromkeys(model.run for model in models if model.run is not None):
        record = read_record(run)
        if record is None:
            notes.append(f"no teacher is known: {run / RECORD} cannot be read; give --teacher")
            continue
        one = run_teacher(run, record, device=device, compute_dtype=compute_dtype)
        if one is not None:
            teachers.setdefault(one.identity(), one)
    if len(teachers) > 1:
        names = ", ".join(one.name for one in teachers.values())
        notes.append(
            f"the runs have different teachers ({names}); give --teacher to compare with one of them"
        )
        return None
    for identity, one in teachers.items():
        named = [model for model in models if model.run is None and model.name == one.name]
        return next((model for model in named if model.identity() == identity), one)
    return None


def run_teacher(
    run: Path, record: RunRecord, *, device: str = "auto", compute_dtype: str = "float32"
) -> Model | None:
    """Return the teacher of a run, with vectors from the run's cache where that exists; None without one.

    A run whose targets were made of several teachers' vectors, or reduced, has a teacher that gives those
    targets.

    Raises:
        DataError: if the run does not say how targets were made.
        TeacherError: if a teacher cannot be found.
    """
    if not record.teachers:
        return None
    parts = [_open_recorded(one, record.cache, device, compute_dtype) for one in record.teachers]
    if record.targets is None or record.targets.file is None:
        return parts[0]
    from distill.data.combination import Combination

    combination = Combination.load(run)
    digest = hashlib.sha256((run / TARGETS).read_bytes()).hexdigest()
    shares = ", ".join(
        f"{name} ({share:.1%})" for name, share in zip(combination.names, combination.shares, strict=True)
    )
    if record.targets.projected_from is not None:
        shares += f", reduced from {record.targets.projected_from} to {record.targets.dimension} dimensions"
    found = CombinedModel(parts, combination, digest)
    found.notes = [f"the teacher is the run's targets, made of vectors of {shares}"]
    found.notes += [note for part in parts for note in part.notes]
    return found


class CombinedModel(Model):
    """Teacher that gives the targets of a run, made of the vectors of its teachers.

    Args:
        parts: the teachers.
        combination: combination of their vectors into targets.
        digest: digest of the combination.
    """

    def __init__(self, parts: Sequence[Model], combination: Combination, digest: str) -> None:
        super().__init__(
            " + ".join(part.name for part in parts),
            lambda texts: combination.apply([part.encode(texts) for part in parts]),
        )
        self.parts, self._digest = parts, digest

    def identity(self) -> str:
        """Return digests of the combination and of its teachers."""
        return f"targets {self._digest} {' '.join(str(part.identity()) for part in self.parts)}"


def with_cache(model: Model, folder: str | Path) -> Model:
    """Return a teacher whose vectors are looked up in the cache in ``folder``, which is not written.

    A served one is asked for vectors that the cache holds before it is asked for others.

    Raises:
        EmbedCacheError: if the cache cannot be opened, or holds no teacher of the model's contract.
    """
    import embedcache
    from embedcache.live import refuse_changed_server

    for part in model.parts:
        with_cache(part, folder)
    if model.parts:
        return model
    contract = model.contract()
    opened = embedcache.open(folder)
    entry = opened.teacher(model.name if contract is None else contract.id)
    model.recall_from(opened, entry.contract)
    if entry.contract.is_served:
        encode = model.encoder

        @cache
        def check() -> None:
            refuse_changed_server(opened.store(entry.contract), opened.corpora, encode)

        def encode_checked(texts: Sequence[str]) -> Vectors:
            check()
            return encode(texts)

        model.encoder = encode_checked
    return model


def _open_recorded(teacher: TeacherRecord, place: str | None, device: str, compute_dtype: str) -> Model:
    from embedcache.contract import Contract
    from embedcache.errors import EmbedCacheError

    contract = Contract.from_json(teacher.contract)
    remedy = "give --teacher to compare with another one"
    model = TeacherModel(teacher.spec, contract, teacher.name, remedy, device, compute_dtype)
    if place is not None and Path(place).is_dir():
        try:
            return with_cache(model, place)
        except EmbedCacheError as error:
            # The user did not name this cache: if it is damaged, the teacher itself can still be used.
            model.notes.append(f"the run's cache {place} is not usable: {error}")
    return model
