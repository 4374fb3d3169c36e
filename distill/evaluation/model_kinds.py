"""Models that can be evaluated: runs, sentence-transformers folders, ONNX exports, teachers, loaded encoders.

A model is loaded when it has to encode, so results that are kept cost no model. Vectors that a cache holds
are taken from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distill.digests import folder_digest
from distill.errors import DataError
from distill.evaluation.cache import user_cache
from distill.evaluation.models import Model, Spec, Vectors
from distill.layout import BEST, RECORD, describe_missing, describe_unfinished
from distill.onnx import GRAPH, INT8_GRAPH, RECIPE, OnnxEncoder
from distill.record import find_runs, read_record, run_folder

if TYPE_CHECKING:
    from sklearn.decomposition import PCA

    from embedcache.contract import Contract
    from embedcache.teacher.text_encoder import TextEncoder

CACHE_PREFIX = "cache:"
WHITENED_PREFIX = "whitened:"
_FITTED = 50_000


def open_models(
    models: Sequence[Spec] | Spec,
    notes: list[str],
    device: str,
    compute_dtype: str,
    pooling: str | None = None,
) -> list[Model]:
    """Return named models, and the finished runs below folders; errors as ``open_model``."""
    specs = [models] if isinstance(models, str | os.PathLike | Model) else list(models)
    opened = []
    named = [os.fspath(spec) if isinstance(spec, os.PathLike) else spec for spec in specs]
    for spec in (each for given in named for each in _expand(given, notes)):
        model = open_model(spec, device=device, compute_dtype=compute_dtype, pooling=pooling)
        model.spec = model.name if isinstance(spec, Model) else str(spec)
        opened.append(model)
    if not opened:
        raise DataError("; ".join(["no model to evaluate", *notes]))
    return opened


def name_apart(models: Sequence[Model]) -> None:
    """Call a second model of one name by what the caller typed."""
    names: set[str] = set()
    for model in models:
        free = (f"{model.name} ({number})" for number in range(2, 2 + len(models)))
        model.name = next(name for name in (model.name, model.spec, *free) if name and name not in names)
        names.add(model.name)


def _expand(spec: Spec, notes: list[str]) -> Iterable[Spec]:
    """Return the finished runs below a folder that holds no model."""
    if isinstance(spec, Model) or str(spec).startswith(CACHE_PREFIX) or run_folder(spec) is not None:
        return [spec]
    folder = Path(spec).expanduser()
    is_model = any((folder / name).exists() for name in ("config.json", "modules.json", "onnx"))
    if is_model or not any(folder.glob(f"*/**/{RECORD}")):
        return [spec]
    runs = find_runs(folder)
    unfinished = [run for run in runs if not (run / BEST).is_dir() or _is_unfinished(run)]
    notes += [f"{run} left out: not finished" for run in unfinished]
    return [run for run in runs if run not in unfinished]


def _is_unfinished(run: Path) -> bool:
    record = read_record(run)
    return record is not None and not record.is_finished


def open_model(
    spec: Spec, *, device: str = "auto", compute_dtype: str = "float32", pooling: str | None = None
) -> Model:
    """Return the model that ``spec`` names; it is not loaded yet.

    Args:
        spec: run folder (its ``best/`` is meant), sentence-transformers folder, ONNX export (folder or
            graph), hub id, alias, ``cache:FOLDER#TEACHER``, ``whitened:FOLDER#TEACHER``, or a ``Model``.
        device: ``auto``, ``cpu``, ``cuda`` ...; an ONNX graph runs on the CPU.
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``; an ONNX graph has its own.
        pooling: pooling of token vectors, of a folder or hub id; default: the model's.

    Raises:
        DataError: if there is no such model, or a setting does not apply to it.
        TeacherError, EmbedCacheError: if a teacher or a cache cannot be found.
    """
    found = _open(spec, device, compute_dtype, pooling)
    if pooling is not None and type(found) is not TorchModel:
        raise DataError(f"{spec} has its own pooling: leave --pooling {pooling} out")
    return found


def _open(spec: Spec, device: str, compute_dtype: str, pooling: str | None) -> Model:
    if isinstance(spec, Model):
        return spec
    if str(spec).startswith(CACHE_PREFIX):
        return CacheModel(str(spec), device, compute_dtype)
    if str(spec).startswith(WHITENED_PREFIX):
        return WhitenedModel(str(spec), device, compute_dtype)
    if (run := run_folder(spec)) is not None:
        return RunModel(run, device, compute_dtype)
    if (graph := _find_graph(Path(spec).expanduser())) is not None:
        return OnnxModel(graph, device, compute_dtype)
    _require_named(str(spec))
    return TorchModel(spec, device, compute_dtype, pooling)


def _require_named(spec: str) -> None:
    from embedcache.teacher.aliases import ALIASES
    from embedcache.teacher.resolve import is_served

    if missing := describe_missing(spec):
        raise DataError(missing)
    base = spec.partition("@")[0]
    if not (base in ALIASES or "/" in base or is_served(spec) or Path(spec).expanduser().exists()):
        raise DataError(
            f"no run or model {spec!r}: expected a run's folder or a folder with runs below it, a folder of "
            "sentence-transformers, an ONNX export, a hub id as org/name, cache:FOLDER#TEACHER, "
            f"whitened:FOLDER#TEACHER, or one of {', '.join(ALIASES)}"
        )


class TorchModel(Model):
    """Model that torch runs, or a server."""

    def __init__(
        self, spec: str | os.PathLike[str], device: str, compute_dtype: str, pooling: str | None = None
    ) -> None:
        from embedcache.teacher.lazy import LazyTeacher
        from embedcache.teacher.options import EncodeOptions, TeacherOptions

        options = EncodeOptions(compute_dtype=compute_dtype, device=device, backend="torch")
        # Contracts are noted, so the next evaluation knows the teacher without loading it.
        self._lazy = LazyTeacher(TeacherOptions(str(spec), pooling=pooling), options, user_cache())
        name = self._lazy.source.name
        super().__init__(f"{name}, {pooling}" if pooling else name, self._lazy.vectors)

    def contract(self) -> Contract:
        """Return the contract of its vectors."""
        self._lazy.note(user_cache())
        return self._lazy.contract

    def locate(self) -> Path | None:
        """Return the folder that it is loaded from, if it is on this machine."""
        return self._lazy.source.folder if self._lazy.source.server is None else None


class RunModel(TorchModel):
    """Student of a run."""

    def __init__(self, run: Path, device: str, compute_dtype: str) -> None:
        self._best = run / BEST
        if not self._best.is_dir():
            raise DataError(describe_unfinished(run))
        super().__init__(self._best, device, compute_dtype)
        record = read_record(run)
        self.name, self.run = run.name, run
        self.in_target_space = record is None or record.in_target_space
        self.parameters = None if record is None else record.parameters
        if _is_unfinished(run):
            self.notes.append(f"{run.name} is not finished: its figures are of the best checkpoint so far")

    def identity(self) -> str:
        """Return the digest of its weights."""
        return f"weights {folder_digest(self._best)}{self._codec}"


class TeacherModel(Model):
    """Teacher of a contract; nothing is looked for before it has to encode.

    Args:
        spec: alias, hub id or folder.
        contract: contract of its vectors.
        name: its name.
        remedy: remedy in the message about another model.
        device, compute_dtype: as ``open_model``.
    """

    def __init__(
        self, spec: str, contract: Contract, name: str, remedy: str, device: str, compute_dtype: str
    ) -> None:
        super().__init__(name, lambda texts: self._live.encode(texts).vectors)
        self._spec, self._contract, self._remedy = spec, contract, remedy
        self._device, self._compute_dtype = device, compute_dtype

    @cached_property
    def _live(self) -> TextEncoder:
        from embedcache.teacher.lazy import encoder_of
        from embedcache.teacher.load import load_by_contract
        from embedcache.teacher.options import EncodeOptions

        found = self._spec, self._contract
        teacher = load_by_contract(*found, name=self.name, remedy=self._remedy, device=self._device)
        encode = EncodeOptions(compute_dtype=self._compute_dtype, backend="torch")
        return encoder_of(teacher, encode, copy=False)

    def contract(self) -> Contract:
        """Return the contract of its vectors."""
        return self._contract

    def locate(self) -> Path | None:
        """Return the folder that it is loaded from, if it is on this machine."""
        return _local_folder(self._spec)


class CacheModel(TeacherModel):
    """Teacher ``cache:FOLDER#TEACHER``, which stores new vectors in its cache."""

    def __init__(self, spec: str, device: str, compute_dtype: str) -> None:
        import embedcache

        place = spec.removeprefix(CACHE_PREFIX)
        self._folder, mark, name = place.rpartition("#")
        if not mark or Path(place).expanduser().is_dir():
            self._folder, name = place, ""
        self._cache = embedcache.open(self._folder)
        entry = self._cache.teacher(name or None)
        remedy, origin = "give the teacher that the cache was built with", self._cache.model_source(entry)
        super().__init__(origin, entry.contract, entry.name, remedy, device, compute_dtype)
        self.encoder = self._encode_and_store
        self.recall_from(self._cache, entry.contract)

    def stored(self, most: int) -> Vectors:
        """Return its vectors of the cache's corpora, at most ``most`` spread evenly, (n, d)."""
        store = self._cache.store(self._contract)
        found = [store.locate(corpus.keys()) for corpus in self._cache.corpora()]
        places = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        places = places[places >= 0]
        return store.vectors(places[:: -(-len(places) // most) or 1])

    def _encode_and_store(self, texts: Sequence[str]) -> Vectors:
        from embedcache.errors import StorageError

        try:
            return self._cache.encode(texts, self._live)
        except StorageError as error:
            # Storing is a service: vectors are used all the same.
            self.notes.append(f"vectors of {self.name} are not kept in {self._folder}: {error}")
            return self._live.encode(texts).vectors


class WhitenedModel(Model):
    """Teacher ``whitened:FOLDER#TEACHER``: vectors of a cached teacher, centred and whitened.

    Mean and covariance are those of the teacher's vectors of the cache's corpora, at most 50,000 spread
    evenly, in full precision, and all dimensions that vary.

    Source: Su et al., 2021, the baseline SBERT-whitening of SimTDE's Table 1.
    """

    def __init__(self, spec: str, device: str, compute_dtype: str) -> None:
        place = spec.removeprefix(WHITENED_PREFIX)
        self._raw = CacheModel(f"{CACHE_PREFIX}{place}", device, compute_dtype)
        super().__init__(f"{self._raw.name}, whitened", self._whiten)
        self.parts, self.notes = (self._raw,), self._raw.notes

    def _whiten(self, texts: Sequence[str]) -> Vectors:
        fitted = self._whitening
        whitened: Vectors = fitted.transform(self._raw.encode(texts).astype(np.float64))
        # Directions without variance hold rounding errors alone.
        spread = np.sqrt(fitted.explained_variance_)
        return whitened[:, spread > spread[0] * len(spread) * np.finfo(np.float32).eps]

    @cached_property
    def _whitening(self) -> PCA:
        from sklearn.decomposition import PCA

        vectors = self._raw.stored(_FITTED)
        if len(vectors) <= vectors.shape[1]:
            raise DataError(
                f"{self.name}: {len(vectors)} cached vectors of {vectors.shape[1]} dimensions do not "
                "determine a covariance; build a larger corpus with 'embedcache build'"
            )
        fitted: PCA = PCA(whiten=True, svd_solver="covariance_eigh").fit(vectors.astype(np.float64))
        return fitted


class OnnxModel(Model):
    """ONNX export, run on the CPU in its own number format."""

    def __init__(self, graph: Path, device: str, compute_dtype: str) -> None:
        if device not in ("auto", "cpu") or compute_dtype not in ("auto", "float32"):
            raise DataError(
                f"{graph} runs on the CPU in its own number format (found: --device {device}, "
                f"--compute-dtype {compute_dtype}); leave them out"
            )
        self._graph, self._folder = graph, graph.resolve().parent.parent
        super().__init__(f"{self._folder.name}/{graph.name}", lambda texts: self._live.encode(texts))

    @cached_property
    def _live(self) -> OnnxEncoder:
        return OnnxEncoder(self._folder, int8=self._graph.name == INT8_GRAPH)

    def identity(self) -> str:
        """Return the digest of its weights."""
        return f"weights {folder_digest(self._folder)} {self._graph.name}{self._codec}"

    def locate(self) -> Path:
        """Return the graph."""
        return self._graph


def _local_folder(spec: str) -> Path | None:
    """Return the folder of a model that is on this machine already; None for others."""
    from huggingface_hub import snapshot_download

    from embedcache.teacher.aliases import ALIASES
    from embedcache.teacher.resolve import resolve

    base, _, revision = spec.partition("@")
    alias = ALIASES.get(base)
    if Path(spec).expanduser().is_dir() or (alias and alias.module and find_spec(alias.module)):
        return resolve(spec).folder
    try:
        name = alias.model_id if alias else base
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (OSError, ValueError):
        return None


def _find_graph(path: Path) -> Path | None:
    """Return the ONNX graph that ``path`` means; None if torch runs the model."""
    if path.suffix == ".onnx":
        if not path.is_file():
            raise DataError(f"no ONNX graph at {path}; make one with 'distill export MODEL --to onnx'")
        return path
    # Folders from a hub often carry graphs without the final vector; exports of ours have a recipe.
    return path / "onnx" / GRAPH if (path / "onnx" / RECIPE).is_file() else None
