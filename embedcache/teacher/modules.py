"""Modules of a sentence-transformers model: loaded from a folder, changed, described for the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from logging import ERROR, getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from embedcache.errors import TeacherError, first_line
from embedcache.fsio import canonical_json
from embedcache.teacher.arguments import KEYWORDS, Arguments, own_arguments
from embedcache.teacher.model_folder import ADAPTER, ModelFolder, read_json, read_tensors
from embedcache.teacher.own_code import mapped_code, module_code

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

_POOLER_OUTPUT = "pooler_output"
_VECTOR = "sentence_embedding"
_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "mpnet", "camembert")
_UNLIMITED = 1_000_000
# The last four come from a configuration that lacks a field, or has one of another type or value.
_DAMAGED = (
    *(OSError, ValueError, RuntimeError, ImportError),
    *(LookupError, TypeError, AttributeError, ArithmeticError),
)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and reports of the libraries; ``load_model`` checks their content itself."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    # Its advice on dtypes is for other callers.
    own = getLogger("sentence_transformers")
    level = own.level
    own.setLevel(ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        own.setLevel(level)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_model(
    folder: ModelFolder,
    pooling: str | None = None,
    *,
    trust_remote_code: bool = False,
    arguments: Arguments | None = None,
    dtype: torch.dtype | None = None,
) -> SentenceTransformer:
    """Load a model on the CPU.

    Args:
        folder: of sentence-transformers, or of plain transformers.
        pooling: ``mean``, ``cls``, ``lasttoken`` or ``pooler`` to replace the model's own.
        trust_remote_code: run code that comes with the model.
        arguments: further loading arguments by kind, see ``loading``.
        dtype: dtype of the weights; default: as its files have them.

    Raises:
        TeacherError: if the model is damaged, needs its own code, lacks weights for its configuration, or
            has no pooling to replace.
    """
    from huggingface_hub.errors import StrictDataclassError
    from sentence_transformers import SentenceTransformer

    if not trust_remote_code and (classes := module_code(folder)):
        raise _needs_code(folder, classes)
    keywords: dict[str, dict[str, Any]] = {
        keyword: dict((arguments or {}).get(kind, {})) for kind, keyword in KEYWORDS.items()
    }
    if dtype is not None:
        keywords["model_kwargs"]["dtype"] = dtype
    try:
        with quiet_transformers(), _with_base(folder) as path:
            model = SentenceTransformer(
                str(path),
                device="cpu",
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                **{keyword: values for keyword, values in keywords.items() if values},
            )
    except (*_DAMAGED, StrictDataclassError) as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise _needs_code(folder, mapped_code(folder)) from error
        remedy = "look at --teacher-arg" if any((arguments or {}).values()) else "copy the model again"
        if isinstance(error, ImportError):
            remedy = "install what its code needs"
        reason = first_line(error)
        if isinstance(error, StrictDataclassError):  # whose second line has the reason
            reason = " ".join(str(error).split())[:300]
        raise TeacherError(f"cannot load {folder.path}: {reason}; {remedy}") from error
    if folder.route is not None:
        model = _along_route(model, folder.route)
    _refuse_unknown(model, arguments or {})
    _refuse_random_weights(model, folder)
    if folder.base is not None:
        _refuse_random_adapter(model, folder)
    if pooling is not None:
        set_pooling(model, pooling)
    return model


def _refuse_unknown(model: SentenceTransformer, arguments: Arguments) -> None:
    """Refuse arguments that tokenizer or configuration do not have; the libraries ignore them in silence."""
    first: Any = model[0]
    for kind in ("tokenizer", "config"):
        owner = getattr(first, kind, None)
        for key in arguments.get(kind, {}):
            if not hasattr(owner, key):
                near = get_close_matches(key, dir(owner), n=1)
                hint = f", but {near[0]!r}" if near else ""
                raise TeacherError(
                    f"teacher argument {kind}.{key}: the model's {kind} has no {key!r}{hint}; correct it, or "
                    "leave it out"
                )


def _needs_code(folder: ModelFolder, classes: Sequence[str]) -> TeacherError:
    return TeacherError(
        f"{folder.path} needs its own code ({', '.join(classes)}); none of it was run. "
        "If you trust its authors, add trust_remote_code"
    )


@contextmanager
def _with_base(folder: ModelFolder) -> Iterator[Path]:
    """Yield a model's folder, for an adapter a folder of links that names the base model found before.

    Otherwise the library would look the base up again, and could find another revision.
    """
    if folder.base is None:
        yield folder.path
        return
    with TemporaryDirectory(prefix="embedcache-adapter-") as scratch:
        inner = folder.transformer.relative_to(folder.path)
        for place in dict.fromkeys([Path(), *reversed(inner.parents), inner]):
            (Path(scratch) / place).mkdir(exist_ok=True)
            for entry in (folder.path / place).iterdir():
                if entry.name != ADAPTER and not inner.is_relative_to(place / entry.name):
                    (Path(scratch) / place / entry.name).symlink_to(entry.resolve())
        adapter = read_json(folder.transformer / ADAPTER)
        adapter["base_model_name_or_path"] = str(folder.base)
        (Path(scratch) / inner / ADAPTER).write_bytes(canonical_json(adapter))
        yield Path(scratch)


def _along_route(model: SentenceTransformer, route: str) -> SentenceTransformer:
    """Return the plain model of one route of a Router model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    modules: list[Any] = []
    for module in model:
        modules += module.sub_modules[route] if isinstance(module, Router) else [module]
    return SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        truncate_dim=model.truncate_dim,
    )


