"""Models that can be evaluated: runs, sentence-transformers folders, ONNX exports, teachers, loaded encoders.

A model is loaded when it has to encode, so results that are kept cost no model. Vectors that a cache holds
are taken from there.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distill.digests import folder_digest
from distill.errors import DataError
from distill.evaluation.weights import MEGABYTE, graph_size, saved_parameters, weight_bytes
from distill.layout import BEST, describe_missing, describe_unfinished
from distill.record import read_record, run_folder

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

_GRAPH, _INT8_GRAPH, _EXPORT_RECIPE = "onnx/model.onnx", "model_int8.onnx", "onnx/encoder.json"


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
        source: folder or ONNX graph that it is loaded from; None: in memory only, or behind a server.
        run: folder of the run that it is the student of.
        in_target_space: its vectors are comparable with its teacher's, number by number.
        parameters, megabytes: its size, if ``source`` does not tell.
        notes: what a reader must know of its vectors.
        progress: called while it encodes.
        spec: what the caller typed.
        recalled, encoded: vectors taken from a cache, and encoded, so far.
    """

    name: str
    encoder: Encode
    identity: Callable[[], str | None] = lambda: None
    contract: Callable[[], Contract | None] = lambda: None
    recall: Callable[[Sequence[str]], Mapping[str, Vectors]] | None = None
    source: Path | None = None
    run: Path | None = None
    in_target_space: bool = True
    parameters: int | None = None
    megabytes: float | None = None
    notes: list[str] = field(default_factory=list)
    progress: Progress = silent
    spec: str = ""
    recalled: int = 0
    encoded: int = 0
    _rows: dict[str, int] = field(default_factory=dict)
    _vectors: Vectors = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, (n, d) float32; no text is encoded twice.

        Raises:
            DataError: if a vector is zero or not finite, or the encoder returns another shape.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if new:
            known = self.recall(new) if self.recall is not None else {}
            # Longest first: chunks are even in length, and a model too large for the memory fails at once.
            fresh = sorted((text for text in new if text not in known), key=len, reverse=True)
            parts = [np.stack(list(known.values()))] if known else []
            for first in range(0, len(fresh), CHUNK):
                self.progress(f"encode with {self.name}", first, len(fresh))
                parts.append(self._checked(fresh[first : first + CHUNK]))
            if fresh:
                self.progress(f"encode with {self.name}", len(fresh), len(fresh))
            vectors = np.concatenate(parts)
            require_usable(vectors, [*known, *fresh], self.name)
            for text in (*known, *fresh):
                self._rows[text] = len(self._rows)
            self._vectors = np.concatenate([self._vectors, vectors]) if len(self._vectors) else vectors
            self.recalled += len(known)
            self.encoded += len(fresh)
        picked: Vectors = self._vectors[[self._rows[text] for text in texts]]
        return picked

    def forget(self) -> None:
        """Free the vectors."""
        self._rows, self._vectors = {}, np.empty((0, 0), np.float32)

    @property
    def dimension(self) -> int | None:
        """Width of its vectors; None if it is not known before it encodes."""
        if len(self._vectors):
            return int(self._vectors.shape[1])
        contract = self.contract()
        return None if contract is None else contract.dimension

    @property
    def size(self) -> tuple[int | None, float | None]:
        """Number of parameters, and megabytes of saved weights (10^6 bytes); None if unknown."""
        if self.source is None or (self.parameters is not None and self.megabytes is not None):
            return self.parameters, self.megabytes
        if self.source.is_file():
            return graph_size(self.source)
        parameters = self.parameters if self.parameters is not None else saved_parameters(self.source)
        return parameters, weight_bytes(self.source) / MEGABYTE

    def _checked(self, texts: Sequence[str]) -> Vectors:
        vectors = np.asarray(self.encoder(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DataError(
                f"{self.name} returned shape {vectors.shape} for {len(texts)} sentences, expected (n, d)"
            )
        return vectors


Spec: TypeAlias = str | Path | Model


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
        model = open_torch(run / BEST, device, compute_dtype, name=run.name)
        model.run, model.identity = run, partial(_weights_identity, run / BEST)
        model.in_target_space = record is None or record.in_target_space
        model.parameters = None if record is None else record.parameters
        return model
    if (graph := _find_graph(Path(spec).expanduser())) is not None:
        return _open_onnx(graph, device, compute_dtype)
    if missing := describe_missing(str(spec)):
        raise DataError(missing)
    return open_torch(spec, device, compute_dtype)


def require_usable(vectors: Vectors, texts: Sequence[str], name: str) -> None:
    """Raise :class:`DataError` if a row of ``vectors``, (n, d), is zero or not finite; name the sentence."""
    finite = np.isfinite(vectors).min(axis=1)
    bad = ~finite | ~vectors.any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        fault = "a zero vector" if finite[row] else "a vector with NaN or infinity"
        raise DataError(
            f"{name} gave {fault} for {int(bad.sum())} of {len(texts)} sentences, first for "
            f"{texts[row][:60]!r}; check the model's weights and its compute dtype"
        )


def unit_rows(vectors: Vectors) -> NDArray[np.float64]:
    """Return ``vectors``, (n, d), none zero, scaled to length one in float64."""
    wide = vectors.astype(np.float64)
    unit: NDArray[np.float64] = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit


def cpu_threads() -> int:
    """Return what ``OMP_NUM_THREADS`` allows, or the cores that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    from embedcache.teacher.encode import available_cores

    return available_cores()


def processor() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def user_cache() -> Path:
    """Return the user's folder for what can be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "distill"


def _weights_identity(folder: Path) -> str:
    return f"weights {folder_digest(folder)}"


def open_torch(
    spec: str | Path,
    device: str,
    compute_dtype: str,
    name: str | None = None,
    contract: Contract | None = None,
) -> Model:
    """Return a model that torch runs, or a server; ``contract`` is what it must be, None for what it is."""
    from embedcache.errors import PoolingNeededError, TeacherError
    from embedcache.teacher.lazy import LazyTeacher, encoder_of
    from embedcache.teacher.options import EncodeOptions, TeacherOptions
    from embedcache.teacher.resolve import resolve

    options = EncodeOptions(compute_dtype=compute_dtype, device=device, backend="torch")
    if contract is None:
        # Contracts are noted, so the next evaluation knows the teacher without loading it.
        lazy = LazyTeacher(TeacherOptions(str(spec), name=name), options, user_cache())
        source = lazy.source

        @cache
        def encoder() -> TextEncoder:
            try:
                return lazy.encoder
            except PoolingNeededError as error:
                raise TeacherError(
                    f"{spec} is a plain transformers folder, which does not say how token vectors become a "
                    "sentence vector: evaluate a sentence-transformers folder"
                ) from error

        def known() -> Contract:
            (found,) = lazy.contracts.values()
            lazy.note(user_cache())
            return found

    else:
        source = resolve(spec)

        @cache
        def encoder() -> TextEncoder:
            from embedcache.teacher.load import load_by_contract

            remedy = "give --teacher to compare with another one"
            called = name or source.name
            return encoder_of(
                [load_by_contract(spec, contract, name=called, remedy=remedy, device=device)], options
            )

        def known() -> Contract:
            return contract

    return Model(
        name or source.name,
        lambda texts: encoder().encode(texts).vectors,
        identity=lambda: f"contract {known().id}",
        contract=known,
        source=source.folder if source.server is None else None,
    )


def _open_cached(spec: str, device: str, compute_dtype: str) -> Model:
    """Return the teacher ``cache:FOLDER#TEACHER``, which stores in its cache what it encodes."""
    import embedcache
    from embedcache.errors import StorageError
    from embedcache.teacher.lazy import encoder_of
    from embedcache.teacher.load import load_by_contract
    from embedcache.teacher.options import EncodeOptions

    place = spec.removeprefix(CACHE_PREFIX)
    folder, mark, name = place.rpartition("#")
    if not mark or Path(place).expanduser().is_dir():
        folder, name = place, ""
    opened = embedcache.open(folder)
    entry = opened.teacher(name or None)
    origin = opened.model_source(entry)

    @cache
    def encoder() -> TextEncoder:
        remedy = "give the teacher that the cache was built with"
        teacher = load_by_contract(origin, entry.contract, name=entry.name, remedy=remedy, device=device)
        return encoder_of(
            [teacher], EncodeOptions(compute_dtype=compute_dtype, device=device, backend="torch")
        )

    def encode(texts: Sequence[str]) -> Vectors:
        try:
            return opened.encode(texts, encoder())
        except StorageError as error:
            # Storing is a service: vectors are used all the same.
            model.notes.append(f"vectors of {entry.name} are not kept in {folder}: {error}")
            return encoder().encode(texts).vectors

    model = Model(
        entry.name,
        encode,
        identity=lambda: f"contract {entry.contract.id}{_lossy(opened, entry)}",
        contract=lambda: entry.contract,
        recall=partial(recall_from, opened, entry),
        source=_local_folder(origin),
    )
    return model


def recall_from(opened: Cache, entry: CachedTeacher, texts: Sequence[str]) -> dict[str, Vectors]:
    """Return the vectors that a cache holds, by text."""
    from embedcache.keys import key_array

    store = opened.store(entry.contract)
    places = store.locate(key_array(texts))
    held = np.flatnonzero(places >= 0)
    vectors = store.vectors(places[held])
    return {texts[row]: vector for row, vector in zip(held.tolist(), vectors, strict=True)}


def _lossy(opened: Cache, entry: CachedTeacher) -> str:
    """Return the codec of stored vectors if it changes figures, "" otherwise."""
    codec = opened.store(entry.contract).codec_name
    return "" if codec.startswith("float") else f" {codec}"


def _local_folder(origin: str) -> Path | None:
    """Return the folder of a model that is on this machine already; None for others."""
    from embedcache.errors import TeacherError
    from embedcache.teacher.resolve import ALIASES, resolve

    local = Path(origin).expanduser().is_dir() or (origin in ALIASES and ALIASES[origin].module)
    try:
        return resolve(origin).folder if local else None
    except TeacherError:
        return None


def _find_graph(path: Path) -> Path | None:
    """Return the ONNX graph that ``path`` means; None if torch runs the model."""
    if path.suffix == ".onnx":
        if not path.is_file():
            raise DataError(f"no ONNX graph at {path}; make one with 'distill export MODEL --to onnx'")
        return path
    # Folders from a hub often carry graphs without the final vector; exports of ours have a recipe.
    return path / _GRAPH if (path / _EXPORT_RECIPE).is_file() else None


def _open_onnx(graph: Path, device: str, compute_dtype: str) -> Model:
    if device not in ("auto", "cpu") or compute_dtype not in ("auto", "float32"):
        raise DataError(
            f"{graph} runs on the CPU in its own number format (found: --device {device}, --compute-dtype "
            f"{compute_dtype}); leave them out"
        )
    if graph.name not in (Path(_GRAPH).name, _INT8_GRAPH) or graph.parent.name != "onnx":
        raise DataError(f"{graph}: expected EXPORT/{_GRAPH} or EXPORT/onnx/{_INT8_GRAPH}")
    folder = graph.resolve().parent.parent

    @cache
    def encoder() -> Any:
        from distill.onnx import OnnxEncoder

        return OnnxEncoder(folder, int8=graph.name == _INT8_GRAPH)

    return Model(
        f"{folder.name}/{graph.name}",
        lambda texts: encoder().encode(texts),
        identity=lambda: f"{_weights_identity(folder)} {graph.name}",
        source=graph,
    )
