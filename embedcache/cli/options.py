"""Options that several commands share, so that a word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from embedcache.sizes import parse_size

F = TypeVar("F", bound=Callable[..., object])

# As the library has them, which takes too long to import for --help.
FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "arrow")
CODEC_NAMES = ("float32", "float16", "int8", "pq")
STORE_KINDS = ("arrow", "lmdb")
IMPORT_FORMATS = ("parquet", "npy", "automodel", "tokenlearn")
ENGINES = ("ray",)
DTYPES = ("auto", "float32", "bfloat16", "float16")
EXPORT_FORMATS = ("parquet", "npy", "lance", "automodel")
COMMON = "Common"
BACKENDS = ("auto", "torch", "openvino")


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options, shown in this order."""

    def decorate(command: F) -> F:
        # Decorators apply from the last to the first.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def under(heading: str, *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator as ``all_of`` whose options ``--help`` shows under a heading."""

    def decorate(command: F) -> F:
        known = list(getattr(command, "__click_params__", ()))
        command = all_of(*options)(command)
        for option in command.__click_params__:  # type: ignore[attr-defined]
            if option not in known and not hasattr(option, "heading"):
                option.heading = heading
        return command

    return decorate


class HeadedCommand(click.Command):
    """Command whose ``--help`` shows its options under headings, those without one first."""

    headings: Sequence[str] = ()
    """Headings in their order; others follow in that of the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, heading by heading."""
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (COMMON, *self.headings)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                rows.setdefault(getattr(parameter, "heading", COMMON), []).append(record)
        for heading, records in rows.items():
            if records:
                with formatter.section(f"{heading} options"):
                    formatter.write_dl(records)


def named(name: str, metavar: str, text: str) -> Callable[[F], F]:
    """Return an option that takes a value."""
    return click.option(name, metavar=metavar, help=text)


def choice(name: str, values: Sequence[str], text: str, **settings: Any) -> Callable[[F], F]:
    """Return an option of a few values."""
    return click.option(name, type=click.Choice(values), help=text, **settings)


