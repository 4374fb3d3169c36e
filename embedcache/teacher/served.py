"""Served teacher: a model behind an OpenAI-compatible ``/v1/embeddings`` (vLLM, TEI, Infinity, hosted APIs).

Its identity is weaker than a digest of weights: the contract names server and model, and the vectors of fixed
texts (``embedcache.teacher.canary``) are compared with those known before, at each start and with each
window of texts.
"""

from __future__ import annotations

import base64
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import SERVED, Contract
from embedcache.errors import InputError, MissingExtraError, ServedTeacherError
from embedcache.pairs import SEPARATOR
from embedcache.teacher import canary
from embedcache.teacher.batching import EncodeCounts, EncodedTexts, token_budget_batches
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.teacher.resolve import Server, resolve
from embedcache.teacher.teacher import Teacher
from embedcache.teacher.text_encoder import TextEncoder, WindowPlan

DEFAULT_REQUESTS = 8
DEFAULT_BATCH_TOKENS = 8192
# Texts a request: the smallest default limit of common servers, TEI's --max-client-batch-size.
_TEXTS = 32
# The client waits 0.5, 1, 2, 4, then 8 s between tries, less up to a quarter: 65 to 87 s in all, so a server
# may take a minute to start again. At the start of a build a wrong address shows in a quarter of that.
_RETRIES = 14
_RETRIES_AT_START = 5
_SECONDS, _CONNECT_SECONDS = 300.0, 5.0
_CHARACTERS_PER_TOKEN = 4
_HINTS = {401: " (is EMBEDCACHE_API_KEY set?)", 404: " (the URL usually ends in /v1)"}
_LOCAL = (
    *("pooling", "max_length", "normalize", "quantize", "trust_remote_code"),
    *("prompt_name", "arguments", "task"),
    *("output", "token_embeddings", "compute_dtype", "device", "devices", "engine", "backend", "threads"),
)


def refuse_local_settings(options: TeacherOptions | EncodeOptions) -> None:
    """Refuse settings of a model that runs here.

    Raises:
        InputError: if there are any; it names them.
    """
    defaults = {one.name: one.default for one in fields(options)}
    # Backend torch is what look-ups of single texts set, for any teacher.
    asked = [
        name
        for name in _LOCAL
        if name in defaults and getattr(options, name) not in (defaults[name], "torch")
    ]
    if asked:
        raise InputError(f"{', '.join(asked)}: a served teacher has none of these settings. Leave them out")


class Client:
    """Client of one served model.

    Args:
        server: the model.
        dimensions: width to ask for; None for the model's own.
        prompt: text put before every text.
        retries: tries after the first of a request that fails on its way or with 408, 409, 429 or 5xx.

    Raises:
        MissingExtraError: if the package ``openai`` is not installed.
        InputError: if the environment has headers for OpenAI, and the server is another.
    """

    def __init__(self, server: Server, dimensions: int | None, prompt: str, retries: int) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError(
                "served teachers need pip install 'embedcache-distill[served]'"
            ) from error
        self.server, self.prompt, self.retries = server, prompt, retries
        self._dimensions = dimensions or openai.omit
        url = urlsplit(server.url)
        is_openai = url.scheme == "https" and url.hostname == "api.openai.com"
        if not is_openai and os.environ.get("OPENAI_CUSTOM_HEADERS"):
            raise InputError(f"OPENAI_CUSTOM_HEADERS would be sent to {url.hostname}: unset it")
        # Always given: the client would send OPENAI_API_KEY to any host.
        names = ("EMBEDCACHE_API_KEY", "OPENAI_API_KEY") if is_openai else ("EMBEDCACHE_API_KEY",)
        key = next(filter(None, map(os.environ.get, names)), "none")
        # The client adds these from OPENAI_... variables, which are not meant for other hosts.
        others = {} if is_openai else {"OpenAI-Organization": openai.omit, "OpenAI-Project": openai.omit}
        self._client = openai.OpenAI(
            api_key=key,
            base_url=server.url,
            timeout=openai.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            max_retries=retries,
            default_headers=cast("Any", {"Authorization": f"Bearer {key}", **others}),
        )
        weakref.finalize(self, self._client.close)

    def vectors(self, texts: Sequence[str], retries: int | None = None) -> tuple[Vectors, int]:
        """Return the vectors of texts, float32 of shape (n, d), in order, and their tokens (0: not counted).

        Args:
            texts: one or more texts.
            retries: default: as the client.

        Raises:
            ServedTeacherError: if the server does not answer, refuses, or gives no vector for a text.
        """
        import openai

        client = self._client if retries is None else self._client.with_options(max_retries=retries)
        try:
            answer = client.embeddings.with_raw_response.create(
                model=self.server.model,
                input=[self.prompt + text for text in texts],
                dimensions=self._dimensions,
                encoding_format="base64",
            )
            # Read here: the client's own parsing takes three times as long, and checks less.
            return _read(answer.http_response.json(), len(texts))
        except openai.APIStatusError as error:
            found = (
                f"HTTP {error.status_code}{_HINTS.get(error.status_code, '')} {_line(error.response.text)}"
            )
        except openai.OpenAIError as error:
            found = _line(f"{error} ({error.__cause__ or type(error).__name__})")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found = f"an answer that cannot be used, {_line(f'{type(error).__name__}: {error}')}"
        raise ServedTeacherError(
            f"{self.server.spec}: {found}, for {len(texts)} texts (the first: {texts[0][:60]!r}). What was "
            "stored before is kept: check the server and run the same command again"
        )


