"""The command ``embedcache``."""

from __future__ import annotations

import click

from embedcache import EmbedCacheError, __version__
from embedcache.cli.build import build_command, import_command
from embedcache.cli.care import doctor_command, gc_command, repair_command, rm_command, verify_command
from embedcache.cli.copy import copy_command
from embedcache.cli.guard import guarded, refuse_repeats
from embedcache.cli.inspect import (
    explain_command,
    info_command,
    ls_command,
    teachers_command,
    views_command,
)
from embedcache.cli.query import export_command, query_command
from embedcache.cli.share import pull_command, push_command, remote_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="embedcache")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Run a sentence encoder once over a corpus and keep its vectors."""


for command in (
    build_command,
    copy_command,
    doctor_command,
    explain_command,
    export_command,
    gc_command,
    import_command,
    info_command,
    ls_command,
    pull_command,
    push_command,
    query_command,
    remote_command,
    repair_command,
    rm_command,
    teachers_command,
    verify_command,
    views_command,
):
    cli.add_command(refuse_repeats(command))


def main() -> None:
    """Run the command line and exit."""
    guarded(cli, "embedcache", (EmbedCacheError,))
