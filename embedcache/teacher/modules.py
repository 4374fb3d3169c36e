"""Modules of a sentence-transformers model: assembled from a folder, replaced, described for the contract."""

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

_DAMAGED = "copy the model again"
_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "mpnet", "camembert")


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


def load_modules(
    folder: Path, subfolder: str, pooling: str | None, *, trust_remote_code: bool
) -> SentenceTransformer:
    """Load the model in ``folder`` on the CPU, with ``pooling`` in place of its own where one is given.

    Args:
        folder: of sentence-transformers, or of plain transformers, which needs a pooling.
        subfolder: place of the transformer below it; empty for the folder itself.
        pooling: ``mean``, ``cls``, ``lasttoken`` or ``pooler``.
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if the model is damaged, wants to run code of its own, has weights that do not fit its
            configuration, or no pooling that could be replaced.
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
    # A module whose configuration lacks a field, or has one of another type, fails with the last two.
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TeacherError(f"cannot load {folder}: {reason}; {_DAMAGED}") from error
    _refuse_random_weights(model, folder, subfolder)
    return model


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
    # Weights of the pooler are looked for where its output is wanted.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise TeacherError(
            f"{folder}: no weights for {len(missing)} parameters (first: {missing[0]}): they belong to "
            f"another config.json; {_DAMAGED}"
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
    """Let ``transformer``, which gives the pooler's output, stand for the first two modules."""
    if len(model) < 2 or type(model[1]).__name__ != "Pooling":
        raise TeacherError("--pooling pooler: the model has no pooling to replace; leave --pooling out")
    transformer.max_seq_length = model[0].max_seq_length
    model[0] = transformer
    del model[1]


def set_normalize(model: SentenceTransformer, wanted: bool) -> None:
    """Put scaling to length one at the end of a model, or take it off."""
    from sentence_transformers.base.modules import Normalize

    names = [name for name, module in model.named_children() if isinstance(module, Normalize)]
    if wanted and not names:
        model.append(Normalize())
    if not wanted:
        for name in reversed(names):
            del model[int(name)]


def position_limit(model: SentenceTransformer) -> int | None:
    """Return the number of tokens that a model has positions for; None without a limit."""
    config: Any = getattr(model[0], "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # These position tables start after the padding index.
    return positions - ((config.pad_token_id or 0) + 1 if config.model_type in _SHIFTED_POSITIONS else 0)


def pooling_of(model: SentenceTransformer) -> str:
    """Return the pooling of a model as a contract names it."""
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.pooling_mode
            return mode if isinstance(mode, str) else "+".join(mode)
    output = str(getattr(model[0], "modality_config", {}).get("text", {}).get("method_output_name", ""))
    return "pooler" if output == "pooler_output" else "none"


def modules_after_pooling(model: SentenceTransformer) -> str:
    """Return the modules after the pooling as canonical JSON; empty where there are none."""
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
