"""``embedcache verify``, ``repair``, ``doctor``, ``gc`` and ``rm``."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    cache_option,
    dry_run_option,
    flag,
    json_option,
    live_teacher_options,
    many,
    named,
)
from embedcache.cli.tables import print_json, print_table, shortened
from embedcache.progress import show_progress
from embedcache.sizes import counted, size

if TYPE_CHECKING:
    from embedcache.doctor import Diagnosis

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")


def _short(text: str) -> str:
    """Return a text with its digests cut to 12 digits."""
    return _DIGEST.sub(r"\1…", text)


@click.command("verify")
@cache_option
@json_option
def verify_command(cache: str, as_json: bool) -> None:
    """Read every byte of a cache and list damaged and missing files.

    Nothing is changed. Exits with 1 if anything is damaged, or cannot be read.
    """
    from embedcache.verify import verify

    with show_progress() as progress:
        found = verify(cache, progress=progress)
    if as_json:
        print_json(found)
    else:
        rows = [(one.state, one.kind, _short(one.path), _short(one.what), one.fix) for one in found.findings]
        print_table(("", "kind", "file", "found", "remedy"), rows)
        counts = {"damaged": len(found.damage), "not read": len(found.unread)}
        state = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "sound"
        files = f"{counted(found.files, 'file')}, {size(found.bytes)}"
        click.echo(f"{found.cache}: {state}; {files} in {found.seconds:.1f} s")
    sys.exit(1 if found.damage or found.unread else 0)


@click.command("repair")
@cache_option
@live_teacher_options
@dry_run_option
@json_option
def repair_command(cache: str, dry_run: bool, as_json: bool, **computing: Any) -> None:
    """Repair damage in a cache: encode lost vectors again, write documents again.

    What is damaged is moved to derived/quarantine/; what cannot be read is left alone. Exits with 1 if
    something is left to do by hand.
    """
    from embedcache.live import Computing
    from embedcache.repair import repair

    with show_progress() as progress:
        done = repair(cache, computing=Computing(**computing), dry_run=dry_run, progress=progress)
    if as_json:
        print_json(done)
    else:
        rows = [(one.outcome, one.kind, _short(one.path), _short(one.detail)) for one in done.fixes]
        print_table(("plan" if dry_run else "done", "kind", "file", ""), rows)
        left = f", {len(done.left):,} left to do" if done.left else ""
        repaired = counted(len(done.fixes) - len(done.left), "file")
        encoded = f"{counted(done.rows_encoded, 'row')} {'to encode' if dry_run else 'encoded'}"
        would = "would be " if dry_run else ""
        seconds = "" if dry_run else f" in {done.seconds:.1f} s"
        click.echo(f"{done.cache}: {repaired} {would}repaired{left}; {encoded}{seconds}")
    sys.exit(1 if done.left else 0)


@click.command("doctor")
@cache_option
@named("--teacher", "NAME", "Teacher to judge.  [default: the only one]")
@named("--corpus", "NAME", "Judge this corpus alone.  [default: all vectors]")
@many("--evaluation-set", "evaluation_sets", "PATH", "File or folder of texts that must not be trained on.")
@click.option(
    "--deep",
    type=click.IntRange(0),
    is_flag=False,
    flag_value=1000,
    default=0,
    metavar="[N]",
    help="Encode N texts again with the live teacher and compare.  [N: 1000]",
)
@flag("--codecs", "Compare size and loss of the codecs.")
@live_teacher_options
@json_option
def doctor_command(
    cache: str, teacher_model: str | None, trust_remote_code: bool, as_json: bool, **options: Any
) -> None:
    """Judge a cache before a student is trained on it.

    Finds broken, equal and missing vectors, measures their geometry, and finds texts of evaluation sets among
    those that would be trained on. Exits with 1 if --deep finds a wrong vector.
    """
    from embedcache.doctor import examine
    from embedcache.live import Computing

    computing = Computing(teacher_model, trust_remote_code=trust_remote_code)
    with show_progress() as progress:
        diagnosis = examine(cache, computing=computing, progress=progress, **options)
    if as_json:
        print_json(diagnosis)
    else:
        _print(diagnosis)
    sys.exit(1 if diagnosis.has_wrong_vectors else 0)


def _print(diagnosis: Diagnosis) -> None:
    findings = [
        (one.name, f"{one.figure}\n{one.advice}" if one.advice else one.figure, one.level)
        for one in diagnosis.findings
    ]
    print_table(("finding", "figure", "verdict"), findings, f"{diagnosis.cache}: {diagnosis.teacher}")
    for finding in diagnosis.findings:
        if finding.examples:
            groups = (" | ".join(repr(shortened(text, 70)) for text in one) for one in finding.examples)
            click.echo("\n  ".join([f"{finding.name}, for example:", *groups]))
    if not diagnosis.codecs:
        return
    columns = ("codec", "bytes a vector", "mean cosine", "worst cosine", "nearest 10 kept")
    rows = [
        (
            loss.codec + (" *" if loss.codec in diagnosis.stored_as else ""),
            loss.bytes_per_vector,
            loss.mean_cosine,
            loss.worst_cosine,
            None if loss.neighbours_kept is None else f"{loss.neighbours_kept:.1%}",
        )
        for loss in diagnosis.codecs
    ]
    print_table(columns, rows, "codecs; * as stored, no codec brings back what that has lost")
    for loss in diagnosis.codecs:
        if loss.note:
            click.echo(f"{loss.codec}: {loss.note}")


@click.command("gc")
@cache_option
@click.option(
    "--older",
    type=click.FloatRange(0),
    metavar="HOURS",
    default=168,
    help="Keep what was touched within HOURS.  [default: 168, a week]",
)
@flag("--unused", "Also delete vectors of no corpus and no view.")
@flag("--quarantine", "Also delete what repair quarantined.")
@dry_run_option
@json_option
def gc_command(cache: str, older: float, dry_run: bool, as_json: bool, **also: bool) -> None:
    """Delete what killed processes, replaced corpora and old indexes left behind."""
    from embedcache.cache import Cache
    from embedcache.gc import collect_garbage

    found = collect_garbage(Cache(cache), hours=older, dry_run=dry_run, **also)
    if as_json:
        print_json(found)
        return
    print_table(("path", "reason", "size"), [(one.path, one.reason, size(one.bytes)) for one in found])
    freed = size(sum(one.bytes for one in found))
    click.echo(f"{len(found)} found, {freed} {'would be freed' if dry_run else 'freed'}")


@click.command("rm")
@click.argument("kind", type=click.Choice(["corpus", "view", "teacher"]))
@click.argument("name", metavar="NAME")
@cache_option
@flag("--yes", "Do not ask.")
def rm_command(kind: str, name: str, cache: str, yes: bool) -> None:
    """Remove a corpus, a view (CORPUS/VIEW) or a teacher.

    A corpus goes with its views, and vectors are kept. A teacher goes with its vectors; if it has another
    name, only the name goes.
    """
    from embedcache.cache import Cache
    from embedcache.gc import find_removal

    opened = Cache(cache)
    found = find_removal(opened, kind, name)
    try:
        if not yes:
            click.confirm(f"remove {kind} {name!r} from {opened.folder}?", abort=True)
    except click.Abort:
        raise click.ClickException("nothing was removed; --yes removes without asking") from None
    found.delete()
    click.echo(f"removed {kind} {name!r}: {size(found.bytes)} freed")
