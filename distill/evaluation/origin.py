"""The marks of a model's figures: contamination of its training, and what its checkpoint was chosen on.

Nobody asks for these checks, so a run whose texts are no longer there is scored all the same, and told of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.errors import DistillError
from distill.evaluation.contamination import HasTestItems, Items, Overlap, Seen, describe, pairs_in, per_cent
from distill.evaluation.encoding import Progress, silent
from distill.evaluation.kept import Noted
from distill.evaluation.origin_keys import CONTAMINATION, MUCH, SELECTED_ON, TRAINED_ON
from distill.evaluation.record import run_folder
from distill.evaluation.tasks import Spec, Task
from distill.evaluation.training_texts import TrainingTexts, file_texts, selection_data, training_texts
from embedcache.errors import EmbedCacheError


@dataclass(frozen=True)
class _Choice:
    """What of the test sets is in the file that a checkpoint was chosen on."""

    file: str
    pairs: Mapping[tuple[str, str], int]


@dataclass
class Origins:
    """Holds what models were trained and chosen on against the test sets of one evaluation.

    Attributes:
        tasks: the tasks by suite; those that do not say what their sets consist of are left out.
        corpus: training texts of the models that are no runs; None where they are not known.
        progress: called while training texts are read.
    """

    tasks: Mapping[str, Task]
    corpus: Path | None = None
    progress: Progress = silent
    _sets: dict[tuple[str, str], Items] = field(default_factory=dict)
    _seen: dict[str, dict[tuple[str, str], Seen]] = field(default_factory=dict)
    _of_run: dict[Path | None, _Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for suite, task in self.tasks.items():
            if isinstance(task, HasTestItems):
                self._sets |= {(suite, name): items for name, items in task.test_items().items()}

    def told(self, spec: Spec, suite: str, noted: Noted) -> Noted:
        """Return a model's report with what its sets are marked with; a kept one has its marks already.

        Args:
            spec: the model, as the caller named it.
            suite: the suite of the report.
            noted: the report and its notes.
        """
        run = run_folder(spec)
        is_subject = run is not None or (self.corpus is not None and noted.report.role != "teacher")
        has_items = any(of == suite for of, _ in self._sets)
        if not is_subject or not has_items or CONTAMINATION in noted.report.facts:
            return noted
        if run not in self._of_run:
            self._of_run[run] = self._look(run)
        facts, notes = self._of_run[run].told(suite, self._sets)
        report = replace(noted.report, facts={**noted.report.facts, **facts})
        named = tuple(f"{report.name}: {note}" for note in notes)
        return replace(noted, report=report, notes=(*noted.notes, *named))

    def _look(self, run: Path | None) -> _Origin:
        found = _Origin()
        try:
            found.texts = training_texts(run) if run is not None else [file_texts(self.corpus or Path())]
            found.seen = self._overlap(found.texts)
        except (DistillError, EmbedCacheError, OSError) as error:
            if run is None:
                raise
            found.faults.append(f"contamination is not known: {error}")
        if run is not None:
            try:
                found.choices = [self._choice(*one) for one in selection_data(run)]
            except (DistillError, EmbedCacheError, OSError) as error:
                found.faults.append(f"whether its checkpoint was chosen on test pairs is not known: {error}")
        return found

    def _overlap(self, texts: list[TrainingTexts]) -> dict[tuple[str, str], Seen]:
        key = "\n".join(one.key for one in texts)
        if key not in self._seen:
            overlap = Overlap(self._sets)
            for one in texts:
                done = 0
                for block in one.stream():
                    overlap.meet(block)
                    done += len(block)
                    self.progress(f"test sentences in {one.name}", done, one.count)
            self._seen[key] = overlap.seen()
        return self._seen[key]

    def _choice(self, path: Path, sha256: str | None) -> _Choice:
        from distill.errors import DataError
        from distill.evaluation.sts import read_pairs
        from embedcache.fsio import sha256_file

        if not path.is_file():
            raise DataError(f"{path} is not there any more")
        if sha256 is not None and sha256_file(path) != sha256:
            raise DataError(f"{path} has changed since")
        pairs = read_pairs(path, path.stem)
        chosen_on = list(zip(pairs.left, pairs.right, strict=True))
        return _Choice(path.name, {key: pairs_in(items, chosen_on) for key, items in self._sets.items()})


@dataclass
class _Origin:
    """What was found out about one run."""

    texts: list[TrainingTexts] = field(default_factory=list)
    seen: Mapping[tuple[str, str], Seen] | None = None
    choices: list[_Choice] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def told(self, suite: str, sets: Mapping[tuple[str, str], Items]) -> tuple[dict[str, object], list[str]]:
        """Return facts and notes for one suite."""
        notes = list(self.faults)
        facts: dict[str, object] = {CONTAMINATION: None, TRAINED_ON: None}
        if self.seen is not None:
            mine = {name: seen for (of, name), seen in self.seen.items() if of == suite}
            facts[CONTAMINATION] = {name: seen.to_json() for name, seen in mine.items()}
            facts[TRAINED_ON] = [{"name": one.name, "texts": one.count} for one in self.texts]
            named = " and ".join(f"{one.name} ({one.count:,} texts)" for one in self.texts)
            notes.append(f"seen in training, in {named}: {describe(mine)}")
        selected = []
        for choice in self.choices:
            met = {name: count for (of, name), count in choice.pairs.items() if of == suite and count}
            of = {name: len(sets[suite, name]) for name in met}
            selected += [
                {"set": name, "file": choice.file, "pairs": count, "of": of[name]}
                for name, count in met.items()
            ]
            if met:
                parts = ", ".join(
                    f"{count} of {of[name]} pairs of {name} ({per_cent(count, of[name])})"
                    for name, count in met.items()
                )
                much = any(count >= MUCH * of[name] for name, count in met.items())
                mark, degree = ("SELECTED ON TEST PAIRS: ", "") if much else ("", "a little ")
                notes.append(
                    f"{mark}its checkpoint was chosen on {choice.file}, which holds {parts}; such figures "
                    f"are {degree}too good"
                )
        facts[SELECTED_ON] = selected
        return facts, notes
