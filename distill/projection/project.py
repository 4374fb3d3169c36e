"""``distill project``: a derived teacher, made of what a cache holds alone. No model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distill.data.dataset import DistillDataset, open_dataset
from distill.data.sampler import permutation
from distill.errors import ConfigError, DataError
from distill.projection.neighbours import LabelCosines, label_cosines, neighbour_accuracy
from distill.projection.train import ProjectionSettings, mean_loss, train_map
from distill.training.device import cpu_threads
from embedcache.cache import Cache, CachedTeacher
from embedcache.errors import ContractMismatchError
from embedcache.projection import apply_projection, extend, write_derived

OnStep = Callable[[str, int, int], None]
"""Told what is done, how much of it, and how much there is."""

LEAST_MOVE = 0.01
"""A map that is nearer to where it began, by its norm, than this share of it is said to have hardly moved.

The paper's rate and epochs on 2,500 to 4,000 rows come to 0.1 to 0.5 % at widths of 32 to 768, three to five
steps at 1e-3 to 1.4 to 8 %.
"""

CLEAR_FALL = 0.02
"""A fall of the neighbours' accuracy above this is said: 40 of a sample's 2,000 rows."""

_MOST = 10**9
"""No setting means anything above this."""

_SAMPLE_ROWS = 2000
_SAMPLE_STREAM = 2**31 - 4
"""Epoch number of the permutation that picks rows to look at the neighbours of; no training reaches it."""


@dataclass(frozen=True)
class Projection:
    """A derived teacher, and what its training came to.

    Attributes:
        teacher: its name in the cache.
        contract: id of its contract.
        of: the teacher whose vectors it maps.
        corpus: the corpus whose labels it was trained with.
        dimension: width of its vectors.
        dimension_of: width of those it maps.
        rows: rows it was trained on.
        labels: label -> rows of it, most rows first.
        losses: mean loss of each epoch.
        alone: how often a row was left out, as no other row of its batch had its label.
        steps: how often the map was changed.
        moved: how far it is from where it began, as a share of its norm.
        sample: rows of the training whose neighbours were looked at.
        accuracy_of: their leave-one-out accuracy by nearest neighbours with the vectors it maps.
        accuracy: the same with its own.
        cosines_of: how near those of one label and those of others lie with the vectors it maps.
        cosines: the same with its own.
        loss_of: their mean loss among each other with the vectors it maps; None where no two have one label.
        loss: the same with its own.
        written: vectors added to the cache.
    """

    teacher: str
    contract: str
    of: str
    corpus: str
    dimension: int
    dimension_of: int
    rows: int
    labels: dict[str, int]
    losses: tuple[float, ...]
    alone: int
    steps: int
    moved: float
    sample: int
    accuracy_of: float
    accuracy: float
    cosines_of: LabelCosines
    cosines: LabelCosines
    loss_of: float | None
    loss: float | None
    written: int

    @property
    def hardly_moved(self) -> bool:
        """Whether the map is about where it began.

        Neither the loss nor cosines would tell. Near its floor the loss does not fall however far the map
        goes, a narrow map begins above that of the vectors it maps, and where a teacher parts the labels
        further than it is right about them, the loss draws all rows together again.
        """
        return self.moved < LEAST_MOVE

    @property
    def lost_neighbours(self) -> bool:
        """Whether clearly fewer rows are next to those of their label than with the vectors it maps."""
        return self.accuracy_of - self.accuracy > CLEAR_FALL

    def facts(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {
            **asdict(self),
            "hardly_moved": self.hardly_moved,
            "lost_neighbours": self.lost_neighbours,
        }


def project(
    cache: Cache | str | Path,
    *,
    teacher: str | None = None,
    corpus: str | None = None,
    dim: int | None = None,
    name: str | None = None,
    settings: ProjectionSettings | None = None,
    threads: int | None = None,
    on_step: OnStep | None = None,
) -> Projection:
    """Train a linear map of a teacher's cached vectors with the labels of a corpus, and keep it as a teacher.

    Source: ReAugKD, section 3.1, step 1, and appendix A.2.

    Args:
        cache: the cache, or its folder.
        teacher, corpus: names; either may be left out where the cache holds one.
        dim: width of the vectors it makes, at most the teacher's; default: the teacher's.
        name: what it is called; default: the teacher's name and ``.projected``.
        settings: of the training.
        threads: CPU threads; default: all cores.
        on_step: told how far it is.

    Raises:
        ConfigError: if ``dim`` does not fit the teacher, or a setting is out of range.
        DataError: if the corpus has no labels to tell apart, or vectors are missing.
        InputError: if there is no such corpus or teacher, ``name`` is another teacher's, or a pull has found
            vectors to be mapped bad.
        TrainingError: if a loss is not finite.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    chosen, tell = settings or ProjectionSettings(), on_step or _silent
    _refuse_out_of_range(chosen)
    base = opened.teacher(teacher)
    width = base.contract.dimension
    if dim is not None and not 1 <= dim <= width:
        raise ConfigError(
            f"--dim {dim}: teacher {base.name!r} has {width} dimensions, and a projection has 1 to {width}; "
            "give that or less"
        )
    dataset = open_dataset(opened, corpus=corpus, teacher=base.contract.id)
    names, labels = _labels(dataset)

    def gather(indices: NDArray[np.integer]) -> NDArray[np.float32]:
        return dataset.targets.gather(indices).astype(np.float32, copy=False)

    with cpu_threads(threads):
        trained = train_map(
            gather, labels, (dim or width, width), chosen, lambda done, total: tell("train", done, total)
        )
    derived = _registered(opened, base, name or f"{base.name}.projected", trained.matrix, chosen, dataset)
    written = extend_projection(opened, derived, corpus=dataset.corpus.name, on_step=tell)
    sample = np.sort(permutation(len(labels), chosen.seed, _SAMPLE_STREAM, first=_SAMPLE_ROWS))
    vectors, own = gather(sample), labels[sample]
    mapped = apply_projection(trained.matrix, vectors)
    counts = np.bincount(labels)
    return Projection(
        teacher=derived.name,
        contract=derived.contract.id,
        of=base.name,
        corpus=dataset.corpus.name,
        dimension=derived.contract.dimension,
        dimension_of=width,
        rows=len(dataset),
        labels={names[at]: int(counts[at]) for at in np.argsort(-counts, kind="stable")},
        losses=trained.losses,
        alone=trained.alone,
        steps=trained.steps,
        moved=trained.moved,
        sample=len(sample),
        accuracy_of=neighbour_accuracy(vectors, own),
        accuracy=neighbour_accuracy(mapped, own),
        cosines_of=label_cosines(vectors, own),
        cosines=label_cosines(mapped, own),
        loss_of=mean_loss(vectors, own, chosen.tau),
        loss=mean_loss(mapped, own, chosen.tau),
        written=written,
    )


