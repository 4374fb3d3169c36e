"""Tiny teachers of several architectures, with a tokenizer of a few words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from distill.students.spec import StudentOptions, parse_spec
from embedcache.teacher.load import quiet_transformers
from embedcache.testing import WORDS

PAD, MARKS = 1, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
"""RoBERTa's and MPNet's ids begin so: padding is 1."""
_SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "initializer_range": 0.4,
}

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "roberta": (
        "RobertaConfig",
        "RobertaModel",
        {"pad_token_id": PAD, "type_vocab_size": 1, "layer_norm_eps": 1e-3},
    ),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", {"pad_token_id": PAD, "type_vocab_size": 1}),
    "mpnet": ("MPNetConfig", "MPNetModel", {"pad_token_id": PAD}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 16, "n_layers": 4, "n_heads": 4, "hidden_dim": 32, "activation": "relu"},
    ),
    "electra": ("ElectraConfig", "ElectraModel", {"embedding_size": 8}),
    "albert": ("AlbertConfig", "AlbertModel", {"embedding_size": 8}),
}


def make_teacher(kind: str, folder: Path, pooling: str | None = "mean") -> SentenceTransformer:
    """A model of random weights; with ``pooling`` None it gives its pooler's output."""
    name, model_class, settings = ARCHITECTURES[kind]
    vocabulary = {token: number for number, token in enumerate([*MARKS, *WORDS])}
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        shape = {**_SHAPE, "vocab_size": len(vocabulary)}
        if kind == "distilbert":
            named = ("max_position_embeddings", "initializer_range", "vocab_size")
            shape = {key: shape[key] for key in named}
        model = getattr(transformers, model_class)(getattr(transformers, name)(**shape, **settings))
        for parameter in model.parameters():
            # Biases and the weights of LayerNorms are zeros and ones before training.
            if parameter.dim() == 1:
                parameter.data += torch.randn_like(parameter) * 0.3
        model.save_pretrained(folder)
        padding = model.config.pad_token_id
        marks = {
            "pad_token": MARKS[padding],
            "cls_token": MARKS[1 - padding],
            "unk_token": "<unk>",
            "sep_token": "</s>",
            "mask_token": "<mask>",
        }
        tokenizer = transformers.BertTokenizerFast(vocab=vocabulary, model_max_length=64, **marks)
        if kind not in ("bert", "electra", "albert"):
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
        tokenizer.save_pretrained(folder)
        if pooling is not None:
            modules = [Transformer(str(folder)), Pooling(16, pooling)]
        else:
            output = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
            modules = [
                Transformer(str(folder), modality_config=output, module_output_name="sentence_embedding")
            ]
    teacher = SentenceTransformer(modules=modules, device="cpu")
    teacher.requires_grad_(False)
    return teacher.eval()


def build(
    spec: str, teacher: SentenceTransformer, notes: list[str] | None = None, count: Any = None, seed: int = 0
) -> SentenceTransformer:
    """Build a student as its kind makes it, without what every student gets."""
    options = StudentOptions(seed, count, ([] if notes is None else notes).append)
    return parse_spec(spec).build(SimpleNamespace(model=teacher), options)  # type: ignore[arg-type]
