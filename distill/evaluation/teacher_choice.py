"""The teacher that models are held against: which one, and where its vectors come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.digests import model_digest
from distill.errors import DataError, DistillError
from distill.evaluation.cached_teacher import cached_teacher, find_cached, is_cache_spec, with_sizes
from distill.evaluation.encoding import Encoded, encode_distinct
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.loader import Loader
from distill.evaluation.record import RunTeacher, read_run_cache, read_run_teacher
from distill.evaluation.tasks import Request, Spec, Subject
from distill.record import run_folder
from embedcache.errors import EmbedCacheError

if TYPE_CHECKING:
    from distill.data.combination import Combination


@dataclass(frozen=True)
class TeacherChoice:
    """The teacher that models are compared with.

    Attributes:
        name: the teacher's name, in the report and in a cache.
        spec: what it is loaded from.
        run_teacher: what a run's own record says of it; None where a caller named it.
    """

    name: str
    spec: Spec
    run_teacher: RunTeacher | None = None

    @property
    def implied(self) -> bool:
        """True where no caller named it but a run's own record did."""
        return self.run_teacher is not None

    def digest(self) -> str | None:
        """Return what tells this teacher from others; None of a model that was given loaded.

        Raises:
            EmbedCacheError: if it is named by a cache that cannot be read.
        """
        if self.run_teacher is not None:
            return self.run_teacher.contract_id or self.run_teacher.made or self.run_teacher.spec
        if isinstance(self.spec, EvaluatedModel):
            return None
        cached = find_cached(self.spec)
        if cached is not None:
            return cached[1].contract_id
        return model_digest(str(self.spec)) or str(self.spec)


def choose_teacher(models: Sequence[Spec], asked: Spec | None, notes: list[str]) -> TeacherChoice | None:
    """Return the teacher asked for, else the one that all evaluated runs agree on.

    Args:
        models: the evaluated models.
        asked: the teacher that the caller named.
        notes: takes why there is none, and what it is made of where it is made of several.

    Raises:
        DataError: if a run's record is damaged.
        EmbedCacheError: if a cache that is named cannot be read.
    """
    if asked is not None:
        return TeacherChoice(_short_name(asked), asked)
    runs = dict.fromkeys(run for run in map(run_folder, models) if run is not None)
    named = dict.fromkeys(teacher for teacher in map(read_run_teacher, runs) if teacher is not None)
    if len(named) > 1:
        names = ", ".join(f"{t.name} ({t.contract_id[:12] if t.contract_id else t.spec})" for t in named)
        notes.append(
            f"the runs have different teachers ({names}); give --teacher to compare with one of them"
        )
        return None
    chosen = next(iter(named), None)
    if chosen is None:
        return None
    for spec in models:
        cached = find_cached(spec)
        if cached is not None and chosen.contract_id == cached[1].contract_id:
            # It is among the models, out of a cache: nothing of it is to be encoded a second time.
            return TeacherChoice(cached[1].name, spec)
    if chosen.parts:
        notes.append(f"{chosen.name}: {_describe(chosen.combination())}")
    return TeacherChoice(chosen.name, chosen.spec, chosen)


def teacher_subject(
    choice: TeacherChoice,
    cache: str | Path | None,
    request: Request,
    load: Loader,
    texts: Sequence[str],
    *,
    essential: bool,
    notes: list[str],
) -> Subject | None:
    """Return the teacher with its vectors, cached ones where a cache holds them; None where it is not usable.

    Args:
        choice: the teacher.
        cache: a cache that may hold its vectors; default: that of the run which names the teacher.
        request: the models it is compared with.
        load: loads models.
        texts: the sentences.
        essential: whether there is no going on without it.
        notes: takes what a reader must know of it.

    Raises:
        DistillError, EmbedCacheError: if it is not usable and ``essential``.
    """
    try:
        model = _find_teacher(choice, cache, request.models, load, notes)
        encoded = encode_distinct(model, texts, request.progress)
    except (DistillError, EmbedCacheError) as error:
        # A teacher nobody asked for is a service; its absence must not cost the models their scores.
        if essential:
            raise
        notes.append(f"no retention: the run's teacher {choice.name} is not usable: {error}")
        return None
    tell_of_vectors(model, encoded, notes)
    return Subject(choice.spec, sized(model, notes), encoded, is_teacher=True)