def extend_projection(
    cache: Cache | str | Path,
    teacher: CachedTeacher | str | None = None,
    *,
    corpus: str | None = None,
    on_step: OnStep | None = None,
) -> int:
    """Make the vectors of a derived teacher that a corpus lacks, and return how many they were.

    Args:
        cache: the cache, or its folder.
        teacher: the derived teacher; may be left out where the cache holds one teacher.
        corpus: the corpus; may be left out where the cache holds one.
        on_step: told how far it is.

    Raises:
        InputError: if there is no such corpus or teacher, it is not derived, or a sample of a pull has found
            vectors to be mapped bad.
        MissingVectorsError: if the vectors it is made of are missing too.
    """
    opened, tell = cache if isinstance(cache, Cache) else Cache(cache), on_step or _silent
    derived = teacher if isinstance(teacher, CachedTeacher) else opened.teacher(teacher)
    return extend(opened, derived, opened.corpus(corpus), partial(tell, "project"))


def _labels(dataset: DistillDataset) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the labels, and the number of each row's."""
    title = dataset.corpus.title
    if not dataset.corpus.info.has_labels:
        raise DataError(
            f"{title} has no labels, which a projection is trained with: build it with --label-column"
        )
    values = dataset.corpus.labels(dataset.rows)
    if isinstance(values[0], float):
        raise DataError(
            f"{title} has fractions for labels ({values[0]} for one), expected the names or numbers of "
            "classes: build it with another --label-column"
        )
    names, numbers = np.unique(np.array(values), return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"all {len(values)} rows of {title} have the label {names[0]}: there is nothing to tell apart; "
            "use a corpus with two labels or more"
        )
    return [str(one) for one in names.tolist()], numbers.astype(np.int64)


def _registered(
    cache: Cache,
    base: CachedTeacher,
    name: str,
    matrix: NDArray[np.float32],
    settings: ProjectionSettings,
    dataset: DistillDataset,
) -> CachedTeacher:
    note = ", ".join(
        [
            f"of {base.name}",
            f"corpus {dataset.corpus.name}",
            *(f"{k} {v}" for k, v in asdict(settings).items()),
        ]
    )
    try:
        return write_derived(cache, base, name, matrix, note)
    except ContractMismatchError as error:
        raise ConfigError(
            f"--name {name}: the cache holds another teacher of that name; give the settings that one was "
            "made with, another --name, or take it out with 'embedcache rm'"
        ) from error


def _refuse_out_of_range(settings: ProjectionSettings) -> None:
    for key, least in (("tau", 0), ("batch_size", 1), ("lr", 0), ("epochs", 0), ("seed", -1)):
        value = getattr(settings, key)
        if not least < value <= _MOST:
            flag = f"--{key.replace('_', '-')}"
            raise ConfigError(f"{flag} {value}: expected a number above {least}, and {_MOST:,} at most")


def _silent(what: str, done: int, total: int) -> None:
    pass
