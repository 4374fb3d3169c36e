"""What an evaluation says: a report per model, with what holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.scores import RETENTION_INTERVAL, Interval, Scores, ends_of, rounded
from distill.evaluation.setting import Seed
from distill.evaluation.spread import Score

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT_VERSION = 2
"""Version of the JSON that :meth:`EvaluationResult.to_json` returns."""


@dataclass(frozen=True)
class ModelReport:
    """One model's line of a result.

    Attributes:
        name: the model's name.
        role: ``teacher`` or ``model``.
        parameters: number of parameters; None where the model was not loaded.
        megabytes: size of the saved weights, in units of 10^6 bytes; None where the model was not loaded.
        dimension: width of its vectors.
        sentences_per_second: distinct sentences encoded per second of wall time; None where vectors came
            from a cache, or nothing was encoded.
        scores: what the suite measured.
        retention: its headline figure in per cent of the teacher's; None where there is none to compare.
        facts: what its figures are marked with: contamination, selection on test pairs.
        retention_interval: 95 % confidence interval of the retention; None where none was drawn.
    """

    name: str
    role: str
    parameters: int | None
    megabytes: float | None
    dimension: int
    sentences_per_second: float | None
    scores: Scores
    retention: float | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    retention_interval: Interval | None = None

    @classmethod
    def of(
        cls,
        model: EvaluatedModel,
        role: str,
        speed: float | None,
        scores: Scores,
        retention: float | None = None,
    ) -> ModelReport:
        """Return the report of ``model``, which encoded ``speed`` sentences per second."""
        size = (model.parameters, model.megabytes, model.dimension)
        return cls(model.name, role, *size, speed, scores, retention)

    def beside(self, teacher: ModelReport | None) -> ModelReport:
        """Return the report with its retention, where the teacher's headline figure is above zero."""
        own, whole = self.scores.headline, None if teacher is None else teacher.scores.headline
        if teacher is None or own is None or whole is None or whole <= 0:
            return replace(self, retention=None, retention_interval=None)
        from distill.evaluation.bootstrap import retention_interval

        # The teacher's share of itself does not vary.
        interval = None if self.role == "teacher" else retention_interval(self.scores, teacher.scores)
        return replace(self, retention=100 * own / whole, retention_interval=interval)

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON object; the suite's own keys stand beside the common ones."""

        def number(value: float | None, digits: int) -> float | None:
            return None if value is None else round(value, digits)

        return {
            "name": self.name,
            "role": self.role,
            "parameters": self.parameters,
            "megabytes": number(self.megabytes, 3),
            "dimension": self.dimension,
            "sentences_per_second": number(self.sentences_per_second, 1),
            "retention": number(self.retention, 2),
            "retention_interval": rounded(self.retention_interval, 2),
            **self.scores.to_json(),
            **self.facts,
        }

    def summary(self) -> dict[str, str]:
        """Return the headline cells of a table, retention among them where the suite has a headline.

        Where the interval of the retention was drawn, that is the last of them.
        """
        cells = self.scores.summary()
        if self.scores.headline is not None:
            cells["retention"] = "-" if self.retention is None else f"{self.retention:.2f} %"
        if self.retention_interval is not None:
            cells[RETENTION_INTERVAL] = ends_of(self.retention_interval)
        return cells


@dataclass(frozen=True)
class SeedSpread:
    """Mean and standard deviation of a suite's figures over models that differ by their seed alone.

    Attributes:
        name: what the models are called together.
        models: their names.
        seeds: their seeds, as :class:`distill.evaluation.setting.Setting` shows them.
        sets: set -> its figure; empty of a suite that does not consist of sets.
        figures: the headline figures by the columns of the models' summaries.
        retention: in per cent of the teacher's; None where there is none to compare.
    """

    name: str
    models: tuple[str, ...]
    seeds: tuple[Seed, ...]
    sets: Mapping[str, Score]
    figures: Mapping[str, Score]
    retention: Score | None = None

    @property
    def title(self) -> str:
        """What the line of a table is called."""
        return f"{self.name}: mean ± standard deviation of {len(self.models)} seeds"

    def to_json(self) -> dict[str, object]:
        """Return the spread as a JSON object; every figure as ``mean``, ``std`` and ``n``.

        Of a suite of sets ``average`` is the one headline figure, of others ``figures`` holds them.
        """
        figures = {name: score.to_json() for name, score in self.figures.items()}
        return {
            "name": self.name,
            "models": list(self.models),
            "seeds": list(self.seeds),
            **(
                {
                    "sets": {name: score.to_json() for name, score in self.sets.items()},
                    "average": next(iter(figures.values())),
                }
                if self.sets
                else {"figures": figures}
            ),
            "retention": None if self.retention is None else self.retention.to_json(),
        }


@dataclass(frozen=True)
class EvaluationResult:
    """What a suite found out about every model.

    Attributes:
        suite: name of the suite.
        models: one report per model, the teacher's first where there is one.
        facts: what holds for all models: the data, what was missing, how much was read.
        notes: one line each for whatever a reader must know: sets not found, rows skipped, no teacher.
        over_seeds: one spread for each group of models that differ by their seed alone.
    """

    suite: str
    models: tuple[ModelReport, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    over_seeds: tuple[SeedSpread, ...] = ()

    def __getitem__(self, name: str) -> ModelReport:
        """Return the report of the model called ``name``.

        Raises:
            KeyError: if no model of the result has that name.
        """
        for report in self.models:
            if report.name == name:
                return report
        raise KeyError(
            f"no model {name!r} in this result; there are {[report.name for report in self.models]}"
        )

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object.

        Keys: ``format`` (version), ``suite``, the suite's facts, ``models`` (see :class:`ModelReport` and the
        suite's scores), ``over_seeds`` (see :class:`SeedSpread`), ``notes``. Scores are multiplied by 100
        where the table shows them so.
        """
        return {
            "format": FORMAT_VERSION,
            "suite": self.suite,
            **self.facts,
            "models": [report.to_json() for report in self.models],
            "over_seeds": [spread.to_json() for spread in self.over_seeds],
            "notes": list(self.notes),
        }

    def table(self) -> RenderableType:
        """Return the result as something that ``rich.print`` shows: tables, then the notes."""
        from distill.evaluation.old_table import render

        return render([self])


def results_json(results: Sequence[EvaluationResult]) -> dict[str, object]:
    """Return several results as one JSON object: ``format`` and the list ``results``."""
    return {"format": FORMAT_VERSION, "results": [result.to_json() for result in results]}
