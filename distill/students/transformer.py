"""A transformers model as the first module of a sentence-transformers model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from threadpoolctl import threadpool_limits

from distill.errors import StudentError
from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from transformers import PreTrainedModel


@contextmanager
def one_thread() -> Iterator[None]:
    """Run numpy and torch on one thread inside the block.

    Several threads sum parts of an array each, so their number would decide how the result is rounded.
    """
    threads = torch.get_num_threads()
    with threadpool_limits(1):
        # The limits do not reach torch's bundled libraries.
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def transformer_of(teacher: SentenceTransformer) -> Any:
    """Return the first module of a teacher, whose tokenizer a student reuses.

    Raises:
        StudentError: if it is not a transformer, or its tokenizer has no fast (Rust) backend.
    """
    first: Any = teacher[0]
    if getattr(first, "model", None) is None or not getattr(first.tokenizer, "is_fast", False):
        raise StudentError(
            f"the teacher is a {type(first).__name__}, expected a transformer with a fast (Rust) tokenizer; "
            "use another teacher or student kind"
        )
    return first


def merge_adapter(model: SentenceTransformer) -> None:
    """Merge an adapter into the weights of a model, in float32; a model without one stays as it is."""
    inner: Any = getattr(model[0], "model", None)
    if not getattr(inner, "_hf_peft_config_loaded", False):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    model.float()
    for name, layer in list(inner.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            parent, _, own = name.rpartition(".")
            setattr(inner.get_submodule(parent), own, layer.get_base_layer())
    # A model that has loaded an adapter once saves the adapter alone, and under the adapter's names.
    whole = type(inner)(inner.config)
    whole.load_state_dict(inner.state_dict())
    first: Any = model[0]
    first.model = whole.eval()


def as_module(model: PreTrainedModel, tokenizer: Any, like: Any) -> Transformer:
    """Return ``model`` and ``tokenizer`` as a module with the settings it has after a reload from a folder.

    Args:
        model: a model with its weights; not copied.
        tokenizer: its transformers tokenizer; copied.
        like: the teacher's first module, for its maximal length and casing.

    Raises:
        StudentError: if the tokenizer has no padding token.
    """
    from sentence_transformers.base.modules import Transformer

    if tokenizer.pad_token_id is None:
        raise StudentError(
            "the teacher's tokenizer has no padding token; set one (tokenizer.pad_token), save the teacher "
            "and build a cache with it"
        )
    # sentence-transformers configures a module when it opens a folder. It opens an empty model of the same
    # class and settings here, so the weights are neither written nor read.
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 0
    config.vocab_size = (config.pad_token_id or 0) + 1
    # The caller's random numbers are left as they are.
    with (
        TemporaryDirectory(prefix="distill-student-") as folder,
        quiet_transformers(),
        torch.random.fork_rng(devices=[]),
    ):
        # save_pretrained of a model writes in the first of several processes only.
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        save_file(type(model)(config).state_dict(), Path(folder) / "model.safetensors", {"format": "pt"})
        # A tokenizer's files carry the settings of its last call.
        plain = copy.deepcopy(tokenizer)
        plain.backend_tokenizer.no_padding()
        plain.backend_tokenizer.no_truncation()
        plain.save_pretrained(folder)
        local = {"local_files_only": True}
        module = Transformer(
            folder,
            max_seq_length=like.max_seq_length,
            do_lower_case=bool(getattr(like, "do_lower_case", False)),
            model_kwargs=local,
            processor_kwargs=local,
            config_kwargs=local,
        )
    module.model = model
    model.config.name_or_path = ""
    return module
