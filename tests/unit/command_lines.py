"""Commands of embedcache and distill, run one after the other in this process.

Each line of standard input is a list of words. It is answered with a line: [exit code, stdout, stderr].
With ``--quiet-paths``, ``Path.exists`` and its like return False without permission, as from Python 3.14 on.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

QUIET = {
    "exists": os.path.exists,
    "is_dir": os.path.isdir,
    "is_file": os.path.isfile,
    "is_symlink": os.path.islink,
}


def run(words: list[str]) -> tuple[int, str, str]:
    """Run one command; a traceback has the exit code -1."""
    if words[0] == "distill":
        from distill.cli.main import main
    else:
        from embedcache.cli.main import main
    out, err, code = io.StringIO(), io.StringIO(), -1
    sys.argv = words
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # noqa: BLE001 - reported
            traceback.print_exc()
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    if "--quiet-paths" in sys.argv:
        for name, method in QUIET.items():
            setattr(Path, name, method)
    for line in sys.stdin:
        sys.__stdout__.write(json.dumps(run(json.loads(line))) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