def many(name: str, parameter: str, metavar: str, text: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that may be repeated."""
    return click.option(
        name, parameter, multiple=True, metavar=metavar, help=f"{text} Repeatable.", **settings
    )


def flag(name: str, text: str) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(name, is_flag=True, help=text)


def count(name: str, text: str) -> Callable[[F], F]:
    """Return an option of a number from 1."""
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
dry_run_option = flag("--dry-run", "Only print what would be done.")
overwrite_option = flag("--overwrite", "Replace what has the same name.")

reader_options = all_of(
    named("--text-column", "NAME", "Column of the text.  [default: text, sentence or content]"),
    named("--text-template", "TEXT", "Text of several columns, such as '{title}. {body}'."),
    named("--text2-column", "NAME", "Column of a second text: rows are pairs of texts."),
    choice("--format", FORMATS, "Format of the files.  [default: by ending]"),
    named("--id-column", "NAME", "Column of unique row ids to keep."),
    named("--label-column", "NAME", "Column of labels to keep."),
    many("--rows", "rows", "COLUMN=VALUE", "Read rows such as split=train."),
    named("--delimiter", "CHAR", "A character, tab, comma, semicolon or pipe."),
    count("--limit", "Read at most N rows."),
    choice(
        "--on-bad",
        ("error", "skip"),
        "Stop at more than 1 % malformed rows, or skip them.",
        default="error",
        show_default=True,
    ),
)


def read_prompt(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return a prompt, unless a line break was written as backslash and n."""
    if text is not None and "\\n" in text:
        raise click.BadParameter(
            f"{text[:60]!r} holds a backslash and an n, not a line break. Give --prompt-name, or a line "
            "break as in --prompt $'Instruct: ...\\nQuery: '",
            context,
            parameter,
        )
    return text


_trust = flag("--trust-remote-code", "Run code that comes with the model.")
teacher_settings = all_of(
    click.option("--pooling", help="mean, cls, cls-before-pooler, pooler or last.  [default: the model's]"),
    click.option(
        "--prompt",
        callback=read_prompt,
        help="Text put before every sentence.  [default: the teacher's own]",
    ),
    named("--prompt-name", "NAME", "One of the model's own prompts, such as query."),
    count("--max-length", "Tokens after which a text is cut.  [default: the teacher's own]"),
    click.option(
        *("--truncate-dim", "--dimensions", "truncate_dim"),
        type=click.IntRange(1),
        help="Truncate vectors to N dimensions, or ask a served teacher for N.",
    ),
    click.option(
        "--normalize/--no-normalize",
        default=None,
        help="Scale vectors to length one, before they are truncated.  [default: as the teacher]",
    ),
    choice("--quantize", ("int8",), "Quantize the weights with OpenVINO; changes the contract."),
    many("--teacher-arg", "arguments", "KIND.K=V", "Load with tokenizer.K=V, config.K=V or model.K=V."),
    named("--task", "NAME", "Route of a Router model, or value of the model's own task."),
    _trust,
)
teacher_option = click.option(
    "--teacher",
    required=True,
    metavar="SPEC",
    help="Alias, hub id with @revision, folder, or openai:MODEL@URL.",
)
contract_options = all_of(teacher_option, teacher_settings)
live_teacher_options = all_of(
    named("--teacher-model", "SPEC", "Alias, hub id or folder of the teacher.  [default: as built]"),
    _trust,
)

stored_options = all_of(
    click.option(
        "--output",
        type=click.Choice(["embedding", "logits"]),
        default="embedding",
        show_default=True,
        help="Sentence vectors, or logits of the teacher's classifier.",
    ),
    choice("--codec", CODEC_NAMES, "Codec of the vectors.  [default: float16]"),
    choice("--store", STORE_KINDS, "A file a shard, or one LMDB file.  [default: arrow]"),
    flag("--token-embeddings", "Also keep the teacher's table of token embeddings."),
)
speed_options = all_of(
    choice(
        "--compute-dtype",
        DTYPES,
        "Dtype the teacher computes in; auto: bfloat16 where that is faster.",
        default="auto",
        show_default=True,
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ..."),
    choice(
        "--backend",
        BACKENDS,
        "Runtime of the teacher; auto: OpenVINO on a CPU in float32, where it is installed.",
        default="auto",
        show_default=True,
    ),
    count("--threads", "CPU threads.  [default: all cores]"),
    count("--batch-tokens", "Tokens of a forward batch, or request.  [default: by device]"),
    click.option(
        "--shard-rows", type=click.IntRange(1), default=16384, show_default=True, help="Vectors a shard."
    ),
    count("--requests", "Requests in flight to a served teacher.  [default: 8]"),
)
machine_options = all_of(
    named("--devices", "LIST", "One process a device: 0,1,2,3, or all GPUs, or cpu,cpu."),
    choice("--engine", ENGINES, "Workers in a Ray cluster, one a GPU."),
    named("--address", "ADDRESS", "Address of the cluster.  [default: $RAY_ADDRESS, or this machine alone]"),
    named("--part", "I/N", "Encode the I-th of N parts of the texts, for several processes or machines."),
)


def read_pairs(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> Mapping[str, str]:
    """Return the models of ``en-de=MODEL`` ... by their pair of languages."""
    if bad := [one for one in given if not all(one.partition("="))]:
        raise click.BadParameter(f"{bad[0]!r}: expected PAIR=MODEL, such as en-de=PATH", context, parameter)
    return dict(one.split("=", 1) for one in given)


view_options = all_of(
    many("--view", "views", "SPEC", "Store another text of every row, see 'embedcache views'."),
    many("--embed-views", "embed_views", "NAME", "Encode this view as well."),
    many(
        "--translator",
        "translators",
        "PAIR=MODEL",
        "Translator, such as en-de=PATH.  [default: Helsinki-NLP/opus-mt-PAIR]",
        callback=read_pairs,
    ),
    click.option(
        "--language",
        metavar="CODE",
        default="en",
        show_default=True,
        help="Language of the texts, as translators name it.",
    ),
    named("--mask-model", "MODEL", "Masked language model.  [default: google-bert/bert-base-uncased]"),
)

limit_options = all_of(
    click.option(
        "--max-bytes", callback=read_size, metavar="SIZE", help="Refuse to fetch more than this, say 20GB."
    ),
    named("--require-signature", "KEYFILE", "Count only pushes signed by an ed25519 key in this file."),
)
