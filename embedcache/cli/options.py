"""Options that several commands share, so that a word means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from embedcache.cli.tables import size
from embedcache.sizes import parse_size

if TYPE_CHECKING:
    from embedcache.share.read_through import RemoteOptions
    from embedcache.views.plan import ViewOptions

F = TypeVar("F", bound=Callable[..., object])

FORMATS = ("text", "jsonl", "csv", "tsv", "parquet", "arrow")
CODEC_NAMES = ("float32", "float16", "int8", "pq")
STORE_KINDS = ("arrow", "lmdb")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def read_size(
    context: click.Context | None, parameter: click.Parameter | None, text: str | None
) -> int | None:
    """Return the number of bytes that ``text`` means: ``500000``, ``20MB``, ``1.5 GB``.

    Raises:
        click.BadParameter: if it is none.
    """
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


_READER = (
    click.option(
        "--text-column",
        help="Column of the text.  [default: the only text column, or text, sentence, content]",
    ),
    click.option("--text2-column", help="Column of a second text: rows are pairs of texts then."),
    click.option(
        "--rows",
        multiple=True,
        metavar="COLUMN=VALUE",
        help="Read such rows alone, say split=train. May be repeated; all have to hold.",
    ),
    click.option("--id-column", help="Column of unique row ids to keep."),
    click.option("--label-column", help="Column of labels to keep."),
    click.option(
        "--format", type=click.Choice(FORMATS), help="Format of the sources.  [default: by the file's ending]"
    ),
    click.option("--limit", type=click.IntRange(1), help="Read the first so many rows only."),
    click.option("--delimiter", metavar="CHAR", help="Delimiter of CSV and TSV: a character, or tab."),
)

_TEACHER = click.option(
    "--teacher", required=True, metavar="SPEC", help="Alias, hub id with @revision, or local folder."
)

_TRUST = click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")

_CONTRACT = (
    click.option(
        "--pooling", help="How token vectors become one: mean, cls, cls-before-pooler, pooler or last."
    ),
    click.option("--prompt", help="Text put before every sentence.  [default: the teacher's own]"),
    click.option(
        "--max-length",
        type=click.IntRange(1),
        help="Tokens after which a text is cut.  [default: the teacher's own]",
    ),
    click.option("--truncate-dim", type=click.IntRange(1), help="Keep so many leading dimensions."),
    click.option(
        "--normalize/--no-normalize",
        default=None,
        help="Scale vectors to length one.  [default: as the teacher]",
    ),
    _TRUST,
)

_DEVICE = (
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ..."),
    click.option(
        "--batch-tokens", type=click.IntRange(1), help="Tokens a forward batch.  [default: by device]"
    ),
    click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores]"),
)

_COMPUTE = (
    click.option(
        "--compute-dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="What the teacher computes in.",
    ),
    *_DEVICE,
)

_AS_STORED = (
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
    *_DEVICE,
    _TRUST,
)

_TEACHER_NAME = click.option(
    "--teacher-name", help="The teacher's name in the cache.  [default: alias, folder or hub name]"
)

_VIEWS = (
    click.option(
        "--view",
        "views",
        multiple=True,
        metavar="SPEC",
        help="Store another text for every row, made so: 'embedcache views' lists how. May be repeated.",
    ),
    click.option(
        "--view-seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="What random choices of views start from.",
    ),
    click.option(
        "--embed-views",
        multiple=True,
        metavar="NAME",
        help="Encode this view as well.  [default: the original text alone]",
    ),
    click.option(
        "--replace-views", is_flag=True, help="Replace views of the same names that were made otherwise."
    ),
    click.option("--via", metavar="LANGUAGE", help="Language of translations that name none, such as de."),
    click.option(
        "--language", default="en", show_default=True, help="Language of the texts, for translations."
    ),
    click.option(
        "--translator",
        "translators",
        multiple=True,
        metavar="PAIR=MODEL",
        help="Hub id or folder of a translator, such as en-de=PATH.  [default: Helsinki-NLP/opus-mt-PAIR]",
    ),
    click.option(
        "--mask-model",
        metavar="MODEL",
        help="Hub id or folder of a masked language model.  [default: google-bert/bert-base-uncased]",
    ),
)


# A shard is held in memory until it is whole, and a killed build loses one.
_MOST_SHARD_ROWS = 1 << 20
# For messages: what many teachers give.
_USUAL_WIDTH = 768


def _refuse_huge(context: click.Context, parameter: click.Parameter, rows: int) -> int:
    """Return ``rows`` of a shard, or refuse what no memory holds, with what it would take."""
    if rows > _MOST_SHARD_ROWS:
        wanted, most = (size(4 * _USUAL_WIDTH * count) for count in (rows, _MOST_SHARD_ROWS))
        raise click.BadParameter(
            f"{rows:,} vectors of {_USUAL_WIDTH} components are {wanted}, and a shard is held in memory "
            f"until it is whole: expected at most {_MOST_SHARD_ROWS:,} ({most})",
            context,
            parameter,
        )
    return rows


shard_rows_option = click.option(
    "--shard-rows",
    type=click.IntRange(1),
    callback=_refuse_huge,
    default=16384,
    show_default=True,
    help="Vectors a shard.",
)
output_option = click.option(
    "--output",
    default="embedding",
    show_default=True,
    help="What to keep: embedding, logits (the teacher's folder needs a classifier), or embedding,logits.",
)
codec_option = click.option(
    "--codec", type=click.Choice(CODEC_NAMES), help="How vectors are stored.  [default: float16]"
)
_REMOTE = click.option(
    "--remote", metavar="REMOTE", help="Fetch vectors that this remote has, by name or URL."
)
_LIMITS = (
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
cache_option = click.option(
    "--cache",
    required=True,
    envvar="EMBEDCACHE_CACHE",
    metavar="DIR",
    help="The cache's folder.  [default: $EMBEDCACHE_CACHE]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options, shown in this order."""

    def decorate(command: F) -> F:
        # Decorators apply from the last to the first; the help shows options in the order listed here.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def reader_options(command: F) -> F:
    """Add what to take from the sources: the fields of :class:`embedcache.corpus.readers.ReadOptions`."""
    return all_of(*_READER)(command)