def _line(text: str) -> str:
    """Return the beginning of a server's own words, without control characters."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:300]


def _read(answer: Any, count: int) -> tuple[Vectors, int]:
    """Return the vectors of an answer in the order of the texts, and the tokens counted."""
    indices = [one["index"] for one in answer["data"]]
    if sorted(indices) != list(range(count)):
        raise ValueError(f"{len(indices)} vectors for {count} texts, with the indices {sorted(indices)}")
    found = {one["index"]: one["embedding"] for one in answer["data"]}
    rows = [_vector(found[place]) for place in range(count)]
    if len(widths := {len(row) for row in rows}) > 1:
        raise ValueError(f"vectors of {' and '.join(map(str, sorted(widths)))} dimensions")
    return np.stack(rows), int((answer.get("usage") or {}).get("prompt_tokens") or 0)


def _vector(value: object) -> NDArray[np.float32]:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    vector = np.asarray(value, dtype=np.float32)
    if vector.ndim != 1:
        raise ValueError(f"a vector of shape {vector.shape}")
    return vector


@dataclass(frozen=True)
class ServedTeacher(Teacher):
    """Teacher behind a server; it has no model here.

    Attributes:
        client: asks the server.
        canary: vectors of the canary's texts, float32, shape (16, d).
    """

    client: Client = field(kw_only=True)
    canary: Vectors = field(kw_only=True, compare=False)


def load_served(
    spec: str | Path,
    *,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    name: str | None = None,
    retries: int = _RETRIES,
) -> ServedTeacher:
    """Ask a server for the canary's vectors and derive the teacher's contract from them.

    Args:
        spec: ``openai:MODEL[@URL]``.
        prompt: text put before every text.
        truncate_dim: width to ask the server for; default: the model's own.
        name: name in a cache; default: the last part of MODEL.
        retries: tries after the first, while the teacher encodes; at most 5 now.

    Raises:
        TeacherError: if the spec cannot be read.
        ServedTeacherError: if the server does not answer, or its vectors cannot be used.
        MissingExtraError: if the package ``openai`` is not installed.
    """
    source = resolve(spec)
    server = cast("Server", source.server)
    client = Client(server, truncate_dim, prompt or "", retries)
    vectors, _ = client.vectors(canary.TEXTS, min(retries, _RETRIES_AT_START))
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise ServedTeacherError(f"{server.spec}: the vector of a test text is zero or not finite")
    if truncate_dim not in (None, vectors.shape[1]):
        raise ServedTeacherError(
            f"{server.spec}: found {vectors.shape[1]} dimensions, asked for {truncate_dim}. Leave them out"
        )
    contract = Contract(
        weights=server.spec,
        tokenizer=SERVED,
        architecture=f"{SERVED}, canary {canary.VERSION}",
        pooling=SERVED,
        modules="",
        prompt=prompt or "",
        max_length=0,
        # 16-bit arithmetic may miss a length of one by this.
        normalize=bool(np.allclose(lengths, 1.0, atol=0.01)),
        truncate_dim=truncate_dim,
        dimension=vectors.shape[1],
    )
    source = replace(source, name=name or source.name)
    return ServedTeacher(source, cast("Any", None), contract, client=client, canary=vectors)


class ServedEncoder(TextEncoder):
    """Served teacher ready to encode; the server's token counts are not known by text.

    Args:
        teacher: the teacher.
        batch_tokens: tokens a request, a token for every four characters.
        requests: requests in flight.

    Raises:
        InputError: if an argument is out of range.
    """

    tokenizer = None

    def __init__(
        self, teacher: ServedTeacher, *, batch_tokens: int | None = None, requests: int | None = None
    ) -> None:
        for name, value in (("batch_tokens", batch_tokens), ("requests", requests)):
            if value is not None and value < 1:
                raise InputError(f"{name} {value}: expected at least 1")
        self.teacher: ServedTeacher = teacher
        self.canary = teacher.canary
        self.batch_tokens = batch_tokens or DEFAULT_BATCH_TOKENS
        self.streams = requests or DEFAULT_REQUESTS
        self.counts = EncodeCounts()

    @property
    def provenance(self) -> dict[str, object]:
        """Provenance of the vectors, recorded with every shard."""
        return {"compute_dtype": SERVED, "device": SERVED}

    def lengths(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Estimated tokens of each text, prompt included, shape (n,)."""
        extra = len(self.teacher.client.prompt)
        return np.array([extra + len(text) for text in texts], dtype=np.int64) // _CHARACTERS_PER_TOKEN + 1

    def batches(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Rows of each request."""
        budgets = token_budget_batches(self.lengths(texts), self.batch_tokens)
        return [rows[start : start + _TEXTS] for rows in budgets for start in range(0, len(rows), _TEXTS)]

    def estimate(self, texts: Sequence[str]) -> tuple[int, int]:
        """Estimate the tokens of texts, and the requests they take."""
        return int(self.lengths(texts).sum()), len(self.batches(texts))

    def _plan_window(self, texts: Sequence[str]) -> WindowPlan:
        """Form a window's requests."""
        if pair := next((text for text in texts if SEPARATOR in text), None):
            shown = pair[:60].replace(SEPARATOR, " + ")
            raise InputError(f"{self.teacher.name} is served, and takes no pairs of texts, found {shown!r}")
        vectors = np.empty((len(texts), self.teacher.dimension), dtype=np.float32)

        def request(rows: NDArray[np.int64]) -> int:
            vectors[rows], tokens = self._request([texts[row] for row in rows])
            return tokens

        unknown = np.zeros(len(texts), dtype=np.int32)
        return WindowPlan(EncodedTexts(vectors, unknown, unknown > 0), self.batches(texts), request)

    def _request(self, texts: Sequence[str], retries: int | None = None) -> tuple[Vectors, int]:
        found, tokens = self.teacher.client.vectors(texts, retries)
        if found.shape[1] != self.teacher.dimension:
            raise ServedTeacherError(
                f"{self.teacher.client.server.spec}: vectors of {found.shape[1]} dimensions, expected "
                f"{self.teacher.dimension}; nothing of this shard was stored. Serve the old model again"
            )
        return found, tokens

    def confirm(self, *, retries: int | None = None) -> None:
        """Compare the canary: it must be as at the start.

        Args:
            retries: tries after the first; default: as for texts.

        Raises:
            ContractMismatchError: if the server runs another model by now.
            ServedTeacherError: if it does not answer.
        """
        before, (now, _) = self.teacher.canary, self._request(canary.TEXTS, retries)
        wrong = canary.cosines(before, now) < canary.LEAST_COSINE
        spec = self.teacher.client.server.spec
        canary.refuse_other_model(spec, canary.TEXTS, before, now, wrong, "at the start")
