"""Modules of a sentence-transformers model: loaded from a folder, replaced, described for the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.errors import TeacherError
from embedcache.fsio import canonical_json
from embedcache.teacher.model_folder import read_json, read_modules

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "mpnet", "camembert")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and reports; :func:`load_modules` checks their content itself."""
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


def load_modules(
    folder: Path, subfolder: str, pooling: str | None, *, trust_remote_code: bool
) -> SentenceTransformer:
    """Load the model in ``folder`` on the CPU.

    Args:
        folder: of sentence-transformers, or of plain transformers, which needs a pooling.
        subfolder: place of the transformer below it; empty for the folder itself.
        pooling: ``mean``, ``cls``, ``lasttoken`` or ``pooler`` to replace the model's own.
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if the model is damaged, needs code of its own, lacks weights for its configuration, or
            has no pooling to replace.
    """
    from sentence_transformers import SentenceTransformer

    if not trust_remote_code:
        _refuse_foreign_code(folder, subfolder)
    try:
        with quiet_transformers():
            if not (folder / "modules.json").exists():
                model = SentenceTransformer(
                    modules=_plain_modules(folder, pooling, trust_remote_code), device="cpu"
                )
            else:
                model = SentenceTransformer(
                    str(folder), device="cpu", local_files_only=True, trust_remote_code=trust_remote_code
                )
                if pooling == "pooler":
                    transformer = _plain_modules(folder / subfolder, pooling, trust_remote_code)[0]
                    _replace_by_pooler(model, transformer)
                elif pooling is not None:
                    _replace_pooling(model, pooling)
    # The last two come from a module's configuration that lacks a field, or has one of another type.
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TeacherError(f"cannot load {folder}: {reason}; copy the model again") from error
    _refuse_random_weights(model, folder, subfolder)
    return model


def _refuse_foreign_code(folder: Path, subfolder: str) -> None:
    """Refuse classes from outside sentence-transformers before anything of the folder is loaded."""
    foreign = [
        str(module.get("type"))
        for module in read_modules(folder)
        if not str(module.get("type")).startswith("sentence_transformers.")
    ]
    if any(read_json(place / "config.json").get("auto_map") for place in (folder, folder / subfolder)):
        foreign.append("config.json auto_map")
    if foreign:
        raise TeacherError(
            f"{folder} needs code of its own ({', '.join(foreign)}); nothing was run. "
            "If you trust its authors, add --trust-remote-code"
        )


def _refuse_random_weights(model: SentenceTransformer, folder: Path, subfolder: str) -> None:
    """Refuse weights that lack parameters of the config: loading fills them with random numbers."""
    from transformers import PreTrainedModel

    inner = getattr(model[0], "model", None)
    if not isinstance(inner, PreTrainedModel):
        return
    with quiet_transformers():
        # On the meta device only names and shapes are read; transformers itself knows its renamed parameters.
        _, report = type(inner).from_pretrained(
            inner.name_or_path,
            config=inner.config,
            device_map="meta",
            output_loading_info=True,
            local_files_only=True,
            # For pooling "pooler" the transformer was loaded from its own folder.
            subfolder=subfolder if Path(inner.name_or_path) == folder else "",
        )
    # The pooler's weights are checked where its output is used.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise TeacherError(
            f"{folder}: no weights for {len(missing)} parameters (first: {missing[0]}): they belong to "
            f"another config.json; copy the model again"
        )


def _plain_modules(folder: Path, pooling: str | None, trust_remote_code: bool) -> list[Any]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    shared: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    options: dict[str, Any] = {
        name: dict(shared) for name in ("model_kwargs", "processor_kwargs", "config_kwargs")
    }
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
    raise TeacherError(f"--pooling {pooling}: the model has no pooling to replace; leave --pooling out")


def _replace_by_pooler(model: SentenceTransformer, transformer: Any) -> None:
    """Replace the first two modules by a ``transformer`` that gives the pooler's output."""
    if len(model) < 2 or type(model[1]).__name__ != "Pooling":
        raise TeacherError("--pooling pooler: the model has no pooling to replace; leave --pooling out")
    transformer.max_seq_length = model[0].max_seq_length
    model[0] = transformer
    del model[1]


def set_normalize(model: SentenceTransformer, wanted: bool) -> None:
    """Append or remove scaling to length one at the end of a model."""
    from sentence_transformers.base.modules import Normalize

    names = [name for name, module in model.named_children() if isinstance(module, Normalize)]
    if wanted and not names:
        model.append(Normalize())
    if not wanted:
        for name in reversed(names):
            del model[int(name)]


def position_limit(model: SentenceTransformer) -> int | None:
    """Number of tokens that a model has positions for; None without a limit."""
    config: Any = getattr(model[0], "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # The position tables of these architectures start after the padding index.
    return positions - ((config.pad_token_id or 0) + 1 if config.model_type in _SHIFTED_POSITIONS else 0)


def pooling_of(model: SentenceTransformer) -> str:
    """Pooling of a model in a contract's words."""
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.pooling_mode
            return mode if isinstance(mode, str) else "+".join(mode)
    output = str(getattr(model[0], "modality_config", {}).get("text", {}).get("method_output_name", ""))
    return "pooler" if output == "pooler_output" else "none"


def modules_after_pooling(model: SentenceTransformer) -> str:
    """Describe the modules after the pooling as canonical JSON; empty if there are none."""
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
