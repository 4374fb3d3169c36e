"""Options that several commands share, so that a word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from embedcache.sizes import parse_size

F = TypeVar("F", bound=Callable[..., object])

# As the library has them, which takes too long to import for --help.
FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "arrow")
CODEC_NAMES = ("float32", "float16", "int8", "pq")
STORE_KINDS = ("arrow", "lmdb")
DTYPES = ("auto", "float32", "bfloat16", "float16")
MOST_SHARD_ROWS = 1 << 20
"""A shard is held in memory until it is whole."""


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options, shown in this order."""

    def decorate(command: F) -> F:
        # Decorators apply from the last to the first.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _flag(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, is_flag=True, help=text)


def _count(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(1), help=text)


def read_size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the number of bytes that ``text`` means: ``500000``, ``20MB``, ``1.5 GB``."""
    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


cache_option = click.option(
    "--cache",
    required=True,
    envvar="EMBEDCACHE_CACHE",
    metavar="DIR",
    help="The cache's folder.  [default: $EMBEDCACHE_CACHE]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
overwrite_option = _flag("--overwrite", "Replace what has the same name and other content.")

reader_options = all_of(
    click.option(
        "--text-column",
        metavar="NAME",
        help="Column of the text.  [default: the only text column, or text, sentence, content]",
    ),
    click.option("--text2-column", metavar="NAME", help="Column of a second text: rows are pairs of texts."),
    click.option("--id-column", metavar="NAME", help="Column of unique row ids to keep."),
    click.option("--label-column", metavar="NAME", help="Column of labels to keep."),
    click.option(
        "--rows",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Read only rows such as split=train. May be repeated; all have to hold.",
    ),
    click.option(
        "--format", type=click.Choice(FORMATS), help="Format of the sources.  [default: by the file's ending]"
    ),
    click.option(
        "--delimiter", metavar="CHAR", help="Of CSV and TSV: a character, tab, comma, semicolon or pipe."
    ),
    _count("--limit", "Read at most N rows."),
)

_trust = _flag("--trust-remote-code", "Run code that comes with the model.")
setting_options = all_of(
    click.option("--pooling", help="mean, cls, cls-before-pooler, pooler or last.  [default: the model's]"),
    click.option("--prompt", help="Text put before every sentence.  [default: the teacher's own]"),
    _count("--max-length", "Tokens after which a text is cut.  [default: the teacher's own]"),
    _count("--truncate-dim", "Truncate vectors to N dimensions."),
    click.option(
        "--normalize/--no-normalize",
        default=None,
        help="Scale vectors to length one.  [default: as the teacher]",
    ),
    _trust,
)
contract_options = all_of(
    click.option("--teacher", required=True, metavar="SPEC", help="Alias, hub id with @revision, or folder."),
    setting_options,
)

_machine = all_of(
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ..."),
    _count("--batch-tokens", "Tokens per forward batch.  [default: by device]"),
    _count("--threads", "CPU threads.  [default: all cores]"),
)
live_teacher_options = all_of(
    click.option(
        "--teacher-model",
        metavar="SPEC",
        help="Alias, hub id or folder of the teacher.  [default: what it was built from]",
    ),
    click.option(
        "--compute-dtype",
        type=click.Choice(DTYPES),
        help="What the teacher computes in.  [default: as when the vectors were made]",
    ),
    _machine,
    _trust,
)


def _limit_shard(context: click.Context, parameter: click.Parameter, rows: int) -> int:
    if rows > MOST_SHARD_ROWS:
        raise click.BadParameter(
            f"{rows:,}: expected at most {MOST_SHARD_ROWS:,}; a shard is held in memory", context, parameter
        )
    return rows


encode_options = all_of(
    click.option(
        "--output",
        default="embedding",
        show_default=True,
        help="embedding, logits (of the classifier in the teacher's folder), or embedding,logits.",
    ),
    click.option("--codec", type=click.Choice(CODEC_NAMES), help="Codec of the vectors.  [default: float16]"),
    click.option(
        "--store", type=click.Choice(STORE_KINDS), help="A file a shard, or one LMDB file.  [default: arrow]"
    ),
    click.option(
        "--shard-rows",
        type=click.IntRange(1),
        callback=_limit_shard,
        default=16384,
        show_default=True,
        help="Vectors per shard.",
    ),
    _flag("--token-embeddings", "Also keep the teacher's table of token embeddings."),
    click.option(
        "--compute-dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="What the teacher computes in.",
    ),
    _machine,
)


def _pairs(
    context: click.Context, parameter: click.Parameter, translators: tuple[str, ...]
) -> Mapping[str, str]:
    pairs = {}
    for one in translators:
        pair, _, model = one.partition("=")
        if not (pair and model):
            raise click.BadParameter(f"{one!r}: expected PAIR=MODEL, such as en-de=PATH", context, parameter)
        pairs[pair] = model
    return pairs


view_options = all_of(
    click.option(
        "--view",
        "views",
        multiple=True,
        metavar="SPEC",
        help="Store another text of every row; 'embedcache views' lists the kinds. May be repeated.",
    ),
    click.option(
        "--view-seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of random views."
    ),
    click.option(
        "--embed-views", multiple=True, metavar="NAME", help="Encode this view as well. May be repeated."
    ),
    click.option(
        "--language", default="en", show_default=True, help="Language of the texts, for translations."
    ),
    click.option(
        "--translator",
        "translators",
        multiple=True,
        callback=_pairs,
        metavar="PAIR=MODEL",
        help="Hub id or folder of a translator, such as en-de=PATH.  [default: Helsinki-NLP/opus-mt-PAIR]",
    ),
    click.option(
        "--mask-model",
        metavar="MODEL",
        help="Hub id or folder of a masked language model.  [default: google-bert/bert-base-uncased]",
    ),
)

limit_options = all_of(
    click.option(
        "--max-bytes", callback=read_size, metavar="SIZE", help="Refuse to fetch more than this, say 20GB."
    ),
    click.option(
        "--require-signature",
        metavar="KEYFILE",
        help="Count only pushes signed by a public ed25519 key in this file.",
    ),
    click.option(
        "--skip-manifest",
        "skip_manifests",
        multiple=True,
        metavar="DIGITS",
        help="Leave out the push whose manifest begins so.",
    ),
)
