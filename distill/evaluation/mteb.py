"""Tasks of MTEB as suites: ``mteb:TASK``, or a task class in ``mteb:module:Class`` or ``mteb:file.py:Class``.

MTEB loads the data, encodes through our model without prompts, and scores. A figure is the main score of one
language or subset, times 100; their average is MTEB's main score of the task (Muennighoff et al., "MTEB:
Massive Text Embedding Benchmark", EACL 2023). Needs the extra ``mteb``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distill.errors import DataError, MissingExtraError
from distill.evaluation.models import Encode
from distill.evaluation.result import Figure, SuiteResult
from distill.plugins import load_object


def load_task(name: str) -> tuple[str, Callable[..., SuiteResult], str, str | None]:
    """Return name, function, summary and version of the suite of a task of MTEB.

    The version is the revision of its data; None of data of a file, of which no revision tells the changes.

    Args:
        name: ``TASK``, ``module:Class`` or ``file.py:Class``.

    Raises:
        DataError: if there is no such task.
        MissingExtraError: without the extra ``mteb``.
    """
    with _mteb() as mteb:
        if ":" in name:
            place, _, made = name.rpartition(":")
            task = load_object(place, made, DataError)()
        else:
            try:
                task = mteb.get_task(name)
            except KeyError as error:
                raise DataError(f"no task {name!r} in MTEB: {error.args[0]}") from error
    facts = task.metadata
    return (
        f"mteb:{facts.name}",
        lambda encode, data, options: _score(task, encode),
        facts.description,
        None if ":" in name else facts.revision,
    )


def _score(task: Any, encode: Encode) -> SuiteResult:
    with _mteb() as mteb:
        try:
            (result,) = mteb.evaluate(
                _encoder(encode), task, cache=None, co2_tracker=False, show_progress_bar=False
            ).task_results
        except OSError as error:
            raise DataError(f"mteb:{task.metadata.name}: data cannot be loaded ({error})") from error
        version = mteb.__version__
    figures = {}
    for split, subsets in result.scores.items():
        for scores in subsets:
            subset = scores["hf_subset"].replace("default", "")
            parts = [task.metadata.name, subset, split if len(result.scores) > 1 else ""]
            figures["-".join(filter(None, parts))] = _figure(scores, task.metadata.main_score)
    return SuiteResult(figures, settings={"task": task.metadata.name, "mteb": version})


def _figure(scores: dict[str, Any], measure: str) -> Figure:
    others = {name: 100 * value for name, value in scores.items() if isinstance(value, float)}
    value = others.pop("main_score")
    others.pop(measure, None)
    return Figure(value, measure, others=others)


def _encoder(encode: Encode) -> Any:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder

    class Encoder(AbsEncoder):  # type: ignore[misc]
        """Our model as MTEB calls it; similarity is cosine."""

        mteb_model_meta = ModelMeta.create_empty()

        def __init__(self) -> None:
            """Nothing to load."""

        def encode(self, inputs: Any, **_: Any) -> Any:
            return encode([text for batch in inputs for text in batch["text"]])

    return Encoder()


@contextmanager
def _mteb() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of MTEB's many dependencies
        try:
            import mteb
        except ImportError as error:
            raise MissingExtraError(
                "tasks of MTEB need an extra: pip install 'embedcache-distill[mteb]'"
            ) from error
        yield mteb
