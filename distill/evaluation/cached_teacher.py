"""A teacher whose vectors come from a cache as far as it holds them.

The model itself is loaded only for sentences that the cache lacks. Vectors encoded now may stand beside
cached ones only where both have one contract. A teacher that is named by its cache, ``cache:FOLDER#TEACHER``,
stores there what it encodes, so that no sentence is encoded a second time; a cache that is merely looked into
is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache as memoised
from pathlib import Path
from typing import TYPE_CHECKING

from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.record import RunTeacher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedcache.cache import Cache, CachedTeacher
    from embedcache.contract import Contract
    from embedcache.store.base import VectorBatch
    from embedcache.store.store import ShardStore

CACHE_PREFIX = "cache:"
"""What a model that is named by its cache begins with."""

_ROWS_STORED_AT_ONCE = 16384  # a shard for every few sentences would be a burden, a lost hour another


def is_cache_spec(spec: object) -> bool:
    """Return whether ``spec`` is ``cache:FOLDER#TEACHER`` or ``cache:FOLDER``."""
    return isinstance(spec, str) and spec.startswith(CACHE_PREFIX)


def find_cached(spec: object) -> tuple[Path, RunTeacher] | None:
    """Return the folder and the teacher that ``cache:FOLDER#TEACHER`` means; None of any other spec.

    The teacher is a name or the beginning of a contract's id; the only one of a cache need not be named.

    Raises:
        EmbedCacheError: if there is no such cache, or no such teacher in it.
    """
    found = _find_entry(spec)
    if found is None:
        return None
    opened, entry = found
    contract = entry.contract
    return opened.folder, RunTeacher(entry.name, opened.model_source(entry), contract.id, contract)


def _find_entry(spec: object) -> tuple[Cache, CachedTeacher] | None:
    import embedcache

    if not isinstance(spec, str) or not is_cache_spec(spec):
        return None
    place = spec.removeprefix(CACHE_PREFIX)
    folder, mark, name = place.rpartition("#")
    if not mark or Path(place).expanduser().is_dir():
        folder, name = place, ""
    opened = embedcache.open(folder)
    return opened, opened.teacher(name or None)


def cached_teacher(
    folder: str | Path, teacher: RunTeacher, load: Callable[[], EvaluatedModel], *, keep: bool = False
) -> EvaluatedModel:
    """Return a teacher that recalls vectors from the cache in ``folder`` and encodes the others.

    Args:
        folder: the cache.
        teacher: which one; a contract's id is preferred to a name, which may have been given away since.
        load: loads the teacher itself; called once, when it is needed.
        keep: store what is encoded in the cache. Only of one teacher's own vectors.

    Raises:
        EmbedCacheError: if the cache cannot be opened, or holds no such teacher.
    """
    import numpy as np

    import embedcache
    from embedcache.keys import key_array
    from embedcache.live import refuse_changed_server

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
            refuse_changed_server(stores[0], opened.corpora, model.encode)
        return model

    model = EvaluatedModel(
        name=teacher.name,
        parameters=None,
        megabytes=None,
        dimension=entries[0].contract.dimension if combination is None else combination.dimension,
        encoder=lambda texts: loaded().encode(texts),
        contract=contract,
        recall=recall,
        whole=loaded,
    )
    if not keep:
        return model
    keeper = _Keeper(opened.folder, stores[0], loaded)
    return replace(model, encoder=keeper.encode, keep=keeper.keep)


class _Keeper:
    """Encodes texts and stores their vectors in a cache, many at once.

    Storing is a service: where the cache cannot be written the vectors are used all the same.
    """

    def __init__(self, folder: Path, store: ShardStore, loaded: Callable[[], EvaluatedModel]) -> None:
        self._folder, self._store, self._loaded = folder, store, loaded
        self._waiting: list[VectorBatch] = []
        self._fault: str | None = None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of ``texts``, (n, d); they are stored now or soon."""
        model = self._loaded()
        if model.encode_rows is None:
            self._fault = f"{model.name} does not say how many tokens it saw of a text"
            return model.encode(texts)
        batch = model.encode_rows(texts)
        self._waiting.append(batch)
        if sum(len(one.keys) for one in self._waiting) >= _ROWS_STORED_AT_ONCE:
            self._store_waiting()
        return batch.vectors

    def keep(self) -> str:
        """Store what still waits and return what a reader must know of it."""
        self._store_waiting()
        if self._store.shards and self._fault is None:
            self._store.finish()
        fault, self._fault = self._fault, None
        return f"kept in {self._folder}" if fault is None else f"not kept in {self._folder}: {fault}"

    def _store_waiting(self) -> None:
        import numpy as np

        from embedcache.errors import EmbedCacheError
        from embedcache.store.base import VectorBatch

        waiting, self._waiting = self._waiting, []
        if not waiting or self._fault is not None:
            return
        vectors = np.concatenate([one.vectors for one in waiting])
        if not (np.isfinite(vectors).all() and vectors.any(axis=1).all()):
            # The caller refuses them by name; a cache must not remember them.
            return
        keys = np.concatenate([one.keys for one in waiting])
        fresh = self._store.locate(keys) < 0
        if not fresh.any():
            return
        try:
            self._store.put(
                VectorBatch(
                    keys[fresh],
                    vectors[fresh],
                    np.concatenate([one.tokens for one in waiting])[fresh],
                    np.concatenate([one.truncated for one in waiting])[fresh],
                    waiting[0].provenance,
                )
            )
        except EmbedCacheError as error:
            self._fault = str(error)


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
