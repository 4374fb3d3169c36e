"""Honest caches, the tools to make them hostile, and a judge of what becomes of those who use one."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from hostile_child import CORPUS, OPERATIONS, TEXTS, build_corpus

from embedcache.fsio import canonical_json, read_sealed_json, spelled_json, write_sealed_json

CPU_SECONDS = 5
MOST_BYTES = 500 << 20

KINDS = {"arrow": ("float16", "arrow"), "lmdb": ("int8", "lmdb"), "pq": ("pq", "arrow")}
"""Kind of an honest cache -> codec and store."""

EVERYTHING = frozenset(OPERATIONS)
USUAL = EVERYTHING - {"query"}
"""All but the one that takes longest."""

OPENING = EVERYTHING - {"verify"}
"""All that open a cache; to verify one is to look at it from outside."""

VECTORS = frozenset({"lookup", "ls", "info", "query", "build"})
"""The operations that need a teacher's vectors."""

READING_A_CORPUS = frozenset({"texts", "ls", "info", "info-corpus", "query", "views", "build"})
"""The operations that look into a corpus's description."""

NAMING_A_TEACHER = frozenset({"open", "lookup", "ls", "info", "info-corpus", "query", "build"})
"""The operations that look into the small files of a teacher."""


@dataclass(frozen=True)
class Judgement:
    """How the operations on a cache ended.

    Attributes:
        outcomes: operation -> ``result``, or ``error`` and ``type``.
    """

    outcomes: dict[str, dict[str, Any]]

    @property
    def refused(self) -> dict[str, str]:
        """The operations that ended with an error, and its message."""
        return {name: outcome["error"] for name, outcome in self.outcomes.items() if "error" in outcome}

    @property
    def damage(self) -> list[str]:
        """What verifying found to be damaged."""
        return [line for line in self.result("verify") if line.startswith("damage ")]

    def result(self, operation: str) -> Any:
        """Return what an operation gave."""
        return self.outcomes[operation]["result"]

    def assert_refused(self, operations: Iterable[str], *words: str) -> None:
        """Assert that of what was tried just ``operations`` ended with an error that has all ``words``."""
        assert set(self.refused) == set(operations) & set(self.outcomes), self.refused
        for message in self.refused.values():
            assert all(word in message for word in words), message

    def assert_unharmed(self) -> None:
        """Assert that everything gave what it gives of an honest cache."""
        assert self.refused == {}
        assert self.result("open") == [[CORPUS], ["fake"]]
        assert self.result("texts") is True
        assert self.result("lookup") < 0.01
        assert self.result("build") == 0
        if "query" in self.outcomes:
            assert self.result("query") == [len(TEXTS), len(TEXTS), 2, 1, 1, 0]


def judge(folder: Path, operations: Iterable[str] = USUAL) -> Judgement:
    """Let a process of its own use the cache in ``folder``.

    Every operation has to end with a result or an error of embedcache in one line, soon and in little memory.
    Nothing beside the cache may change, and no foreign code may run.
    """
    before = _beside(folder)
    chosen = set(operations)
    ordered = [name for name in OPERATIONS if name in chosen]
    answer = _server().ask({"cache": str(folder), "operations": ordered})
    assert "died" not in answer, f"the process ended with {answer['died']}"
    assert _beside(folder) == before
    assert answer["ran"] == []
    assert answer["grown"] < MOST_BYTES
    for name, outcome in answer["outcomes"].items():
        assert "crash" not in outcome, f"{name}: {outcome['crash']}"
        assert outcome["seconds"] < CPU_SECONDS, name
        assert "\n" not in outcome.get("error", ""), name
        assert len(outcome.get("error", "")) < 2000, name
    return Judgement(answer["outcomes"])


class _Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("hostile_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        atexit.register(self._close)

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return dict(json.loads(self._answers.readline()))

    def _close(self) -> None:
        self._orders.close()
        self._answers.close()
        self._process.wait(60)


@cache
def _server() -> _Server:
    return _Server()


def _beside(folder: Path) -> dict[str, bytes | None]:
    """Return what lies beside the cache in ``folder``: path -> content, None for a folder."""
    found: dict[str, bytes | None] = {}
    folders = [folder.parent]
    while folders:
        for path in folders.pop().iterdir():
            is_folder = path.is_dir() and not path.is_symlink()
            found[str(path)] = None if is_folder or not path.is_file() else path.read_bytes()
            if is_folder and path != folder:
                folders.append(path)
    return found


@cache
def honest(kind: str) -> Path:
    """Return the folder of an honest cache of one of :data:`KINDS`; read it, never write into it."""
    folder = Path(tempfile.mkdtemp(prefix="embedcache-honest-"))
    atexit.register(shutil.rmtree, folder)
    source = folder / f"{CORPUS}.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    # Of a file that was written just now nothing is noted.
    os.utime(source, (1e9, 1e9))
    codec, store = KINDS[kind]
    build_corpus(folder / "cache", source, codec=codec, store=store)
    return folder


def received(folder: Path, kind: str = "arrow") -> Path:
    """Copy an honest cache into ``folder``, as if it came from somebody else, and return where it lies."""
    shutil.copytree(honest(kind), folder, dirs_exist_ok=True)
    return folder / "cache"


def one(folder: Path, pattern: str) -> Path:
    """Return the first path below ``folder`` that ``pattern`` matches."""
    return min(folder.glob(pattern))


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change sealed JSON and seal it again, as whoever made the cache could."""
    value = read_sealed_json(path)
    change(value)
    write_sealed_json(path, value)


def renamed(path: Path, data: bytes | pa.Buffer) -> Path:
    """Put ``data`` in the place of the file ``path``, under the digest that it has, and return its path."""
    path.unlink()
    target = path.with_name(hashlib.sha256(data).hexdigest() + path.suffix)
    target.write_bytes(data)
    return target


def rewritten(
    path: Path,
    *,
    columns: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    metadata: dict[bytes, bytes] | None = None,
    compression: str | None = None,
    **header: Any,
) -> Path:
    """Write the shard ``path`` anew, with changes, under its own digest; return its path."""
    batch = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).get_batch(0)
    claims = {**json.loads(batch.schema.metadata[b"embedcache"]), **header}
    if columns is not None:
        batch = columns(batch)
    batch = batch.replace_schema_metadata(metadata or {b"embedcache": json.dumps(claims).encode()})
    return renamed(path, file_of(batch, compression))


def file_of(batch: pa.RecordBatch, compression: str | None = None) -> pa.Buffer:
    """Return an Arrow file of one batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def recontract(folder: Path, *, shards: bool, **changes: object) -> Path:
    """Give the teacher of a cache another contract, with its digest and its shards, and return its folder."""
    teacher = one(folder, "teachers/*")
    value = {**json.loads((teacher / "contract.json").read_text()), **changes}
    (teacher / "contract.json").write_bytes(spelled_json(value))
    for shard in sorted(teacher.glob("shards/*")):
        if shards:
            rewritten(shard, contract=value)
        else:
            shard.unlink()
    return teacher.rename(teacher.with_name(hashlib.sha256(canonical_json(value)).hexdigest()))


class Fires:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.folder),)
