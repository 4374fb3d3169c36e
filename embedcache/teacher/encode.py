"""Encoder: a model run over many texts, tokenised ahead, in token-budget batches.

Batches within a window are formed by length, so padding is small. On a CPU each of several batches runs on
one thread, which wastes less than splitting every small product over all cores. The same window always gives
the same batches and the same vectors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.errors import InputError, TeacherError
from embedcache.pairs import split_pair
from embedcache.teacher.batching import EncodeCounts, EncodedTexts, token_budget_batches
from embedcache.teacher.inference import prepare, resolve_compute_dtype
from embedcache.teacher.modules import token_limit
from embedcache.teacher.openvino_model import OPENVINO, PROBES, TORCH, OpenVinoModel, takes_openvino
from embedcache.teacher.text_encoder import TextEncoder, WindowPlan
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts, fast_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.teacher import Teacher

DEFAULT_BATCH_TOKENS = {OPENVINO: 512, "cpu": 2048, "cuda": 65536, "mps": 16384}


class Encoder(TextEncoder):
    """Teacher ready to encode.

    Args:
        teacher: a loaded teacher.
        compute_dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        batch_tokens: tokens per forward batch, padding counted; default: by device and backend.
        threads: CPU threads for the forward pass; default: all cores.
        backend: ``torch``, ``openvino`` or ``auto``, see ``openvino_model.takes_openvino``; quantized
            teachers always run in OpenVINO.
        copy: leave the teacher's model as it is. False converts it, which needs memory for its weights once.

    Raises:
        InputError: if an argument is out of range, or the device cannot compute in the dtype.
        MissingExtraError: if the backend is not installed.
        TeacherError: if the model does not convert for it.
    """

    def __init__(
        self,
        teacher: Teacher,
        *,
        compute_dtype: str = "auto",
        batch_tokens: int | None = None,
        threads: int | None = None,
        backend: str = TORCH,
        copy: bool = True,
    ) -> None:
        for name, value in (("batch_tokens", batch_tokens), ("threads", threads)):
            if value is not None and value < 1:
                raise InputError(f"{name} {value}: expected at least 1")
        self.teacher = teacher
        model, contract = teacher.model, teacher.contract
        self.device = torch.device(model.device)
        if contract.quantization is not None:
            backend = OPENVINO
        if backend == OPENVINO and compute_dtype == "auto":
            compute_dtype = "float32"
        self.dtype = resolve_compute_dtype(compute_dtype, self.device)
        self.threads = threads or available_cores()
        # On a GPU a second stream launches work while the first waits for its result.
        self.streams = self.threads if self.device.type == "cpu" else 2
        self.counts = EncodeCounts()
        self._copy = copy
        self._call = {} if teacher.task is None else {"task": teacher.task}
        # A model may have fewer positions than the contract's length.
        self.tokenizer = fast_tokenizer(model, token_limit(model), contract.prompt, teacher.task)
        # Pooling may leave the prompt out.
        prompted = model.preprocess(["x"], prompt=contract.prompt, **self._call) if contract.prompt else {}
        self._prompt_length = {key: value for key, value in prompted.items() if key == "prompt_length"}
        self._model: Any = self._convert(backend) or self._prepare()
        place = OPENVINO if isinstance(self._model, OpenVinoModel) else self.device.type
        self.batch_tokens = batch_tokens or DEFAULT_BATCH_TOKENS.get(place, 16384)

    def _prepare(self, *, faster: bool = True) -> SentenceTransformer:
        model = prepare(self.teacher.model, self.dtype, faster=faster, copy=self._copy)
        # A classifier takes unscaled vectors.
        if self.teacher.head is not None and type(model[-1]).__name__ == "Normalize":
            del model[-1]
        return model

    def _convert(self, backend: str) -> OpenVinoModel | None:
        """Return the model for OpenVINO; None where torch runs it."""
        if not takes_openvino(backend, self.teacher.model, self.dtype):
            return None
        # Left padding makes the graph divide by zero.
        is_unfit = self._call or self.tokenizer is None or self.tokenizer.pads_left
        if is_unfit and backend == "auto":
            return None
        try:
            if self._call:
                raise TeacherError(f"{self.teacher.name} is called with a task: use backend torch")
            if self.tokenizer is None:
                raise TeacherError(f"{self.teacher.name} has no fast tokenizer, which backend openvino needs")
            tokenized = self.tokenizer(PROBES)
            examples = [padded_features(tokenized, np.arange(n), self.tokenizer) for n in (2, len(PROBES))]
            constants, model = self._prompt_length, self._prepare(faster=False)
            settings = {"threads": self.threads, "streams": self.streams}
            quantizes = self.teacher.contract.quantization is not None
            return OpenVinoModel(model, examples, constants, quantizes=quantizes, **settings)
        except TeacherError:
            if backend == "auto":
                return None
            raise

    @property
    def provenance(self) -> dict[str, object]:
        """Settings and versions that may change a vector's last bits; recorded with every shard."""
        import sentence_transformers
        import transformers

        return {
            "compute_dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "sentence_transformers": sentence_transformers.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **(self._model.provenance if isinstance(self._model, OpenVinoModel) else {}),
        }

    def start_stream(self) -> None:
        """Prepare the calling thread for forward passes."""
        # In OpenMP the thread count belongs to the calling thread, so other threads keep theirs.
        if self.device.type == "cpu":
            torch.set_num_threads(max(1, self.threads // self.streams))

    def _plan_window(self, texts: Sequence[str]) -> WindowPlan:
        """Tokenise a window and form its batches."""
        if self.teacher.head is not None:
            self.teacher.head.refuse_others(texts, f"the classifier in {self.teacher.folder}")
        features: Callable[[NDArray[np.int64]], dict[str, Any]]
        if self.tokenizer is None:
            # Characters stand in for tokens when batches are formed. What the model cuts is not known.
            lengths = np.array([len(text) for text in texts], dtype=np.int64) // 4
            tokens, truncated = np.zeros(len(texts), dtype=np.int32), np.zeros(len(texts), dtype=np.bool_)
            features = partial(self._own_features, texts)
        else:
            tokenized = self.tokenizer(texts)
            lengths, truncated = tokenized.lengths, tokenized.truncated
            tokens = lengths.astype(np.int32)
            features = partial(padded_features, tokenized, tokenizer=self.tokenizer)
        vectors = np.empty((len(texts), self.teacher.dimension), np.float32)
        batches = token_budget_batches(lengths, self.batch_tokens)
        forward = partial(self._forward_into, vectors, features_of=features)
        return WindowPlan(EncodedTexts(vectors, tokens, truncated), batches, forward)

    def _own_features(self, texts: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """Model input of ``rows`` by the model's own preprocessing."""
        inputs = [split_pair(texts[i]) or texts[i] for i in rows]
        kind = type(self._model[0]).__name__
        if kind != "Transformer" and any(isinstance(text, tuple) for text in inputs):
            raise InputError(
                f"the corpus holds pairs of texts, and {self.teacher.name} (its first module is a {kind}) "
                "has no form for pairs: take a BERT-like transformer, or a corpus of single texts"
            )
        features: dict[str, Any] = self._model.preprocess(
            inputs, prompt=self.teacher.contract.prompt or None, **self._call
        )
        return features

    def _forward_into(
        self,
        out: Vectors,
        rows: NDArray[np.int64],
        features_of: Callable[[NDArray[np.int64]], dict[str, Any]],
    ) -> int:
        """Forward ``rows``, halved as often as they do not fit into memory; return their tokens."""
        features = {**self._prompt_length, **features_of(rows)}
        tokens = int(features["attention_mask"].sum()) if "attention_mask" in features else 0
        try:
            out[rows] = self.forward(features)
            return tokens
        except torch.OutOfMemoryError as error:
            if len(rows) == 1:
                raise TeacherError(
                    f"out of memory on a single text of {tokens} tokens; "
                    "lower max_length or use another device"
                ) from error
        # Outside the except block: inside it, the error's traceback keeps the failed batch's tensors alive.
        del features
        torch.cuda.empty_cache()
        for half in np.array_split(rows, 2):
            self._forward_into(out, half, features_of)
        return tokens

    def forward(self, features: dict[str, Any]) -> Vectors:
        """Forward one padded batch; float32 of shape (rows, dimension).

        Nothing else runs the model.
        """
        is_cuda = self.device.type == "cuda"
        moved = {}
        for name, value in features.items():
            if isinstance(value, torch.Tensor):
                # Only out of pinned memory does a copy not block.
                value = (value.pin_memory() if is_cuda else value).to(self.device, non_blocking=is_cuda)
            moved[name] = value
        with torch.inference_mode():
            vectors = self._model(moved, **self._call)["sentence_embedding"]
            if self.teacher.head is None:
                vectors = vectors[:, : self.teacher.contract.truncate_dim]
            found = to_host(vectors.float())
        return found if self.teacher.head is None else self.teacher.head.logits(found)


def to_host(tensor: torch.Tensor) -> Vectors:
    """Copy a tensor to the host; from CUDA through pinned memory, waiting for this copy alone."""
    if tensor.device.type != "cuda":
        return np.asarray(tensor.cpu().numpy())
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))
    copied.synchronize()
    return np.asarray(host.numpy())


def padded_features(
    tokenized: TokenizedTexts, rows: NDArray[np.int64], tokenizer: FastTokenizer
) -> dict[str, torch.Tensor]:
    """Padded model input of ``rows``: int64 tensors of shape (rows, longest)."""
    lengths = tokenized.lengths[rows]
    width = int(lengths.max())
    columns = np.arange(width)
    shift = (width - lengths)[:, None] if tokenizer.pads_left else 0
    position = columns[None, :] - shift
    real = (position >= 0) & (position < lengths[:, None])
    ids = np.full((len(rows), width), tokenizer.pad_id, dtype=np.int64)
    ids[real] = tokenized.ids[(tokenized.offsets[rows][:, None] + position)[real]]
    features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(np.int64))}
    if tokenizer.uses_token_types:
        types = np.zeros_like(real) if tokenized.first is None else position >= tokenized.first[rows][:, None]
        features["token_type_ids"] = torch.from_numpy((real & types).astype(np.int64))
    return features


def cosines_to_whole(encoder: TextEncoder, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the cosines of a quantized teacher's vectors to those of the whole model, shape (n,)."""
    teacher = encoder.teacher
    whole = replace(teacher, contract=replace(teacher.contract, quantization=None))
    found = encoder.encode(texts).vectors.astype(np.float64)
    wanted = Encoder(whole, compute_dtype="float32").encode(texts).vectors.astype(np.float64)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines: NDArray[np.float64] = (found * wanted).sum(axis=1) / np.maximum(lengths, 1e-30)
    return cosines


def available_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
