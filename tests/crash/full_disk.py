"""Build into a memory file system of 4 MB until it is full, enlarge it, and build on.

Run as ``python full_disk.py MOUNT_POINT SOURCE STORE`` where mounting is allowed; prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from building import build, content, leftovers, rows_encoded

from embedcache.errors import StorageError
from embedcache.testing import fake_teacher


def build_into(cache: Path, source: Path, store: str) -> int:
    """Build ``source`` into ``cache`` and return how many rows were encoded."""
    return rows_encoded(build(source, cache, fake_teacher(384), shard_rows=512, store=store))


def main(mount_point: Path, source: Path, store: str) -> None:
    """Fill the file system up, then finish."""

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount_point)]
        subprocess.run(command, check=True)

    cache = mount_point / "cache"
    mount("size=4M")
    try:
        build_into(cache, source, store)
    except StorageError:
        found = {"before": content(cache), "leftovers": leftovers(cache)}
    else:
        sys.exit("a build of more than 4 MB went into a file system of 4 MB")
    mount("remount,size=64M")
    found |= {"rows": build_into(cache, source, store), "after": content(cache)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
