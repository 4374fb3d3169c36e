"""Folders of tiny teachers with random weights: decoders, adapters, own code, routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import Gemma3TextConfig, Gemma3TextModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from embedcache.teacher.modules import quiet_transformers
from embedcache.testing import WORDS, tiny_encoder

WIDTH = 16
PROMPTS = {"query": "find the bird:\n", "document": ""}
NAMED = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIAL = list(NAMED.values())
CODE = """
import torch
from sentence_transformers.base.modules import Module


class Steps(Module):
    forward_kwargs = {"task"}

    def forward(self, features, task=None, **kwargs):
        vectors = features["sentence_embedding"] * (3 if task == "retrieval" else 1)
        features["sentence_embedding"] = torch.round(vectors * STEPS) / STEPS
        return features

    def save(self, *args, **kwargs):
        pass

    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
"""


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON object in a file."""
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}))


def _tokenizer(template: str, **settings: Any) -> PreTrainedTokenizerFast:
    words = dict.fromkeys([*SPECIAL, *WORDS, *"abcdefghijklmnopqrstuvwxyz:0123456789"])
    found = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=NAMED["unk_token"])
    )
    found.normalizer, found.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(
        single=template,
        pair=f"{template} $B:1",
        special_tokens=[(one, SPECIAL.index(one)) for one in SPECIAL],
    )
    return PreTrainedTokenizerFast(tokenizer_object=found, **NAMED, **settings)


def _save(folder: Path, model: Any, tokenizer: Any, modules: list[Any], dtype: torch.dtype) -> Path:
    parts = folder.with_name(f"{folder.name}-parts")
    model.to(dtype).save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    whole = SentenceTransformer(modules=[Transformer(str(parts)), *modules], device="cpu", prompts=PROMPTS)
    whole.save_pretrained(str(folder), create_model_card=False)
    return folder


def decoder(
    folder: Path, *, ends: bool = True, layers: int = 2, width: int = WIDTH, seed: int = 0, **settings: Any
) -> Path:
    """Save a causal decoder in bfloat16 that pools the last token; without ``ends`` that is a word."""
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = _tokenizer("<s> $A </s>" if ends else "<s> $A", padding_side="left", **settings)
        config = Qwen3Config(
            vocab_size=128,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=width // 2,
            max_position_embeddings=64,
            pad_token_id=0,
            initializer_range=0.4,
        )
        modules = [Pooling(width, "lasttoken"), Normalize()]
        return _save(folder, Qwen3Model(config), tokenizer, modules, torch.bfloat16)


def bidirectional(folder: Path) -> Path:
    """Save a bidirectional decoder with a mean and two linear layers behind it."""
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Gemma3TextConfig(
            vocab_size=128,
            hidden_size=WIDTH,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=64,
            sliding_window=4,
            use_bidirectional_attention=True,
            initializer_range=0.4,
        )
        linear = [
            Dense(a, b, bias=False, activation_function=torch.nn.Identity()) for a, b in ((16, 24), (24, 16))
        ]
        modules = [Pooling(WIDTH, "mean"), *linear, Normalize()]
        tokenizer = _tokenizer("<s> $A </s>", padding_side="left")
        return _save(folder, Gemma3TextModel(config), tokenizer, modules, torch.float32)


def adapter(folder: Path, base: Path | str, seed: int = 0) -> Path:
    """Save an adapter for a decoder; ``base`` is the name it knows its base model by."""
    from peft import LoraConfig

    start = decoder(folder.with_name(f"{folder.name}-start"))
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SentenceTransformer(str(start), device="cpu")
        targets = ["q_proj", "v_proj"]
        model.add_adapter(LoraConfig(r=2, lora_alpha=8, init_lora_weights=False, target_modules=targets))
        model.save_pretrained(str(folder), create_model_card=False)
    edit(folder / "adapter_config.json", base_model_name_or_path=str(base))
    return folder


def own_code(folder: Path, steps: int = 100) -> Path:
    """Save a teacher whose last module is code of its own, which rounds vectors and takes a task."""
    tiny_encoder(folder)
    (folder / "steps.py").write_text(CODE.replace("STEPS", str(steps)))
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1] = {"idx": 2, "name": "2", "path": "", "type": "steps.Steps"}
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def router(folder: Path) -> Path:
    """Save a teacher with other modules for queries than for documents; they lie beside it."""
    parts = [
        tiny_encoder(folder.with_name(name), seed=seed) for seed, name in enumerate(("query", "document"))
    ]
    with quiet_transformers():
        query, document = (list(SentenceTransformer(str(part), device="cpu").children()) for part in parts)
        routes = Router.for_query_document(query_modules=query, document_modules=document)
        SentenceTransformer(modules=[routes], device="cpu").save_pretrained(
            str(folder), create_model_card=False
        )
    return folder