def _refuse_random_weights(model: SentenceTransformer, folder: ModelFolder) -> None:
    """Refuse weights that lack parameters of the config: loading fills them with random numbers."""
    from transformers import PreTrainedModel

    transformer = folder.base or folder.transformer

    inner = getattr(model[0], "model", None)
    if not isinstance(inner, PreTrainedModel):
        return
    own = own_arguments(folder.settings).get("model", {})
    # On the meta device only names and shapes are read; transformers itself knows its renamed parameters.
    with quiet_transformers():
        _, report = type(inner).from_pretrained(
            transformer,
            config=inner.config,
            device_map="meta",
            output_loading_info=True,
            local_files_only=True,
            **{name: value for name, value in own.items() if name in ("variant", "use_safetensors")},
        )
    # The pooler's weights are checked where its output is used.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise TeacherError(
            f"{transformer}: no weights for {len(missing)} parameters (first: {missing[0]}): they belong to "
            "another config.json; copy the model again"
        )


def _refuse_random_adapter(model: SentenceTransformer, folder: ModelFolder) -> None:
    """Refuse an adapter whose file lacks weights, or has others than its configuration names."""
    from peft import get_peft_model_state_dict

    inner: Any = model[0]
    lacking = set(get_peft_model_state_dict(inner.model, adapter_name="default"))
    wanted, unknown = frozenset(lacking), []
    files = [path for _, path in folder.weight_files() if path.name.startswith("adapter_model.")]
    for full, _ in (one for path in files for one in read_tensors(path)):
        # Names begin with those of the models around the transformer, which loading takes off.
        name = full
        while name and name not in wanted:
            name = name.partition(".")[2]
        lacking.discard(name)
        unknown += [] if name else [full]
    if differing := sorted(lacking | set(unknown)):
        raise TeacherError(
            f"{folder.path}: the adapter's weights are not those of its adapter_config.json and base model "
            f"({len(differing)} differ, first: {differing[0]}); copy the model again"
        )


def set_pooling(model: SentenceTransformer, pooling: str) -> None:
    """Replace a model's pooling; ``TeacherError`` if it has none."""
    if pooling_of(model) == pooling:
        return
    place = next((i for i, module in enumerate(model) if type(module).__name__ == "Pooling"), None)
    if place is None or (pooling == "pooler" and place != 1):
        raise TeacherError(f"pooling {pooling}: the model has no pooling to replace; leave it out")
    if pooling == "pooler":
        first: Any = model[0]
        first.modality_config = {"text": {"method": "forward", "method_output_name": _POOLER_OUTPUT}}
        first.module_output_name = "sentence_embedding"
        del model[1]
    else:
        own: Any = model[place]
        model[place] = type(own)(own.embedding_dimension, pooling)


