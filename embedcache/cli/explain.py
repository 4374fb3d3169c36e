"""``embedcache explain``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import FORMATS, cache_option, contract_options, json_option

if TYPE_CHECKING:
    from embedcache.explain import Explanation, TextFinding

_TEXT_SHOWN = 80
_CANDIDATES_SHOWN = 5


@click.command("explain")
@click.argument("text", metavar="TEXT-or-FILE")
@contract_options
@cache_option
@click.option(
    "--text-column",
    "--column",
    "text_column",
    help="A file's column of the text.  [default: the only text column, or text, sentence, content]",
)
@click.option("--text2-column", help="A file's column of a second text: rows are pairs of texts then.")
@click.option(
    "--format", type=click.Choice(FORMATS), help="Format of the file.  [default: by the file's ending]"
)
@click.option("--limit", type=click.IntRange(1), help="Read the first so many rows only.")
@click.option(
    "--show",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Texts of a file that are not cached to explain one by one.",
)
@click.option("--load", is_flag=True, help="Load the model even if the cache knows the teacher's name.")
@json_option
def explain_command(
    text: str,
    teacher: str,
    cache: str,
    text_column: str | None,
    text2_column: str | None,
    format: str | None,  # noqa: A002 - the word of the command line
    limit: int | None,
    show: int,
    load: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Say whether a text, or each row of a file, is cached for a teacher, and if not, why.

    The teacher may also be given by its name in the cache or the beginning of its contract id: then the model
    is loaded only where a setting is changed or --load is given. '-' reads texts from standard input; what is
    no file is taken for a text.
    """
    import json

    from embedcache.cache import Cache
    from embedcache.cli.progress_bar import show_progress
    from embedcache.corpus.readers import ReadOptions, expand_sources
    from embedcache.explain import explain_sources, explain_texts, want

    if not text or text.isspace():
        raise click.UsageError("the text is empty: give a text or a file; a build skips empty texts, too")
    of_file = _is_file(text)
    if not of_file:
        of_files = {"--text-column": text_column, "--text2-column": text2_column}
        _refuse_options_of_files(text, {**of_files, "--format": format, "--limit": limit})
    opened = Cache(cache)
    with show_progress() as progress:
        wanted = want(opened, teacher, load=load, **settings)
        if of_file:
            options = ReadOptions(text_column, format=format, limit=limit, text2_column=text2_column)
            sources = expand_sources([text])
            found = explain_sources(opened, wanted, sources, options, show=show, progress=progress)
        else:
            found = explain_texts(opened, wanted, [text], progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found, of_file=of_file)


def _refuse_options_of_files(text: str, options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise click.UsageError(f"{', '.join(given)} is for files, and there is no file {text[:80]!r}")
    if re.fullmatch(r"\S+\.[a-z]{2,8}(\.gz|\.zst)?", text):
        click.echo(f"there is no file {text!r}: it is taken for a text", err=True)


def _is_file(text: str) -> bool:
    from pathlib import Path

    try:
        return text == "-" or Path(text).exists()
    except (OSError, ValueError):
        # A text may be too long for a path, or hold what no path may.
        return False


def _print(found: Explanation, *, of_file: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    lines = [*_teacher_lines(found), *(_count_lines(found) if of_file else [])]
    for one in found.texts:
        lines += _text_lines(one, teacher_known=bool(found.known))
    console = Console()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _teacher_lines(found: Explanation) -> list[str]:
    from embedcache.contract import describe_differences

    wanted = found.wanted
    how = "the model was loaded" if wanted.loaded else "by the cache's own record; --load asks the model"
    head = f"teacher {wanted.name}, contract {wanted.contract.id[:12]} ({how})"
    if found.known:
        others = [name for name in found.known if name != wanted.name]
        return [f"{head}: in the cache" + (f" as {', '.join(others)}" if others else "")]
    lines = [f"{head}: not in the cache"]
    lines += [
        f"  {'nearest' if number == 0 else 'also'}: {one.name} ({one.contract_id[:12]}), "
        f"{describe_differences(one.differences)}"
        for number, one in enumerate(found.candidates[:_CANDIDATES_SHOWN])
    ]
    if len(found.candidates) > _CANDIDATES_SHOWN:
        lines.append(f"  and {len(found.candidates) - _CANDIDATES_SHOWN} more, further away")
    if not found.candidates:
        lines.append("  the cache holds no teacher at all")
    return lines


def _count_lines(found: Explanation) -> list[str]:
    from embedcache.sizes import counted

    cached = f"{found.cached:,} cached ({found.truncated:,} of them truncated)"
    lines = [f"{counted(found.rows, 'row')}: {cached}, {found.rows - found.cached:,} not"]
    if found.skipped:
        skipped = ", ".join(f"{count:,} {why}" for why, count in sorted(found.skipped.items()))
        lines.append(f"rows skipped: {skipped}")
    if found.reusable:
        lines.append(
            f"{found.reusable:,} of those that are not cached need no encoding: a build carries them over "
            "from another max_length"
        )
    return lines


def _text_lines(one: TextFinding, *, teacher_known: bool) -> list[str]:
    from embedcache.sizes import counted

    shown = repr(one.text if len(one.text) <= _TEXT_SHOWN else one.text[:_TEXT_SHOWN] + "…")
    if one.cached:
        tokens = "an unknown number of tokens" if one.tokens is None else counted(one.tokens, "token")
        cut = ", truncated" if one.truncated else ""
        lines = [f"{shown}: cached as {one.codec} in shard {(one.shard or '')[:12]}, {tokens}{cut}"]
    else:
        lines = [f"{shown}: not cached"]
    for place in one.rows:
        rows = ", ".join(f"{row:,}" for row in place.first_rows)
        more = (
            f" and {place.count - len(place.first_rows):,} more"
            if place.count > len(place.first_rows)
            else ""
        )
        view = "" if place.view is None else f"view {place.view} of "
        lines.append(f"  in {view}corpus {place.corpus}, row {rows}{more} (counted from 0)")
    in_view = any(place.view is not None for place in one.rows)
    if one.rows and not one.cached and teacher_known:
        lines.append(
            "  the row is there, its vector is not: run the build of that corpus again"
            + (", with --embed-views where it stands in a view" if in_view else "")
        )
    if one.lender is not None:
        lines.append(f"  a build carries its vector over from teacher {one.lender}, without the model")
    for near in one.near:
        lines.append(f"  differs in spelling: {near.text!r} in corpus {near.corpus}, row {near.row:,}")
    if not one.cached and not one.rows and not one.near:
        lines.append("  in no corpus, and nothing like it")
    return lines
