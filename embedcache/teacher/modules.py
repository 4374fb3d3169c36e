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

_POOLER_OUTPUT = "pooler_output"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and reports; ``load_model`` checks their content itself."""
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


def load_model(
    folder: Path, transformer: Path, pooling: str | None, trust_remote_code: bool
) -> SentenceTransformer:
    """Load a model on the CPU.

    Args:
        folder: of sentence-transformers, or of plain transformers.
        transformer: the folder of its transformer.
        pooling: ``mean``, ``cls``, ``lasttoken`` or ``pooler`` to replace the model's own.
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if the model is damaged, needs its own code, lacks weights for its configuration, or
            has no pooling to replace.
    """
    from sentence_transformers import SentenceTransformer

    if not trust_remote_code:
        _refuse_foreign_code(folder, transformer)
    try:
        with quiet_transformers():
            model = SentenceTransformer(
                str(folder), device="cpu", local_files_only=True, trust_remote_code=trust_remote_code
            )
    # The last two come from a module's configuration that lacks a field, or has one of another type.
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TeacherError(f"cannot load {folder}: {reason}; copy the model again") from error
    _refuse_random_weights(model, transformer)
    if pooling is not None:
        set_pooling(model, pooling)
    return model


def _refuse_foreign_code(folder: Path, transformer: Path) -> None:
    """Refuse classes from outside sentence-transformers before anything of the folder is loaded."""
    foreign = [one.type for one in read_modules(folder) if not one.type.startswith("sentence_transformers.")]
    if any(read_json(place / "config.json").get("auto_map") for place in (folder, transformer)):
        foreign.append("config.json auto_map")
    if foreign:
        raise TeacherError(
            f"{folder} needs its own code ({', '.join(foreign)}); none of it was run. "
            "If you trust its authors, add trust_remote_code"
        )


def _refuse_random_weights(model: SentenceTransformer, transformer: Path) -> None:
    """Refuse weights that lack parameters of the config: loading fills them with random numbers."""
    from transformers import PreTrainedModel

    inner = getattr(model[0], "model", None)
    if not isinstance(inner, PreTrainedModel):
        return
    # On the meta device only names and shapes are read; transformers itself knows its renamed parameters.
    with quiet_transformers():
        _, report = type(inner).from_pretrained(
            transformer,
            config=inner.config,
            device_map="meta",
            output_loading_info=True,
            local_files_only=True,
        )
    # The pooler's weights are checked where its output is used.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise TeacherError(
            f"{transformer}: no weights for {len(missing)} parameters (first: {missing[0]}): they belong to "
            "another config.json; copy the model again"
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


def set_normalize(model: SentenceTransformer, wanted: bool) -> None:
    """Append or remove scaling to length one at the end of a model."""
    from sentence_transformers.base.modules import Normalize

    places = [place for place, module in enumerate(model) if isinstance(module, Normalize)]
    if wanted and not places:
        model.append(Normalize())
    elif not wanted:
        for place in reversed(places):
            del model[place]


def pooling_of(model: SentenceTransformer) -> str:
    """Pooling of a model in a contract's words."""
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.pooling_mode
            return mode if isinstance(mode, str) else "+".join(mode)
    output = str(getattr(model[0], "modality_config", {}).get("text", {}).get("method_output_name", ""))
    return "pooler" if output == _POOLER_OUTPUT else "none"


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
