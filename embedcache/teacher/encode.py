"""Encoder: a teacher run over many texts, tokenised ahead, in token-budget batches, results in order.

Texts come in windows. While one window is in the forward pass, the next is tokenised and the one before is
written by the caller. Batches within a window are formed by length, so padding is small. On a CPU each of
several batches runs on one thread, which wastes less than splitting every small product over all cores. The
same window always gives the same batches and the same vectors.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.errors import InputError, TeacherError
from embedcache.pairs import split_pair
from embedcache.teacher.batching import EncodedTexts, EncodeTimes, token_budget_batches
from embedcache.teacher.inference import prepare, resolve_compute_dtype
from embedcache.teacher.tokenize import FastTokenizer, TokenizedTexts, fast_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.load import Teacher

DEFAULT_BATCH_TOKENS = {"cpu": 2048, "cuda": 65536, "mps": 16384}
_WINDOW = 16384
_WINDOWS_AHEAD = 2
_POLL_SECONDS = 0.2


class Encoder:
    """Teacher ready to encode.

    Args:
        teacher: the loaded teacher.
        compute_dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        batch_tokens: tokens per forward batch, padding counted; default: by device.
        threads: CPU threads for the forward pass; default: all cores.
        optimise: use the faster CPU layers; False only to measure their gain.
        also: the same model as a teacher of another output, see :mod:`embedcache.teacher.outputs`; its
            output comes from the same pass, to the right of the teacher's vectors.

    Attributes:
        teachers: the teacher of each output, from left to right.
        times: seconds and counts so far.
        streams: batches that run at once.

    Raises:
        InputError: if an argument is out of range, or the device cannot compute in the dtype.
    """

    def __init__(
        self,
        teacher: Teacher,
        *,
        compute_dtype: str = "auto",
        batch_tokens: int | None = None,
        threads: int | None = None,
        optimise: bool = True,
        also: Teacher | None = None,
    ) -> None:
        for flag, value in (("--batch-tokens", batch_tokens), ("--threads", threads)):
            if value is not None and value < 1:
                raise InputError(f"{flag} {value}: expected at least 1")
        self.teacher = teacher
        self.teachers = (teacher,) if also is None else (teacher, also)
        self.device = torch.device(teacher.model.device)
        self.dtype = resolve_compute_dtype(compute_dtype, self.device)
        self.batch_tokens = batch_tokens or DEFAULT_BATCH_TOKENS.get(self.device.type, 16384)
        self.threads = threads or available_cores()
        self.times = EncodeTimes()
        contract = teacher.contract
        self.tokenizer = fast_tokenizer(teacher.model, contract.max_length, contract.prompt)
        self._model = prepare(teacher.model, self.dtype, optimise=optimise)
        self._scales = False
        if any(one.head is not None for one in self.teachers):
            # A classifier takes unscaled vectors; those of the teacher itself are scaled in _output.
            self._scales = _drop_last_normalize(self._model)
        self._prompt_length = self._measure_prompt()
        # On a GPU a second stream launches work while the first waits for its result.
        self.streams = self.threads if self.device.type == "cpu" else 2

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
        }

    @property
    def width(self) -> int:
        """Width of all outputs together."""
        return sum(one.dimension for one in self.teachers)

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode texts at once; results in order."""
        windows = [texts[i : i + _WINDOW] for i in range(0, len(texts), _WINDOW)]
        parts = list(self.encode_windows(windows))
        if not parts:
            return EncodedTexts(
                np.empty((0, self.width), np.float32),
                np.empty(0, np.int32),
                np.empty(0, np.bool_),
            )
        return EncodedTexts(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )

    def encode_windows(
        self, windows: Iterable[Sequence[str]], on_wait: Callable[[], None] | None = None
    ) -> Generator[EncodedTexts, None, None]:
        """Encode windows of texts, working ahead.

        Vectors may hold NaN or infinity; the caller checks, because it knows the rows' names.

        Args:
            windows: the texts, a window at a time.
            on_wait: called a few times a second while a window is being encoded.

        Yields:
            The result of each window, in order.

        Raises:
            InputError: if a pair is given to a classifier taught on single texts, or the other way round.
        """
        source = iter(windows)
        forward_pool = ThreadPoolExecutor(self.streams, "forward", initializer=self.start_stream)
        tokenise_pool = ThreadPoolExecutor(1, "tokenise")
        ahead: deque[Future[_Window]] = deque()
        try:
            while True:
                while len(ahead) < _WINDOWS_AHEAD and (texts := next(source, None)) is not None:
                    self._refuse_others(texts)
                    ahead.append(tokenise_pool.submit(self._start_window, texts, forward_pool))
                if not ahead:
                    return
                yield ahead.popleft().result().finish(on_wait)
        finally:
            tokenise_pool.shutdown(cancel_futures=True)
            forward_pool.shutdown(cancel_futures=True)

    def _refuse_others(self, texts: Sequence[str]) -> None:
        for teacher in self.teachers:
            if teacher.head is not None:
                teacher.head.refuse_others(texts, f"the classifier in {teacher.folder}")

    def start_stream(self) -> None:
        """Prepare the calling thread for forward passes."""
        # In OpenMP the thread count belongs to the calling thread, so other threads keep theirs.
        if self.device.type == "cpu":
            torch.set_num_threads(max(1, self.threads // self.streams))

    def _start_window(self, texts: Sequence[str], pool: ThreadPoolExecutor) -> _Window:
        started = time.perf_counter()
        if self.tokenizer is None:
            tokenized = None
            lengths = np.array([len(text) for text in texts], dtype=np.int64)
            # Without a fast tokenizer, characters stand in for tokens when batches are formed.
            batches = token_budget_batches(lengths, self.batch_tokens * 4)
            seen = np.zeros(len(texts), dtype=np.int32)
            truncated = np.zeros(len(texts), dtype=np.bool_)
        else:
            tokenized = self.tokenizer(texts)
            batches = token_budget_batches(tokenized.lengths, self.batch_tokens)
            seen = tokenized.lengths.astype(np.int32)
            truncated = tokenized.truncated
        result = EncodedTexts(np.empty((len(texts), self.width), np.float32), seen, truncated)
        window = _Window(result)
        for rows in batches:
            window.pending.append(pool.submit(self._forward_into, result.vectors, rows, texts, tokenized))
        self.times.add(tokenise=time.perf_counter() - started)
        return window

    def _forward_into(
        self, out: Vectors, rows: NDArray[np.int64], texts: Sequence[str], tokenized: TokenizedTexts | None
    ) -> None:
        started = time.perf_counter()
        features = self._features(rows, texts, tokenized)
        tokens = int(features["attention_mask"].sum()) if "attention_mask" in features else 0
        too_large = False
        try:
            out[rows] = self.forward(features)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise TeacherError(
                    f"out of memory on a single text of {tokens} tokens; "
                    "lower --max-length or use another device"
                ) from error
            too_large = True
        # Outside the except block: inside it, the error's traceback keeps the failed batch's tensors alive.
        if too_large:
            del features
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.times.add(halved=1)
            middle = len(rows) // 2
            self._forward_into(out, rows[:middle], texts, tokenized)
            self._forward_into(out, rows[middle:], texts, tokenized)
            return
        self.times.add(rows=len(rows), tokens=tokens, forward=time.perf_counter() - started)

    def _features(
        self, rows: NDArray[np.int64], texts: Sequence[str], tokenized: TokenizedTexts | None
    ) -> dict[str, Any]:
        if tokenized is None or self.tokenizer is None:
            prompt = self.teacher.contract.prompt or None
            asked = [split_pair(texts[i]) or texts[i] for i in rows]
            if any(isinstance(text, tuple) for text in asked):
                self._refuse_pairs()
            features: dict[str, Any] = self._model.preprocess(asked, prompt=prompt)
            return features
        features = dict(padded_features(tokenized, rows, self.tokenizer))
        if self._prompt_length is not None:
            features["prompt_length"] = self._prompt_length
        return features

    def _refuse_pairs(self) -> None:
        """Refuse pairs unless the model's first module takes two texts."""
        if (kind := type(self._model[0]).__name__) != "Transformer":
            raise InputError(
                f"the corpus holds pairs of texts, and {self.teacher.name} (its first module is a {kind}) "
                "has no form for pairs: take a BERT-like transformer, or a corpus of single texts"
            )

    def forward(self, features: dict[str, Any]) -> Vectors:
        """Forward one padded batch; float32 of shape (rows, width)."""
        moved = {
            name: value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in features.items()
        }
        with torch.inference_mode():
            vectors = self._model(moved)["sentence_embedding"]
            outputs = [self._output(one, vectors) for one in self.teachers]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)

    def _output(self, teacher: Teacher, vectors: torch.Tensor) -> Vectors:
        if teacher.head is not None:
            return teacher.head.logits(vectors.float().cpu().numpy())
        if self._scales:
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        if teacher.contract.truncate_dim is not None:
            vectors = vectors[:, : teacher.contract.truncate_dim]
        return np.asarray(vectors.float().cpu().numpy(), dtype=np.float32)

    def _measure_prompt(self) -> int | None:
        prompt = self.teacher.contract.prompt
        if not prompt or self.tokenizer is None:
            return None
        length = self.teacher.model.preprocess(["x"], prompt=prompt).get("prompt_length")
        return None if length is None else int(length)


@dataclass
class _Window:
    result: EncodedTexts
    pending: list[Future[None]] = field(default_factory=list)

    def finish(self, on_wait: Callable[[], None] | None) -> EncodedTexts:
        pending = set(self.pending)
        while pending:
            done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if on_wait is not None:
                on_wait()
        return self.result


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


def available_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _drop_last_normalize(model: SentenceTransformer) -> bool:
    """Remove scaling to length one from a model's end; False if there is none."""
    name, last = list(model.named_children())[-1]
    if type(last).__name__ != "Normalize":
        return False
    del model[int(name)]
    return True


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