def _scales_vectors(module: Any) -> bool:
    """Return whether a module scales sentence vectors, and not other features, to length one."""
    config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
    names = (config.get("module_input_name"), config.get("module_output_name"))
    return type(module).__name__ == "Normalize" and all(one in (None, _VECTOR) for one in names)


def is_normalized(model: SentenceTransformer) -> bool:
    """Return whether scaling to length one is the last module of a model."""
    return _scales_vectors(model[-1])


def set_normalize(model: SentenceTransformer, wanted: bool) -> None:
    """Append or remove scaling to length one at the end of a model."""
    from sentence_transformers.base.modules import Normalize

    if wanted and not is_normalized(model):
        model.append(Normalize())
    while not wanted and is_normalized(model):
        del model[-1]


def pooling_of(model: SentenceTransformer) -> str:
    """Pooling of a model in a contract's words."""
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.pooling_mode
            return mode if isinstance(mode, str) else "+".join(mode)
    output = str(getattr(model[0], "modality_config", {}).get("text", {}).get("method_output_name", ""))
    return "pooler" if output == _POOLER_OUTPUT else "none"


def modules_after_pooling(model: SentenceTransformer) -> str:
    """Describe the modules after the pooling as canonical JSON; empty if there are none.

    A pooling that leaves the prompt out, or that is not the second module, is described as well; so is
    scaling to length one before the last module.
    """
    described: list[dict[str, Any]] = []
    for place, module in enumerate(list(model)[1:], start=1):
        kind = type(module).__name__
        config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        if kind == "Pooling":
            found = {} if config.get("include_prompt", True) else {"include_prompt": False}
            if found or place > 1:
                described.append({"type": kind, **found})
        elif place < len(model) - 1 or not _scales_vectors(module):
            described.append({"type": kind, **config})
    return canonical_json(described).decode() if described else ""


def _positions(model: SentenceTransformer) -> int | None:
    """Return the number of tokens that a model has positions for; None if there is no limit."""
    config: Any = getattr(model[0], "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    if config.model_type in _SHIFTED_POSITIONS:
        # The position tables of these architectures start after the padding index.
        limit -= (config.pad_token_id or 0) + 1
    return max(1, limit)


def set_max_length(model: SentenceTransformer, max_length: int, name: str) -> None:
    """Set the length that texts are cut to; ``TeacherError`` if the model does not take it."""
    limit = _positions(model) or max_length
    # Older contracts hold the model's own length, even above its positions.
    if not 0 < max_length <= max(limit, token_limit(model)):
        raise TeacherError(f"max_length {max_length}: expected 1 to {limit} tokens for {name}")
    try:
        model.max_seq_length = max_length
    except AttributeError as error:
        raise TeacherError(f"max_length {max_length}: {name} reads whole texts; leave it out") from error


def token_limit(model: SentenceTransformer) -> int:
    """Return the number of tokens that a model cuts a text to, 0 for no limit."""
    length = model.max_seq_length
    return int(length) if length is not None and length < _UNLIMITED else 0


def cut_to_positions(model: SentenceTransformer) -> None:
    """Cut texts to the rows of a model's table of positions, even if it promises more."""
    from torch import nn

    limit, length = _positions(model), model.max_seq_length
    # Rotary positions have no table.
    has_table = any(
        isinstance(module, nn.Embedding) and name.endswith(("position_embeddings", ".wpe"))
        for name, module in model.named_modules()
    )
    if has_table and limit is not None and length is not None and length > limit:
        model.max_seq_length = limit


def takes_task(model: SentenceTransformer) -> bool:
    """Return whether a model can be called with a task."""
    first: Any = model[0]
    # Private in sentence-transformers 6: the template of a chat model may branch on the task.
    declares = getattr(first, "_chat_template_declares_task", None)
    own = ("query_length", "document_length", "query_expansion")
    return (
        "task" in model.get_model_kwargs()
        or (callable(declares) and declares())
        or any(getattr(first, name, None) is not None for name in own)
    )
