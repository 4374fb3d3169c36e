"""Caches from a stranger: honest ones, the tools to make them hostile, and a judge of their effect on users.

A judge lets a separate process use a cache, so that a crash, a flood of memory or foreign code is seen
rather than suffered.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from building import build, rows_encoded, write_lines
from forks import FORKS, preload, start

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import EmbedCacheError
from embedcache.fsio import canonical_json, read_sealed_json, spelled_json, write_sealed_json
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(300)
TEACHER = fake_teacher(16)
VIEWS = ["crop", "delete-words"]
KINDS = {"arrow": ("float16", "arrow"), "lmdb": ("int8", "lmdb"), "pq": ("pq", "arrow")}
"""Kind of a cache -> codec and store."""

CPU_SECONDS, WAIT_SECONDS, MOST_BYTES = 5, 120, 1 << 30
_CODE_RUNS = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
preload("stranger")


def build_honest(cache: Path, texts: list[str] = TEXTS, kind: str = "arrow") -> Cache:
    """Build ``texts`` as corpus ``words`` into a cache."""
    source = write_lines(cache.parent / "words.txt", texts)
    codec, store = KINDS[kind]
    views = VIEWS if kind == "arrow" else []
    # Two shards, the first of them with rows enough for a codebook.
    return build(source, cache, TEACHER, views=views, codec=codec, store=store, shard_rows=260)


@functools.cache
def _honest(kind: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="embedcache-honest-"))
    atexit.register(shutil.rmtree, folder)
    build_honest(folder / "cache", kind=kind).lookup(TEXTS[:1])
    return folder


def received(folder: Path, kind: str = "arrow") -> Path:
    """Copy an honest cache and its source into ``folder``, as if they came from a stranger."""
    shutil.copytree(_honest(kind), folder, dirs_exist_ok=True)
    return folder / "cache"


# What users do with it


def _command(*arguments: str) -> int:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = cli.main([*arguments], standalone_mode=False)
    shown.getvalue().encode()
    return int(code or 0)


def _verify(cache: Path) -> int:
    try:
        return _command("verify", "--cache", str(cache))
    except SystemExit as ended:
        return int(ended.code or 0)


def _lookup(cache: Path) -> float:
    with np.errstate(all="ignore"):
        found = Cache(cache).lookup(TEXTS, TEACHER.name)
        return round(float(np.abs(found - FakeEncoder(TEACHER).encode(TEXTS).vectors).max()), 3)


def _views(cache: Path) -> list[tuple[str, int]]:
    corpus = Cache(cache).corpus("words")
    return [(name, len(corpus.view(name).texts())) for name in corpus.view_names()]


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "verify": _verify,
    "open": lambda cache: [Cache(cache).corpus_names(), [one.name for one in Cache(cache).teachers()]],
    "texts": lambda cache: Cache(cache).corpus("words").texts() == TEXTS,
    "lookup": _lookup,
    "views": _views,
    "ls": lambda cache: _command("ls", "--cache", str(cache)),
    "info": lambda cache: _command("info", TEACHER.name, "--cache", str(cache)),
    "info corpus": lambda cache: _command("info", "words", "--cache", str(cache)),
    "query": lambda cache: _command(
        "query", "SELECT * FROM rows JOIN vectors USING (key)", "--cache", str(cache)
    ),
    "build": lambda cache: rows_encoded(build(cache.parent / "words.txt", cache, TEACHER, shard_rows=260)),
}
"""In this order: the first ones see the cache as it came, the last one writes."""

USUAL = ("verify", "open", "texts", "lookup", "views", "build")
"""The operations behind all others."""


# The judge


@dataclass(frozen=True)
class Judgement:
    """Outcomes of the operations on a cache.

    Attributes:
        results: operation -> what it gave.
        refused: operation -> message of the error it ended with.
    """

    results: dict[str, Any]
    refused: dict[str, str]

    def assert_true(self, kind: str) -> None:
        """Assert that every result is the right one."""
        for name, result in self.results.items():
            if name in ("texts", "lookup", "ls", "info", "info corpus", "query"):
                good = (
                    result < (0.3 if kind == "pq" else 0.01)
                    if name == "lookup"
                    else result == (name == "texts")
                )
                assert good, f"{name}: {result}"

    def assert_unharmed(self, kind: str) -> None:
        """Assert that everything gave what it gives of an honest cache."""
        assert self.refused == {}
        self.assert_true(kind)
        assert self.results["open"] == [["words"], [TEACHER.name]]
        assert self.results["views"] == ([(name, len(TEXTS)) for name in VIEWS] if kind == "arrow" else [])
        assert self.results["build"] == 0


def judge(caches: Mapping[str, Path], operations: Sequence[str] = USUAL) -> dict[str, Judgement | str]:
    """Let another process use one cache after the other; return name -> judgement, or why there is none.

    Every operation has to end with a result or an error of embedcache in one line, soon and in little memory.
    Nothing beside the cache may change, and no foreign code may run.
    """
    found: dict[str, Judgement | str] = {}
    before = {name: _beside(cache) for name, cache in caches.items()}
    while left := {name: cache for name, cache in caches.items() if name not in found}:
        ours, theirs = FORKS.Pipe(duplex=False)
        process = start(_use, left, operations, theirs)
        theirs.close()
        for name in left:
            try:
                found[name] = _judged(*ours.recv()) if ours.poll(WAIT_SECONDS) else "the process hangs"
            except EOFError:
                process.join()
                found[name] = f"the process died with {process.exitcode}"
            if isinstance(found[name], str):
                break
        process.kill()
        process.join()
    return {
        name: judgement if _beside(caches[name]) == before[name] else "something beside the cache has changed"
        for name, judgement in found.items()
    }


def _judged(outcomes: dict[str, tuple[str, Any, float]], ran: list[str], grown: int) -> Judgement | str:
    for name, (what, value, seconds) in outcomes.items():
        if what == "crash" or seconds > CPU_SECONDS:
            return f"{name}: {seconds:.1f} s, {value}"
        if what == "error" and ("\n" in value or len(value) > 2000):
            return f"{name}: a message of {len(value)} characters, {value[:100]!r}"
    if ran or grown > MOST_BYTES:
        return f"ran {ran}, took {grown:,} bytes"
    return Judgement(
        {name: value for name, (what, value, _) in outcomes.items() if what == "result"},
        {name: value for name, (what, value, _) in outcomes.items() if what == "error"},
    )


def _use(caches: dict[str, Path], operations: Sequence[str], answer: Connection) -> None:
    ran: list[str] = []
    sys.addaudithook(lambda event, _: ran.append(event) if event in _CODE_RUNS else None)
    for cache in caches.values():
        ran.clear()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
        before, outcomes = _peak_bytes(), {}
        for name in operations:
            began = time.process_time()
            try:
                what, value = "result", OPERATIONS[name](cache)
            except EmbedCacheError as error:
                what, value = "error", str(error)
            except BaseException:  # noqa: BLE001 - reported to the parent
                what, value = "crash", traceback.format_exc()[-2000:]
            outcomes[name] = (what, value, time.process_time() - began)
        answer.send((outcomes, list(ran), _peak_bytes() - before))


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _beside(cache: Path) -> dict[str, bytes]:
    """Return path -> content of what lies beside the cache; links are not followed."""
    found = {}
    for folder, names, files in os.walk(cache.parent):
        names[:] = [name for name in names if Path(folder, name) != cache]
        for name in [*names, *files]:
            path = Path(folder, name)
            found[str(path)] = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    return found


# Tools of the stranger


class Fires:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def one(folder: Path, pattern: str) -> Path:
    """Return the first path below ``folder`` that ``pattern`` matches."""
    return min(folder.glob(pattern))


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change sealed JSON and seal it again, as the maker of the cache could."""
    value = read_sealed_json(path)
    change(value)
    write_sealed_json(path, value)


