"""A teacher whose vectors come from a cache as far as it holds them.

The model itself is loaded only for sentences that the cache lacks. Vectors encoded now may stand beside
cached ones only where both have one contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache as memoised
from pathlib import Path
from typing import TYPE_CHECKING

from distill.evaluation.model import EvaluatedModel
from distill.evaluation.record import RunTeacher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedcache.contract import Contract


def cached_teacher(
    folder: str | Path, teacher: RunTeacher, load: Callable[[], EvaluatedModel]
) -> EvaluatedModel:
    """Return a teacher that recalls vectors from the cache in ``folder`` and encodes the others.

    Args:
        folder: the cache.
        teacher: which one; a contract's id is preferred to a name, which may have been given away since.
        load: loads the teacher itself; called once, when it is needed.

    Raises:
        EmbedCacheError: if the cache cannot be opened, or holds no such teacher.
    """
    import numpy as np

    import embedcache
    from embedcache.keys import key_array

    opened = embedcache.open(folder)
    entries = [opened.teacher(one.contract_id or one.name) for one in teacher.parts or (teacher,)]
    stores = [opened.store(entry.contract) for entry in entries]
    # Targets made of several teachers' vectors have no contract; each teacher is checked on its own.
    contract = None if teacher.parts else entries[0].contract
    combination = teacher.combination() if teacher.parts else None

    def recall(texts: Sequence[str]) -> Mapping[str, NDArray[np.float32]]:
        keys = key_array(texts)
        places = np.stack([store.locate(keys) for store in stores])
        held = np.flatnonzero((places >= 0).all(axis=0))
        vectors = [store.vectors(place[held]) for store, place in zip(stores, places, strict=True)]
        targets = vectors[0] if combination is None else combination.apply(vectors)
        return {texts[row]: target for row, target in zip(held.tolist(), targets, strict=True)}

    @memoised
    def loaded() -> EvaluatedModel:
        model = load()
        if contract is not None:
            _require_same(contract, model)
        return model

    return EvaluatedModel(
        name=teacher.name,
        parameters=None,
        megabytes=None,
        dimension=entries[0].contract.dimension if combination is None else combination.dimension,
        encoder=lambda texts: loaded().encode(texts),
        contract=contract,
        recall=recall,
        whole=loaded,
    )


def with_sizes(model: EvaluatedModel) -> EvaluatedModel:
    """Return ``model`` with its number of parameters and its size, for which it may have to be loaded.

    Raises:
        DistillError, EmbedCacheError: if it cannot be loaded, or is no longer the one that is cached.
    """
    if model.whole is None:
        return model
    whole = model.whole()
    return replace(model, parameters=whole.parameters, megabytes=whole.megabytes)


def _require_same(cached: Contract, model: EvaluatedModel) -> None:
    """Check that vectors encoded now may stand beside the cached ones.

    Raises:
        ContractMismatchError: if the contracts differ; it names the fields and both values.
    """
    from embedcache.contract import describe_differences
    from embedcache.errors import ContractMismatchError

    if model.contract == cached:
        return
    found = {} if model.contract is None else cached.differences(model.contract)
    why = describe_differences(found) or "the loaded model has none"
    raise ContractMismatchError(
        f"vectors of {model.name} in the cache are of another contract than the teacher as loaded "
        f"({why}): give the teacher that the cache was built with, or leave out --cache",
        found,
    )
