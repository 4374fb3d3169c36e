"""Models that can be evaluated: runs, sentence-transformers folders, ONNX exports, teachers, loaded encoders.

A model is loaded when it has to encode, so results that are kept cost no model. Vectors that a cache holds
are taken from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.digests import folder_digest
from distill.errors import DataError
from distill.evaluation.cache import user_cache
from distill.evaluation.weights import saved_parameters, weight_bytes
from distill.layout import BEST, RECORD, describe_missing, describe_unfinished
from distill.onnx import GRAPH, INT8_GRAPH, RECIPE, OnnxEncoder
from distill.record import find_runs, read_record, run_folder

if TYPE_CHECKING:
    from embedcache.cache import Cache, CachedTeacher
    from embedcache.contract import Contract
    from embedcache.teacher.text_encoder import TextEncoder

Vectors: TypeAlias = NDArray[np.float32]

Encode: TypeAlias = Callable[[Sequence[str]], Vectors]
"""Takes n sentences to their vectors, float32 of shape (n, d)."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a step's name, units done and units in all."""

CACHE_PREFIX = "cache:"
CHUNK = 8192
"""Sentences handed to a model at once."""


def silent(step: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(eq=False)
class Model:
    """A sentence encoder with what reports say of it.

    Attributes:
        name: its name in reports.
        encoder: takes n texts to (n, d) vectors; loads the model when it is called first.
        identity: tells it from other models in kept results; None: its results are not kept.
        contract: contract of its vectors; None if it has none.
        recall: takes texts to those of their vectors that a cache holds, by text.
        locate: returns the folder or ONNX graph that it is loaded from; None: in memory, behind a server, or
            not on this machine yet.
        run: folder of the run that it is the student of.
        in_target_space: its vectors are comparable with its teacher's, number by number.
        parameters: their number, if a run's record says it.
        parts: models whose vectors it combines.
        notes: what a reader must know of its vectors.
        progress: called while it encodes.
        spec: what the caller typed.
        recalled, encoded: vectors taken from a cache, and encoded, so far.
    """

    name: str
    encoder: Encode
    identity: Callable[[], str | None] = lambda: None
    contract: Callable[[], Contract | None] = lambda: None
    recall: Callable[[Sequence[str]], Mapping[str, Vectors]] = lambda texts: {}
    locate: Callable[[], Path | None] = lambda: None
    run: Path | None = None
    in_target_space: bool = True
    parameters: int | None = None
    parts: Sequence[Model] = ()
    notes: list[str] = field(default_factory=list)
    progress: Progress = silent
    spec: str = ""
    recalled: int = 0
    encoded: int = 0
    _vectors: dict[str, Vectors] = field(default_factory=dict)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, (n, d) float32; no text is encoded twice.

        Raises:
            DataError: if a vector is zero or not finite, or the encoder returns another shape.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        known = self.recall(new) if new else {}
        self._vectors.update(known)
        # Longest first: chunks are even in length, and a model too large for the memory fails at once.
        fresh = sorted((text for text in new if text not in known), key=len, reverse=True)
        for first in range(0, len(fresh), CHUNK):
            self.progress(f"encode with {self.name}", first, len(fresh))
            chunk = fresh[first : first + CHUNK]
            self._vectors.update(zip(chunk, self._checked(chunk), strict=True))
        if fresh:
            self.progress(f"encode with {self.name}", len(fresh), len(fresh))
        self.recalled += len(known)
        self.encoded += len(fresh)
        return (
            np.stack([self._vectors[text] for text in texts]) if len(texts) else np.empty((0, 0), np.float32)
        )

    def forget(self) -> None:
        """Free the vectors."""
        self._vectors = {}

    @property
    def dimension(self) -> int | None:
        """Width of its vectors; None if it is not known before it encodes."""
        if self._vectors:
            return len(next(iter(self._vectors.values())))
        contract = self.contract()
        return None if contract is None else contract.dimension

    @property
    def size(self) -> tuple[int | None, float | None]:
        """Number of parameters, and megabytes of saved weights (10^6 bytes); None if unknown."""
        if self.parts:
            parameters, megabytes = zip(*(part.size for part in self.parts), strict=True)
            return None if None in parameters else sum(parameters), None if None in megabytes else sum(
                megabytes
            )
        if (source := self.locate()) is None:
            return self.parameters, None
        if source.is_file():
            return self.parameters, source.stat().st_size / 1e6
        return self.parameters or saved_parameters(source), weight_bytes(source) / 1e6

    def _checked(self, texts: Sequence[str]) -> Vectors:
        vectors = np.asarray(self.encoder(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DataError(
                f"{self.name} returned shape {vectors.shape} for {len(texts)} sentences, expected (n, d)"
            )
        bad = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            fault = "a zero vector" if not vectors[row].any() else "a vector with NaN or infinity"
            raise DataError(
                f"{self.name} gave {fault} for {int(bad.sum())} of {len(texts)} sentences, first for "
                f"{texts[row][:60]!r}; check the model's weights and its compute dtype"
            )
        return vectors


Spec: TypeAlias = str | Path | Model


def open_models(
    models: Sequence[Spec] | Spec, notes: list[str], device: str, compute_dtype: str
) -> list[Model]:
    """Return named models, and the finished runs below folders; errors as :func:`open_model`."""
    specs = [models] if isinstance(models, str | Path | Model) else list(models)
    opened = []
    for spec in (each for given in specs for each in _expand(given, notes)):
        model = open_model(spec, device=device, compute_dtype=compute_dtype)
        model.spec = model.name if isinstance(spec, Model) else str(spec)
        opened.append(model)
    if not opened:
        raise DataError("; ".join(["no model to evaluate", *notes]))
    return opened


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


def open_model(spec: Spec, *, device: str = "auto", compute_dtype: str = "float32") -> Model:
    """Return the model that ``spec`` names; it is not loaded yet.

    Args:
        spec: run folder (its ``best/`` is meant), sentence-transformers folder, ONNX export (folder or
            graph), hub id, alias, ``cache:FOLDER#TEACHER``, or a :class:`Model`.
        device: ``auto``, ``cpu``, ``cuda`` ...; an ONNX graph runs on the CPU.
        compute_dtype: ``float32``, ``bfloat16``, ``float16`` or ``auto``; an ONNX graph has its own.

    Raises:
        DataError: if there is no such model, or a setting does not apply to it.
        TeacherError, EmbedCacheError: if a teacher or a cache cannot be found.
    """
    if isinstance(spec, Model):
        return spec
    if str(spec).startswith(CACHE_PREFIX):
        return _open_cached(str(spec), device, compute_dtype)
    run = run_folder(spec)
    if run is not None:
        if not (run / BEST).is_dir():
            raise DataError(describe_unfinished(run))
        record = read_record(run)
        model = _open_torch(run / BEST, device, compute_dtype)
        model.name, model.run, model.identity = run.name, run, partial(_weights_identity, run / BEST)
        model.in_target_space = record is None or record.in_target_space
        model.parameters = None if record is None else record.parameters
        if _is_unfinished(run):
            model.notes.append(f"{run.name} is not finished: its figures are of the best checkpoint so far")
        return model
    if (graph := _find_graph(Path(spec).expanduser())) is not None:
        return _open_onnx(graph, device, compute_dtype)
    _require_named(str(spec))
    return _open_torch(spec, device, compute_dtype)


def _require_named(spec: str) -> None:
    from embedcache.teacher.resolve import ALIASES, is_served

    if missing := describe_missing(spec):
        raise DataError(missing)
    base = spec.partition("@")[0]
    if not (base in ALIASES or "/" in base or is_served(spec) or Path(spec).expanduser().exists()):
        raise DataError(
            f"no run or model {spec!r}: expected a run's folder or a folder with runs below it, a folder of "
            "sentence-transformers, an ONNX export, a hub id as org/name, cache:FOLDER#TEACHER, or one of "
            f"{', '.join(ALIASES)}"
        )


def _open_torch(spec: str | Path, device: str, compute_dtype: str) -> Model:
    """Return a model that torch runs, or a server."""
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.options import EncodeOptions, TeacherOptions

    options = EncodeOptions(compute_dtype=compute_dtype, device=device, backend="torch")
    # Contracts are noted, so the next evaluation knows the teacher without loading it.
    lazy = LazyTeacher(TeacherOptions(str(spec)), options, user_cache())

    def contract() -> Contract:
        (found,) = lazy.contracts.values()
        lazy.note(user_cache())
        return found

    source = lazy.source.folder if lazy.source.server is None else None
    return Model(
        lazy.source.name, lazy.vectors, lambda: f"contract {contract().id}", contract, locate=lambda: source
    )


def open_by_contract(
    spec: str, contract: Contract, name: str, remedy: str, device: str, compute_dtype: str
) -> tuple[Model, Callable[[], TextEncoder]]:
    """Return the teacher of a contract and what loads it; nothing is looked for before it has to encode.

    Args:
        spec: alias, hub id or folder.
        contract: contract of its vectors.
        name: its name.
        remedy: remedy in the message about another model.
        device, compute_dtype: as :func:`open_model`.
    """

    @cache
    def encoder() -> TextEncoder:
        from embedcache.teacher.lazy import encoder_of
        from embedcache.teacher.load import load_by_contract
        from embedcache.teacher.options import EncodeOptions

        teacher = load_by_contract(spec, contract, name=name, remedy=remedy, device=device)
        return encoder_of([teacher], EncodeOptions(compute_dtype=compute_dtype, backend="torch"))

    model = Model(
        name,
        lambda texts: encoder().encode(texts).vectors,
        identity=lambda: f"contract {contract.id}",
        contract=lambda: contract,
        locate=partial(_local_folder, spec),
    )
    return model, encoder


def _open_cached(spec: str, device: str, compute_dtype: str) -> Model:
    """Return the teacher ``cache:FOLDER#TEACHER``, which stores in its cache what it encodes."""
    import embedcache
    from embedcache.errors import StorageError

    place = spec.removeprefix(CACHE_PREFIX)
    folder, mark, name = place.rpartition("#")
    if not mark or Path(place).expanduser().is_dir():
        folder, name = place, ""
    opened = embedcache.open(folder)
    entry = opened.teacher(name or None)
    remedy, origin = "give the teacher that the cache was built with", opened.model_source(entry)
    model, encoder = open_by_contract(origin, entry.contract, entry.name, remedy, device, compute_dtype)

    def encode(texts: Sequence[str]) -> Vectors:
        try:
            return opened.encode(texts, encoder())
        except StorageError as error:
            # Storing is a service: vectors are used all the same.
            model.notes.append(f"vectors of {entry.name} are not kept in {folder}: {error}")
            return encoder().encode(texts).vectors

    model.encoder = encode
    recall_from(opened, entry, model)
    return model


def recall_from(opened: Cache, entry: CachedTeacher, model: Model) -> None:
    """Take a teacher's vectors from a cache where it holds them; a lossy codec is part of the identity."""
    from embedcache.keys import key_array

    codec = opened.store(entry.contract).codec_name
    lossy = "" if codec.startswith("float") else f" {codec}"

    def recall(texts: Sequence[str]) -> dict[str, Vectors]:
        store = opened.store(entry.contract)
        places = store.locate(key_array(texts))
        held = np.flatnonzero(places >= 0)
        vectors = store.vectors(places[held])
        return {texts[row]: vector for row, vector in zip(held.tolist(), vectors, strict=True)}

    model.recall, model.identity = recall, lambda: f"contract {entry.contract.id}{lossy}"


def _local_folder(spec: str) -> Path | None:
    """Return the folder of a model that is on this machine already; None for others."""
    from huggingface_hub import snapshot_download

    from embedcache.teacher.resolve import ALIASES, resolve

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


def _open_onnx(graph: Path, device: str, compute_dtype: str) -> Model:
    if device not in ("auto", "cpu") or compute_dtype not in ("auto", "float32"):
        raise DataError(
            f"{graph} runs on the CPU in its own number format (found: --device {device}, --compute-dtype "
            f"{compute_dtype}); leave them out"
        )
    folder = graph.resolve().parent.parent

    @cache
    def encoder() -> OnnxEncoder:
        return OnnxEncoder(folder, int8=graph.name == INT8_GRAPH)

    return Model(
        f"{folder.name}/{graph.name}",
        lambda texts: encoder().encode(texts),
        identity=lambda: f"{_weights_identity(folder)} {graph.name}",
        locate=lambda: graph,
    )


def _weights_identity(folder: Path) -> str:
    return f"weights {folder_digest(folder)}"
