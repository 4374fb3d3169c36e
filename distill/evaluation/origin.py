"""The marks of a model's figures: contamination of its training, and what its checkpoint was chosen on.

Nobody asks for these checks, so a run whose texts are no longer there is scored all the same, and told of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distill.errors import DistillError
from distill.evaluation.encoding import Progress, silent
from distill.evaluation.kept import Noted
from distill.evaluation.old_contamination import Overlap, Seen, describe, pairs_in, per_cent
from distill.evaluation.origin_keys import CONTAMINATION, MUCH, SELECTED_ON, TRAINED_ON
from distill.evaluation.set_items import HasTestItems, Items
from distill.evaluation.tasks import Spec, Task
from distill.evaluation.training_texts import TrainingTexts, file_texts, selection_data, training_texts
from distill.record import run_folder
from embedcache.errors import EmbedCacheError

_UNKNOWN_TRAINING = "contamination is not known: "
_UNKNOWN_SELECTION = "whether its checkpoint was chosen on test pairs is not known: "
_SEEN = "seen in training, in "


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
        search: whether to look for the sets among training texts, which takes a while.
    """

    tasks: Mapping[str, Task]
    corpus: Path | None = None
    progress: Progress = silent
    search: bool = True
    _sets: dict[tuple[str, str], Items] = field(default_factory=dict)
    _seen: dict[str, dict[tuple[str, str], Seen]] = field(default_factory=dict)
    _training: dict[Path | None, _Training] = field(default_factory=dict)
    _selection: dict[Path | None, _Selection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for suite, task in self.tasks.items():
            if isinstance(task, HasTestItems):
                self._sets |= {(suite, name): items for name, items in task.test_items().items()}

    def told(self, spec: Spec, suite: str, noted: Noted) -> Noted:
        """Return a model's report with what its sets are marked with.

        Marks that a kept report has stay; what could not be found out then is looked for again.

        Args:
            spec: the model, as the caller named it.
            suite: the suite of the report.
            noted: the report and its notes.
        """
        run = run_folder(spec)
        is_subject = run is not None or (self.corpus is not None and noted.report.role != "teacher")
        if not is_subject or not any(of == suite for of, _ in self._sets):
            return noted
        facts, notes = dict(noted.report.facts), list(noted.notes)

        def mark(found: dict[str, object], lines: list[str], replaced: Sequence[str]) -> None:
            facts.update(found)
            notes[:] = [note for note in notes if not any(f": {start}" in note for start in replaced)]
            notes.extend(f"{noted.report.name}: {line}" for line in lines)

        if self.search and facts.get(CONTAMINATION) is None:
            if run not in self._training:
                self._training[run] = self._find_training(run)
            mark(*self._training[run].told(suite), (_UNKNOWN_TRAINING, _SEEN))
        if facts.get(SELECTED_ON) is None:
            if run not in self._selection:
                self._selection[run] = self._find_selection(run)
            mark(*self._selection[run].told(suite, self._sets), (_UNKNOWN_SELECTION,))
        return replace(noted, report=replace(noted.report, facts=facts), notes=tuple(notes))

    def _find_training(self, run: Path | None) -> _Training:
        try:
            texts = training_texts(run) if run is not None else [file_texts(self.corpus or Path())]
            return _Training(texts, self._overlap(texts))
        except (DistillError, EmbedCacheError, OSError) as error:
            if run is None:
                raise
            return _Training(fault=f"{_UNKNOWN_TRAINING}{error}")

    def _find_selection(self, run: Path | None) -> _Selection:
        try:
            return _Selection([] if run is None else [self._choice(*one) for one in selection_data(run)])
        except (DistillError, EmbedCacheError, OSError) as error:
            return _Selection(fault=f"{_UNKNOWN_SELECTION}{error}")

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
        from distill.evaluation.old_sts import read_pairs
        from embedcache.fsio import sha256_file

        if not path.is_file():
            raise DataError(f"{path} is not there any more")
        if sha256 is not None and sha256_file(path) != sha256:
            raise DataError(f"{path} has changed since")
        pairs = read_pairs(path, path.stem)
        chosen_on = list(zip(pairs.left, pairs.right, strict=True))
        return _Choice(path.name, {key: pairs_in(items, chosen_on) for key, items in self._sets.items()})


@dataclass(frozen=True)
class _Training:
    """What a model was trained on, and what of the test sets is among it; or why that is not known."""

    texts: Sequence[TrainingTexts] = ()
    seen: Mapping[tuple[str, str], Seen] = field(default_factory=dict)
    fault: str | None = None

    def told(self, suite: str) -> tuple[dict[str, object], list[str]]:
        """Return facts and notes for one suite."""
        if self.fault is not None:
            return {CONTAMINATION: None, TRAINED_ON: None}, [self.fault]
        mine = {name: seen for (of, name), seen in self.seen.items() if of == suite}
        facts: dict[str, object] = {
            CONTAMINATION: {name: seen.to_json() for name, seen in mine.items()},
            TRAINED_ON: [{"name": one.name, "texts": one.count} for one in self.texts],
        }
        named = " and ".join(f"{one.name} ({one.count:,} texts)" for one in self.texts)
        return facts, [f"{_SEEN}{named}: {describe(mine)}"]


@dataclass(frozen=True)
class _Selection:
    """What a run's checkpoint was chosen on; or why that is not known."""

    choices: Sequence[_Choice] = ()
    fault: str | None = None

    def told(self, suite: str, sets: Mapping[tuple[str, str], Items]) -> tuple[dict[str, object], list[str]]:
        """Return facts and notes for one suite."""
        if self.fault is not None:
            return {SELECTED_ON: None}, [self.fault]
        notes = []
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
        return {SELECTED_ON: selected}, notes
