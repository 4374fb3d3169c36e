"""What people do with a cache that came from somewhere, in a process of its own.

Run as a program it serves the judge of ``hostile_helpers``: each line on standard input is an order as JSON,
each line on standard output says how every operation ended. An order runs in a forked process, so that a
crash, a hang or a flood of memory is seen rather than suffered, and leaves nothing behind for the next one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.catalog.query import query
from embedcache.check.verify import verify
from embedcache.cli.main import cli
from embedcache.errors import EmbedCacheError
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(300)
TEACHER = "fake"
CORPUS = "words"
DIMENSION = 16
SHARD_ROWS = 260
"""Two shards, the first of them with rows enough for a codebook."""

# A process that takes more for an operation is ended: no sound machine is so slow.
_CPU_SECONDS = 20
_WAIT_SECONDS = 300
_CODE_RUNS = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


def build_corpus(cache: Path, source: Path, **options: Any) -> Cache:
    """Build the corpus in ``source`` into ``cache``."""
    teacher = fake_teacher(DIMENSION, name=TEACHER)
    return build(
        source, teacher=teacher, encoder=FakeEncoder(teacher), cache=cache, shard_rows=SHARD_ROWS, **options
    )


def expected_vectors() -> NDArray[np.float32]:
    """Return what the teacher gives for :data:`TEXTS`, shape (300, 16)."""
    return FakeEncoder(fake_teacher(DIMENSION, name=TEACHER)).encode(TEXTS).vectors


def _open(cache: Path) -> object:
    opened = Cache(cache)
    return [opened.corpus_names(), sorted(teacher.name for teacher in opened.teachers())]


def _lookup(cache: Path) -> object:
    vectors = Cache(cache).lookup(TEXTS, TEACHER)
    Cache(cache).lookup([], TEACHER)
    with np.errstate(all="ignore"):
        return round(float(np.abs(vectors - expected_vectors()).max()), 3)


def _texts(cache: Path) -> object:
    return [text for corpus in Cache(cache).corpora() for text in corpus.texts()] == TEXTS


def _command(*arguments: str) -> object:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        cli.main([*arguments], standalone_mode=False)
    shown.getvalue().encode()
    return None


def _query(cache: Path) -> object:
    counts = []
    for view in ("rows", "vectors", "shards", "teachers", "corpora", "views"):
        with query(cache, f"SELECT * FROM {view}") as result:  # noqa: S608 - one of the names above
            counts.append(result.table().num_rows)
    return counts


def _views(cache: Path) -> object:
    found = []
    for corpus in Cache(cache).corpora():
        for view in corpus.views():
            found.append([view.name, view.recipe.describe(), len(view.texts())])
            _command("show", "--corpus", corpus.name, "--row", "0", "--cache", str(cache))
    return found


def _verify(cache: Path) -> object:
    return sorted({f"{one.severity} {one.path}: {one.found}" for one in verify(cache).findings})


def _build(cache: Path) -> object:
    done = build_corpus(cache, cache.parent / f"{CORPUS}.txt").last_build
    return None if done is None else done.encoded


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "verify": _verify,
    "open": _open,
    "texts": _texts,
    "lookup": _lookup,
    "ls": lambda cache: _command("ls", "--cache", str(cache)),
    "info": lambda cache: _command("info", TEACHER, "--cache", str(cache)),
    "info-corpus": lambda cache: _command("info", CORPUS, "--cache", str(cache)),
    "query": _query,
    "views": _views,
    "build": _build,
}
"""In this order: the first ones see the cache as it came, the last one writes."""


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _obey(order: dict[str, Any]) -> dict[str, Any]:
    ran: list[str] = []
    before = _peak_bytes()
    cpu_seconds = _CPU_SECONDS * len(order["operations"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.addaudithook(lambda event, _: ran.append(event) if event in _CODE_RUNS else None)
    outcomes = {}
    for name in order["operations"]:
        began = time.process_time()
        try:
            outcome = {"result": OPERATIONS[name](Path(order["cache"]))}
        except EmbedCacheError as error:
            outcome = {"error": str(error), "type": type(error).__name__}
        except BaseException:  # noqa: BLE001 - whatever it is, the parent has to hear of it
            outcome = {"crash": traceback.format_exc()[-2000:]}
        outcomes[name] = {**outcome, "seconds": time.process_time() - began}
    return {"outcomes": outcomes, "grown": _peak_bytes() - before, "ran": ran}


def _fork_and_obey(order: dict[str, Any]) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            with os.fdopen(write_end, "w") as answer:
                json.dump(_obey(order), answer)
        finally:
            os._exit(0)
    os.close(write_end)
    timer = threading.Timer(_WAIT_SECONDS, os.kill, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(read_end) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    timer.cancel()
    return json.loads(text) if text and status == 0 else {"died": status}


def _serve() -> None:
    # Loaded once, not again for every order; pyarrow loads pandas, where it is installed, at its first array.
    for module in ("duckdb", "lmdb.verify", "rich.console", "rich.table", "embedcache.describe"):
        import_module(module)
    pa.array(np.zeros(1)).to_numpy()
    for line in sys.stdin:
        answer = _fork_and_obey(json.loads(line))
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer is the output


if __name__ == "__main__":
    _serve()
