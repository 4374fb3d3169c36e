"""Options of a teacher, and of encoding with it.

A model has two outputs: sentence vectors, and the logits of the classifier in its folder. Each output
has its own contract and its own build. A cache stores logits as vectors of a second teacher, ``NAME.logits``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embedcache.errors import InputError

EMBEDDING, LOGITS, PROJECTION = "embedding", "logits", "projection"
OUTPUTS = (EMBEDDING, LOGITS)
"""Outputs of a build. A projection is computed from stored vectors, see ``embedcache.projection``."""

QUANTIZATIONS = {"int8": "openvino-int8"}
"""Value of a contract's ``quantization`` by the word of the options."""

DEFAULT_SHARD_ROWS = 16384
ENGINES = ("ray",)


@dataclass(frozen=True)
class TeacherOptions:
    """Teacher to load, and the settings of its contract; None for the model's own.

    Attributes:
        spec: alias, hub id with optional ``@revision``, local folder, or ``openai:MODEL[@URL]``.
        pooling: pooling of token vectors: ``mean``, ``cls``, ``cls-before-pooler``, ``pooler``, ``last``.
        prompt: text put before every sentence.
        prompt_name: name of one of the model's own prompts, instead of its text.
        max_length: truncate texts to this many tokens.
        truncate_dim: leading dimensions that are kept; asked for where the teacher is served.
        normalize: scale vectors to length one.
        quantize: ``int8`` quantizes the weights, in OpenVINO; this is another teacher.
        name: name in the cache; default: the alias, the folder's name or the hub id's last part, followed by
            ``.TASK`` and ``.PROMPT_NAME`` where these are given.
        trust_remote_code: run code that comes with the model.
        arguments: loading arguments: ``tokenizer.K=V``, ``config.K=V``, ``model.K=V``.
        task: route of a Router model, or value of ``task`` for models that are called with one.
    """

    spec: str | Path
    pooling: str | None = None
    prompt: str | None = None
    max_length: int | None = None
    truncate_dim: int | None = None
    normalize: bool | None = None
    quantize: str | None = None
    name: str | None = None
    trust_remote_code: bool = False
    prompt_name: str | None = None
    arguments: Sequence[str] = ()
    task: str | None = None

    def __post_init__(self) -> None:
        # Hashable, and equal for lists and tuples.
        given = (self.arguments,) if isinstance(self.arguments, str) else tuple(self.arguments)
        object.__setattr__(self, "arguments", given)
        if self.prompt is not None and self.prompt_name is not None:
            raise InputError(
                f"prompt {self.prompt[:40]!r} and prompt_name {self.prompt_name!r}: leave one of them out"
            )
        if LOGITS in (self.prompt_name, self.task) and self.name is None:
            raise InputError(f"NAME.{LOGITS} is a classifier's: give a name as well (--teacher-name)")

    def name_for(self, model: str) -> str:
        """Return the teacher's name in a cache, from the name of its model."""
        if self.name is not None:
            return self.name
        parts = [part for part in (self.task, self.prompt_name) if part is not None]
        return ".".join([model, *(re.sub(r"[^\w.-]", "-", part) for part in parts)])


@dataclass(frozen=True)
class EncodeOptions:
    """Output that a build stores, and how the teacher computes it.

    Attributes:
        output: ``embedding``, or ``logits`` (of the classifier in the teacher's folder), which are stored as
            teacher ``NAME.logits``.
        codec: ``float32``, ``float16``, ``int8`` or ``pq``; default: as the cache stores this teacher, else
            ``float16``. Logits are stored as floats.
        store: ``arrow`` or ``lmdb``; default: as the cache stores this teacher, else ``arrow``.
        shard_rows: vectors per shard.
        token_embeddings: also keep the teacher's table of input token embeddings.
        compute_dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ...
        backend: ``torch``, ``openvino``, or ``auto``: OpenVINO where it is installed and the teacher, of at
            least 10 million parameters, computes on a CPU in float32.
        batch_tokens: tokens per forward batch, or request; default: by device.
        threads: CPU threads; default: all cores.
        devices: one process a device, such as ``0,1`` (GPUs), ``cpu,cpu`` or ``all`` (all GPUs); threads are
            divided among them. A script that calls ``embedcache.build`` with it needs
            ``if __name__ == "__main__":``.
        requests: requests in flight to a served teacher; default: 8.
        engine: ``ray``: workers in a Ray cluster, one a GPU, or one a machine where there are no GPUs; each
            has ``threads`` CPUs, default: all of its machine.
        address: address of the cluster; default: ``RAY_ADDRESS``, else this machine alone.
        part: ``I/N``: encode the I-th of N parts of the texts, which their keys fall into.
    """

    output: str = "embedding"
    codec: str | None = None
    store: str | None = None
    shard_rows: int = DEFAULT_SHARD_ROWS
    token_embeddings: bool = False
    compute_dtype: str = "auto"
    device: str = "auto"
    backend: str = "auto"
    batch_tokens: int | None = None
    threads: int | None = None
    devices: str | None = None
    requests: int | None = None
    engine: str | None = None
    address: str | None = None
    part: str | None = None


def with_quantization(encode: EncodeOptions, quantize: str | None) -> EncodeOptions:
    """Return the options of encoding for a teacher that may be quantized: OpenVINO on a CPU, in float32."""
    if quantize is not None:
        is_free = encode.device == "auto" and encode.devices is None
        encode = replace(encode, backend="openvino", device="cpu" if is_free else encode.device)
    if encode.backend == "openvino" and encode.compute_dtype == "auto":
        encode = replace(encode, compute_dtype="float32")
    return encode


def check_output(output: str) -> None:
    """Raise ``InputError`` unless ``output`` is one of ``OUTPUTS``."""
    if output not in OUTPUTS:
        raise InputError(f"output {output!r}: expected {' or '.join(OUTPUTS)}, one output a build")


def parse_devices(text: str) -> list[str]:
    """Parse ``0,1``, ``cpu,cpu`` or ``all`` into names of PyTorch's devices.

    Raises:
        InputError: if a name is empty, or all GPUs are asked for and there are none.
    """
    import torch

    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        names = [str(number) for number in range(torch.cuda.device_count())]
    if not names or not all(names):
        found = "no GPU was found" if not names else "a name is empty"
        raise InputError(f"devices {text!r}: {found}; expected GPUs such as 0,1, or devices such as cpu,cpu")
    return [f"cuda:{name}" if name.isdigit() else name for name in names]
