"""``embedcache plan``."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    codec_option,
    json_option,
    output_option,
    pop_remote,
    pop_views,
    reader_options,
    remote_options,
    shard_rows_option,
    teacher_options,
    view_options,
)

if TYPE_CHECKING:
    from embedcache.build_report import BuildProgress
    from embedcache.plan import OutputOfPlan, Plan, Range, Speed, ViewOfPlan


@click.command("plan")
@click.argument("sources", nargs=-1, required=True)
@teacher_options
@click.option("--cache", metavar="DIR", help="The cache to build into.  [default: a new one]")
@click.option("--name", help="The corpus's name there, for its views.  [default: from the first file's name]")
@reader_options
@output_option
@codec_option
@shard_rows_option
@view_options
@remote_options
@click.option(
    "--token-sample",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Count the tokens of so many missing texts; where there are more, of a sample.",
)
@click.option(
    "--probe-seconds",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Run the teacher for about so long to time it; 0 leaves times out.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the samples.")
@json_option
def plan_command(sources: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Say what building SOURCES would encode, how large and how long that gets, and when it pays.

    SOURCES are what 'embedcache build' takes. They are read once; nothing is written into the cache.
    """
    settings["remote"] = pop_remote(settings)
    print_plan(sources, as_json=as_json, **settings)


def print_plan(sources: tuple[str, ...], *, as_json: bool, **settings: Any) -> None:
    """Print what a build of ``sources`` would do; ``settings`` are those of the commands."""
    import json

    from embedcache.cli.progress import build_line, ticker
    from embedcache.plan import plan_build
    from embedcache.sizes import counted

    views = pop_views(settings)
    # Settings of a build that change nothing here.
    for name in ("replace", "store", "token_embeddings"):
        settings.pop(name, None)
    with ticker() as show:

        def on_progress(progress: BuildProgress) -> None:
            texts = counted(progress.rows, "text")
            named = {"count": f"count the tokens of {texts}", "probe": "time the teacher"}
            show(named.get(progress.phase) or build_line(progress))

        plan = plan_build(list(sources), views=views, on_progress=on_progress, **settings)
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=2))
    else:
        _print(plan)


def _print(plan: Plan) -> None:
    from rich.console import Console
    from rich.text import Text

    from embedcache.cli.tables import print_table

    print_table(("plan", "value"), [*_rows(plan), *_times(plan)], title=plan.teacher)
    headings = ("codec", "a vector", "a row", "to write", "all distinct")
    what = f"{plan.outputs[0].output} on disk, in bytes" if len(plan.outputs) > 1 else "bytes on disk"
    print_table(headings, _sizes(plan), title=f"{what}; a row is a vector, its key and its token count")
    for note in plan.notes:
        Console().print(Text(note), soft_wrap=True)


def _rows(plan: Plan) -> list[tuple[str, str]]:
    from embedcache.sizes import counted

    skipped = ", ".join(f"{count:,} {why}" for why, count in sorted(plan.skipped.items())) or "none"
    texts = plan.rows * (1 + sum(view.is_counted for view in plan.views))
    rows = [
        ("rows", f"{plan.rows:,}"),
        ("skipped", skipped),
        *([("not asked for", f"{counted(plan.not_asked, 'row')}, by --rows")] if plan.not_asked else []),
        *((f"view {view.name}", _view(view)) for view in plan.views),
        ("distinct", f"{plan.distinct:,} ({texts - plan.distinct:,} duplicates)"),
        ("already cached", f"{plan.cached:,}"),
        ("carried over", f"{plan.reusable:,} from another max_length"),
        *([("on the remote", _remote(plan))] if plan.remote_bytes is not None else []),
        ("to encode", f"{plan.missing:,}"),
    ]
    if len(plan.outputs) > 1:
        rows += [(one.output, _output(one, plan.distinct)) for one in plan.outputs]
    if plan.tokens is None:
        return [*rows, ("tokens", "unknown: the teacher has no fast tokenizer")]
    tokens = plan.tokens
    how = (
        f"± {tokens.standard_error:,.0f} (standard error of a sample of {tokens.sample:,})"
        if tokens.standard_error
        else "exactly"
    )
    return [
        *rows,
        ("tokens to encode", f"{tokens.missing:,.0f} {how}"),
        ("truncated", f"{tokens.truncated_share:.2%} of all rows are longer than the teacher reads"),
    ]


def _remote(plan: Plan) -> str:
    from embedcache.cli.tables import size

    return f"{plan.remote:,} to fetch, {size(plan.remote_bytes or 0)}"


def _output(one: OutputOfPlan, distinct: int) -> str:
    from embedcache.cli.tables import size

    carried = f", {one.reusable:,} taken over" if one.reusable else ""
    store = distinct - one.cached - one.reusable
    return (
        f"as teacher {one.teacher}: {store:,} to store{carried}, {one.cached:,} already cached; "
        f"{size(one.to_write)} to write as {one.codec}"
    )


def _view(view: ViewOfPlan) -> str:
    encoded = "also to encode" if view.is_counted else "also to encode, not counted here"
    return f"{'there' if view.is_there else 'to make'}{f'; {encoded}' if view.is_embedded else ''}"


def _times(plan: Plan) -> list[tuple[str, str]]:
    if not plan.missing:
        return [("time", "nothing to encode: the cache has paid for itself")]
    if plan.encode is None or plan.live is None or plan.cached_epoch_seconds is None:
        return [("time", "not measured: --probe-seconds 0")]
    rows = [
        ("encoding", _speed(plan.encode)),
        ("build", _span(plan.build_seconds)),
        ("teacher in the loop", f"{_speed(plan.live)} in random batches of 128"),
        ("an epoch of that", _span(plan.live_epoch_seconds)),
        ("an epoch from the cache", f"{_duration(plan.cached_epoch_seconds)} of reading"),
    ]
    paid = plan.epochs_to_pay
    if paid is None:
        return [*rows, ("pays for itself", "never: reading takes as long as running the teacher")]
    last = "never" if math.isinf(paid.high) else f"{paid.high:.2f}"
    after = (
        f"after {paid.mean:.2f} student epochs ({paid.low:.2f} to {last}): in epoch {math.ceil(paid.mean)}"
    )
    return [*rows, ("pays for itself", after)]


def _sizes(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    from embedcache.cli.tables import size
    from embedcache.codecs import DEFAULT_CODEC

    rows = []
    for one in plan.bytes:
        name = one.codec
        if one.codec == plan.codec:
            usual = "default" if one.codec == DEFAULT_CODEC else "chosen"
            name += " (in use)" if plan.codec_in_use else f" ({usual})"
        if one.codebook:
            name += f" (incl. codebook {size(one.codebook)})"
        rows.append((name, f"{one.a_vector:,}", f"{one.a_row:,.0f}", size(one.to_write), size(one.distinct)))
    return rows


def _speed(speed: Speed) -> str:
    return f"{speed.mean:,.0f} {speed.unit} ({speed.low:,.0f} to {speed.high:,.0f})"


def _span(found: Range | None) -> str:
    if found is None:
        return "unknown"
    return f"{_duration(found.mean)} ({_duration(found.low)} to {_duration(found.high)})"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