def view_options(command: F) -> F:
    """Add which views are made, and with what: the fields of :class:`embedcache.views.plan.ViewOptions`."""
    return all_of(*_VIEWS)(command)


def contract_options(command: F) -> F:
    """Add ``--teacher`` and every setting that is part of its contract."""
    return all_of(_TEACHER, *_CONTRACT)(command)


def teacher_options(command: F) -> F:
    """Add what :func:`contract_options` adds, the teacher's name in the cache, and how it computes."""
    return all_of(_TEACHER, *_CONTRACT, _TEACHER_NAME, *_COMPUTE)(command)


def remote_options(command: F) -> F:
    """Add which remote is read through: fields of :class:`embedcache.share.read_through.RemoteOptions`."""
    return all_of(_REMOTE, *_LIMITS)(command)


def limit_options(command: F) -> F:
    """Add what is taken from a remote: its size, who signed it, and pushes to leave out."""
    return all_of(*_LIMITS)(command)


def live_teacher_options(command: F) -> F:
    """Add how to run a teacher again: the fields of :class:`embedcache.live.Computing`."""
    return all_of(*_AS_STORED)(command)


def pop_remote(settings: dict[str, Any]) -> RemoteOptions | None:
    """Take what :func:`remote_options` has added out of a command's settings."""
    given = {name: settings.pop(name) for name in ("max_bytes", "require_signature", "skip_manifests")}
    remote = settings.pop("remote")
    if remote is None:
        return None
    from embedcache.share.read_through import RemoteOptions

    return RemoteOptions(remote, **given)


def pop_views(settings: dict[str, Any]) -> ViewOptions:
    """Take what :func:`view_options` has added out of a command's settings."""
    from embedcache.views.plan import ViewOptions

    return ViewOptions(
        views=settings.pop("views"),
        seed=settings.pop("view_seed"),
        replace=settings.pop("replace_views"),
        via=settings.pop("via"),
        language=settings.pop("language"),
        translators=_pairs(settings.pop("translators")),
        mask_model=settings.pop("mask_model"),
        device=settings["device"],
        embed=settings.pop("embed_views"),
    )


def _pairs(translators: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for one in translators:
        pair, equals, model = one.partition("=")
        if not (pair and equals and model):
            raise click.BadParameter(
                f"{one!r}: expected a pair of languages and a model, such as en-de=./opus-mt-en-de",
                param_hint="--translator",
            )
        pairs[pair] = model
    return pairs
