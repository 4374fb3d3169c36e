"""Load any sentence encoder, frozen, together with the contract of its vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.contract import Contract
from embedcache.errors import PoolingNeededError, TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.digest import architecture_digest, read_json, tokenizer_digest, weights_digest
from embedcache.teacher.layout import read_modules, transformer_subfolder
from embedcache.teacher.resolve import ModelSource, resolve

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Accepted words -> the one word the contract stores. SimCSE calls the raw [CLS] state "cls before pooler";
# what its code calls "cls" is the pooler output.
POOLINGS = {
    "mean": "mean",
    "cls": "cls",
    "cls-before-pooler": "cls",
    "pooler": "pooler",
    "last": "lasttoken",
}
_UNLIMITED = 1_000_000


@dataclass(frozen=True)
class Teacher:
    """A loaded, frozen teacher.

    Attributes:
        source: where the model came from.
        model: the sentence-transformers model, in eval mode, gradients off.
        contract: what determines its vectors.
        head: the classifier whose logits are its vectors; None where the model's own vectors are.
    """

    source: ModelSource
    model: SentenceTransformer
    contract: Contract
    head: ClassifierHead | None = None

    @property
    def name(self) -> str:
        """The short name under which a cache lists the teacher."""
        return self.source.name

    @property
    def folder(self) -> Path:
        """The local folder that holds the model."""
        return self.source.folder

    @property
    def dimension(self) -> int:
        """Width of a vector."""
        return self.contract.dimension


def load_teacher(
    spec: str | Path,
    *,
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    name: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Teacher:
    """Load a teacher and work out its contract.

    Args:
        spec: alias, hub id with optional ``@revision``, or local folder (of sentence-transformers or of plain
            transformers).
        pooling: one of ``POOLINGS``; needed for a plain transformers folder, an override for any other.
        prompt: text put before every sentence; default: the alias's or the model's own default prompt.
        max_length: tokens after which a text is cut; default: the model's own.
        truncate_dim: keep so many leading dimensions.
        normalize: scale vectors to length one; default: what the model does.
        name: short name in the cache; default: the alias, the folder's name or the hub id's last part.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ...
        trust_remote_code: run code that comes with the model. Off by default.

    Raises:
        TeacherError: if the teacher is unknown, has no weights, or its pooling cannot be known or computed.
    """
    import torch

    source = resolve(spec)
    if name is not None:
        source = replace(source, name=name)
    if not re.fullmatch(r"[\w][\w.-]*", source.name):
        raise TeacherError(
            f"{source.name!r} cannot name a teacher in a cache: use letters, digits, '.', '_' and '-'; "
            "choose one with --teacher-name"
        )
    folder = source.folder
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise TeacherError(f"{folder} is no model folder: it has neither config.json nor modules.json")
    subfolder = transformer_subfolder(folder)
    weights, tensor_names = weights_digest(folder, subfolder)
    pooling = _pooling_choice(source, pooling)
    if pooling == "pooler" and not any("pooler.dense.weight" in tensor for tensor in tensor_names):
        raise TeacherError(
            f"{folder} has no pooler weights, so --pooling pooler would use random ones; "
            "choose another pooling (mean, cls, last)"
        )
    model = _load_model(folder, subfolder, pooling, trust_remote_code)
    _refuse_random_weights(model, folder, subfolder)
    if normalize is not None:
        _set_normalize(model, normalize)
    model.requires_grad_(False)
    model.eval()
    resolved = _resolve_device(device)
    try:
        model.to(torch.device(resolved))
    except (RuntimeError, AssertionError) as error:
        raise TeacherError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error

    if max_length is not None:
        if max_length < 1:
            raise TeacherError(f"--max-length {max_length}: expected at least 1 token")
        limit = _position_limit(model)
        if limit is not None and max_length > limit:
            raise TeacherError(
                f"--max-length {max_length}: {source.name} has positions for {limit} tokens only"
            )
        model.max_seq_length = max_length
    width = _width(model, folder)
    if truncate_dim is not None and not 0 < truncate_dim <= width:
        raise TeacherError(f"--truncate-dim {truncate_dim}: {source.name} gives {width} dimensions")
    if truncate_dim is None and model.truncate_dim is not None:
        truncate_dim = int(model.truncate_dim)
    model.truncate_dim = truncate_dim
    if prompt is None:
        prompt = source.alias.prompt if source.alias else ""
        if not prompt and model.default_prompt_name:
            prompt = str(model.prompts[model.default_prompt_name])

    length = model.max_seq_length
    contract = Contract(
        weights=weights,
        tokenizer=tokenizer_digest(folder / subfolder),
        architecture=architecture_digest(folder / subfolder),
        pooling=_pooling_of(model),
        modules=_modules_after_pooling(model),
        prompt=prompt,
        max_length=int(length) if length is not None and length < _UNLIMITED else 0,
        normalize=any(type(module).__name__ == "Normalize" for module in model),
        truncate_dim=truncate_dim,
        dimension=truncate_dim or width,
    )
    return Teacher(source, model, contract)


def _width(model: SentenceTransformer, folder: Path) -> int:
    width = model.get_embedding_dimension()
    if not isinstance(width, int):
        raise TeacherError(
            f"cannot load {folder}: its modules give their width as {width!r}, expected a whole number; "
            "copy the model again"
        )
    return width


def _pooling_choice(source: ModelSource, asked: str | None) -> str | None:
    if asked is not None and asked not in POOLINGS:
        raise TeacherError(f"unknown pooling {asked!r}: choose one of {', '.join(POOLINGS)}")
    chosen = asked or (source.alias.pooling if source.alias else None)
    if chosen is None and not (source.folder / "modules.json").exists():
        raise PoolingNeededError(
            f"{source.folder} is a plain transformers folder: it does not say how token vectors become a "
            f"sentence vector. Say it with --pooling {'|'.join(POOLINGS)} "
            "(look into the model's own documentation)"
        )
    return POOLINGS[chosen] if chosen else None


def _load_model(
    folder: Path, subfolder: str, pooling: str | None, trust_remote_code: bool
) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    if not trust_remote_code:
        _refuse_foreign_code(folder, subfolder)
    plain = not (folder / "modules.json").exists()
    try:
        with quiet_transformers():
            if plain:
                modules = _plain_modules(folder, pooling, trust_remote_code)
                return SentenceTransformer(modules=modules, device="cpu")
            model = SentenceTransformer(
                str(folder), device="cpu", local_files_only=True, trust_remote_code=trust_remote_code
            )
            if pooling == "pooler":
                transformer = _plain_modules(folder / subfolder, pooling, trust_remote_code)[0]
                _replace_by_pooler(model, transformer)
            elif pooling is not None:
                _replace_pooling(model, pooling)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise TeacherError(f"cannot load {folder}: {_first_line(error)}") from error
    # A module whose configuration lacks a field, or has one of another type, fails like this.
    except (TypeError, AttributeError) as error:
        raise TeacherError(
            f"cannot load {folder}: a module's configuration is damaged ({_first_line(error)}); "
            "copy the model again"
        ) from error
    return model


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the screen; what matters in them is checked here."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _refuse_random_weights(model: SentenceTransformer, folder: Path, subfolder: str) -> None:
    """Refuse a folder whose weights do not fit its config: loading fills the gaps with random numbers."""
    from transformers import PreTrainedModel

    inner = getattr(model[0], "model", None)
    if not isinstance(inner, PreTrainedModel):
        return
    with quiet_transformers():
        # On the meta device nothing but names and shapes is read; transformers itself knows what it renames.
        _, report = type(inner).from_pretrained(
            inner.name_or_path,
            config=inner.config,
            device_map="meta",
            output_loading_info=True,
            local_files_only=True,
            # Where the pooler was asked for, the transformer was loaded from its own folder.
            subfolder=subfolder if Path(inner.name_or_path) == folder else "",
        )
    # Where the pooler's output is wanted, its weights were looked for before.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise TeacherError(
            f"{folder}: its files hold no weights for {len(missing)} parameters (first: {missing[0]}), "
            "which would be random: the weights belong to another config.json; copy the model again"
        )


def _refuse_foreign_code(folder: Path, subfolder: str) -> None:
    """Refuse classes from outside the known libraries before anything of the folder is loaded."""
    foreign = [
        str(module.get("type"))
        for module in read_modules(folder)
        if not str(module.get("type")).startswith("sentence_transformers.")
    ]
    if any(read_json(place / "config.json").get("auto_map") for place in (folder, folder / subfolder)):
        foreign.append("config.json auto_map")
    if foreign:
        raise TeacherError(
            f"{folder} wants to run code of its own ({', '.join(foreign)}); nothing was run. "
            "If you trust its authors, add --trust-remote-code"
        )


def _plain_modules(folder: Path, pooling: str | None, trust_remote_code: bool) -> list[Any]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    shared: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    options: dict[str, Any] = {"model_kwargs": dict(shared), "processor_kwargs": dict(shared)}
    options["config_kwargs"] = dict(shared)
    if pooling == "pooler":
        text = {"method": "forward", "method_output_name": "pooler_output"}
        return [
            Transformer(
                str(folder),
                **options,
                modality_config={"text": text},
                module_output_name="sentence_embedding",
                do_lower_case=bool(read_json(folder / "sentence_bert_config.json").get("do_lower_case")),
            )
        ]
    transformer = Transformer(str(folder), **options)
    return [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]


def _replace_pooling(model: SentenceTransformer, pooling: str) -> None:
    for name, module in model.named_children():
        if type(module).__name__ == "Pooling":
            if module.pooling_mode != pooling:
                model[int(name)] = type(module)(module.embedding_dimension, pooling)
            return
    raise TeacherError(
        f"--pooling {pooling}: the model has no pooling module to replace; leave --pooling out"
    )


def _replace_by_pooler(model: SentenceTransformer, transformer: Any) -> None:
    """Let ``transformer``, which gives the pooler's output, stand for the first two modules."""
    if len(model) < 2 or type(model[1]).__name__ != "Pooling":
        raise TeacherError(
            "--pooling pooler: the model has no pooling module right after its transformer to replace; "
            "leave --pooling out"
        )
    transformer.max_seq_length = model[0].max_seq_length
    model[0] = transformer
    del model[1]


