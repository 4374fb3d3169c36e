"""Build into a memory file system of 4 MB until it is full, enlarge it, and build on.

Run as ``python full_disk.py MOUNT_POINT SOURCE STORE`` where mounting is allowed; prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
from soundness import leftovers, snapshot

from embedcache.builder import build
from embedcache.errors import StorageError
from embedcache.testing import FakeEncoder, fake_teacher

SHARD_ROWS = 512


def build_into(cache: Path, source: Path, store: str) -> int:
    """Build ``source`` into ``cache`` and return how many rows were encoded."""
    encoder = FakeEncoder(fake_teacher(384))
    build(source, teacher=encoder.teacher, encoder=encoder, cache=cache, shard_rows=SHARD_ROWS, store=store)
    return encoder.rows_encoded


def main(mount_point: Path, source: Path, store: str) -> None:
    """Fill the file system up, then finish."""

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount_point)]
        subprocess.run(command, check=True)

    cache = mount_point / "cache"
    mount("size=4M")
    try:
        build_into(cache, source, store)
    except StorageError as error:
        message = str(error)
    else:
        sys.exit("a build of more than 4 MB went into a file system of 4 MB")
    before, half_written = snapshot(cache), len(leftovers(cache))
    mount("remount,size=64M")
    rows = build_into(cache, source, store)
    figures = {"message": message, "before": before, "half_written": half_written, "rows": rows}
    click.echo(json.dumps({**figures, "after": snapshot(cache)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