def renamed(path: Path, data: bytes | pa.Buffer) -> Path:
    """Put ``data`` in the place of the file ``path``, under the digest that it has, and return its path."""
    path.unlink()
    target = path.with_name(hashlib.sha256(data).hexdigest() + path.suffix)
    target.write_bytes(data)
    return target


def renamed_part(cache: Path, data: bytes | pa.Buffer) -> None:
    """Put ``data`` in the place of the part of the corpus, and describe it so."""
    target = renamed(one(cache, "corpora/words/*.arrow"), data)
    reseal(cache / "corpora/words/corpus.json", lambda value: value["parts"][0].update(sha256=target.stem))


def renamed_codebook(cache: Path, data: bytes) -> None:
    """Put ``data`` in the place of the codebook, and name it in every shard."""
    target = renamed(one(cache, "teachers/*/codebooks/*.npy"), data)
    for shard in sorted(cache.glob("teachers/*/shards/*")):
        rewritten(shard, codebook=target.stem)


def batch_of(path: Path) -> pa.RecordBatch:
    """Return the one batch of an Arrow file."""
    return pa.ipc.open_file(pa.BufferReader(path.read_bytes())).get_batch(0)


def file_of(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Return an Arrow file of one batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def rewritten(
    path: Path,
    columns: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
    metadata: dict[bytes, bytes] | None = None,
    compression: str | None = None,
    **header: Any,
) -> Path:
    """Write the shard ``path`` again, with changes, under its own digest; return its path."""
    batch = batch_of(path)
    claims = {**json.loads(batch.schema.metadata[b"embedcache"]), **header}
    batch = columns(batch).replace_schema_metadata(metadata or {b"embedcache": json.dumps(claims).encode()})
    return renamed(path, file_of(batch, compression))


def recontract(cache: Path, *, shards: bool = True, **changes: object) -> Path:
    """Give the teacher of a cache another contract, with its digest and its shards, and return its folder."""
    teacher = one(cache, "teachers/*")
    value = {**json.loads((teacher / "contract.json").read_text()), **changes}
    (teacher / "contract.json").write_bytes(spelled_json(value))
    for shard in sorted(teacher.glob("shards/*")):
        if shards:
            rewritten(shard, contract=value)
        else:
            shard.unlink()
    return teacher.rename(teacher.with_name(hashlib.sha256(canonical_json(value)).hexdigest()))