def _set_normalize(model: SentenceTransformer, wanted: bool) -> None:
    from sentence_transformers.base.modules import Normalize

    names = [name for name, module in model.named_children() if isinstance(module, Normalize)]
    if wanted and not names:
        model.append(Normalize())
    if not wanted:
        for name in reversed(names):
            del model[int(name)]


def _resolve_device(device: str) -> str:
    import torch

    if device != "auto":
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _position_limit(model: SentenceTransformer) -> int | None:
    config: Any = getattr(model[0], "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # RoBERTa-like position tables start after the padding index.
    offset = (
        (config.pad_token_id or 0) + 1
        if config.model_type in ("roberta", "xlm-roberta", "mpnet", "camembert")
        else 0
    )
    return positions - offset


def _pooling_of(model: SentenceTransformer) -> str:
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.pooling_mode
            return mode if isinstance(mode, str) else "+".join(mode)
    output = str(getattr(model[0], "modality_config", {}).get("text", {}).get("method_output_name", ""))
    return "pooler" if output == "pooler_output" else "none"


def _modules_after_pooling(model: SentenceTransformer) -> str:
    described: list[dict[str, Any]] = []
    for module in list(model)[1:]:
        kind = type(module).__name__
        config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        if kind == "Pooling":
            if not config.get("include_prompt", True):
                described.append({"type": kind, "include_prompt": False})
        elif kind != "Normalize":
            described.append({"type": kind, **config})
    return canonical_json(described).decode() if described else ""