def tell_of_vectors(model: EvaluatedModel, encoded: Encoded, notes: list[str]) -> None:
    """Note how many vectors came from a cache, and what became of the others."""
    if encoded.recalled or encoded.kept:
        fresh = f"{encoded.encoded_now} encoded now" + (f" and {encoded.kept}" if encoded.kept else "")
        notes.append(f"vectors of {model.name}: {encoded.recalled} cached, {fresh}")


def sized(model: EvaluatedModel, notes: list[str]) -> EvaluatedModel:
    """Return ``model`` with its size where that can be told, noting why it cannot."""
    try:
        return with_sizes(model)
    except (DistillError, EmbedCacheError) as error:
        # Its vectors are all there, so models can be scored without it.
        notes.append(f"{model.name}: its size is not known: {error}")
        return model


def _find_teacher(
    choice: TeacherChoice, cache: str | Path | None, models: Sequence[Spec], load: Loader, notes: list[str]
) -> EvaluatedModel:
    if is_cache_spec(choice.spec):
        if cache is not None:
            raise DataError(f"the teacher {choice.spec} names its cache already: leave out --cache {cache}")
        return load.named(load.plain(choice.spec))
    whole = choice.run_teacher or RunTeacher(choice.name, choice.name, None)
    if cache is not None:
        return load.named(cached_teacher(cache, whole, lambda: _load_checked(choice, load)))
    # Only the run that names the teacher can say where its vectors are.
    kept = _cache_of_runs(models) if choice.implied else None
    if kept is not None:
        try:
            return load.named(cached_teacher(kept, whole, lambda: _load_checked(choice, load)))
        except EmbedCacheError as error:
            # A cache nobody asked for is a service; the teacher itself may still be there.
            notes.append(f"the run's cache {kept} is not usable: {error}")
    return load.named(_load_checked(choice, load))


def _cache_of_runs(models: Sequence[Spec]) -> Path | None:
    runs = [run for run in map(run_folder, models) if run is not None]
    return next((cache for cache in map(read_run_cache, runs) if cache is not None), None)


def _load_checked(choice: TeacherChoice, load: Loader) -> EvaluatedModel:
    """Load the teacher, and check that it still is what the run was distilled from, where a run named it."""
    model = load.plain(choice.spec, choice.run_teacher)
    wanted = choice.run_teacher.contract_id if choice.run_teacher else None
    contract_id = model.contract.id if model.contract else "none"
    if wanted not in (None, contract_id):
        raise DataError(
            f"{choice.name} as loaded now has contract {contract_id[:12]}, "
            f"but the run was distilled from {str(wanted)[:12]}; give --teacher"
        )
    return model


def _describe(combination: Combination) -> str:
    shares = zip(combination.names, combination.shares, strict=True)
    made = "the targets of the run, which are made of vectors of " + ", ".join(
        f"{name} ({share:.1%})" for name, share in shares
    )
    if combination.projection is not None:
        made += f", reduced from {sum(combination.widths)} to {combination.dimension} dimensions"
    return f"{made}; to see a teacher by itself, name it as a MODEL"


def _short_name(spec: Spec) -> str:
    """Return the name of a teacher in a cache: alias, folder's name or last part of a hub id."""
    if isinstance(spec, EvaluatedModel):
        return spec.name
    cached = find_cached(spec)
    if cached is not None:
        return cached[1].name
    run = run_folder(spec)
    folder = run or Path(spec).expanduser()
    if folder.is_dir():
        return folder.resolve().name
    return str(spec).partition("@")[0].rpartition("/")[2]
