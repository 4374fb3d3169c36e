"""Memory and speed of a small and a large cache: memory must not grow with the corpus.

The same steps for a small and for a large corpus, each in a separate process whose anonymous memory
(RssAnon: mapped files are not counted) is sampled: build with a fake teacher, build again with nothing to do,
look up random texts, tokenise, one epoch of the training loader. Nothing is trained, and the vectors mean
nothing.

Needs Linux, and about 1 kB of disk a row at the default width.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.teacher.options import EncodeOptions
from embedcache.testing import WORDS, FakeEncoder, fake_teacher

PHASES = ("source", "build", "restart", "lookup", "tokenise", "epoch")
MEMORY_LIMIT_MB, RESTART_LIMIT_S, LOOKUP_LIMIT_MS = 300, 30, 50
SAMPLE_SECONDS = 0.02
LOOKUP_TEXTS, LOOKUP_ROUNDS = 512, 50
OPENING_ROUNDS = 10
"""Look-ups after which every shard has been opened."""
BLOCK = 65536

Figures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """Setting that a phase runs on.

    Attributes:
        folder: folder of source, cache and tokenizer.
        rows: rows of the corpus.
        dimension: width of a vector.
        dtype: codec of the vectors.
        store: kind of the store.
        batch_size: rows a training batch.
    """

    folder: str
    rows: int
    dimension: int
    dtype: str
    store: str
    batch_size: int

    @property
    def source(self) -> Path:
        """The corpus's file."""
        return Path(self.folder) / "corpus.parquet"

    @property
    def cache(self) -> Path:
        """The cache."""
        return Path(self.folder) / "cache"

    @property
    def tokenizer(self) -> Path:
        """The folder of the student's tokenizer."""
        return Path(self.folder) / "tokenizer"


def sentences_of(rows: NDArray[np.int64]) -> list[str]:
    """The sentence of each row, 5 to 16 words: distinct, and the same in every process."""
    columns = np.arange(16, dtype=np.uint64)
    words = (rows.astype(np.uint64)[:, None] + columns * np.uint64(7919)) * np.uint64(0x9E3779B97F4A7C15)
    picks = (words >> np.uint64(40)) % np.uint64(len(WORDS))
    lengths = 4 + picks[:, 0] % np.uint64(12)
    return [
        f"{' '.join([WORDS[pick] for pick in line[:length]])} {row}"
        for line, length, row in zip(picks.tolist(), lengths.tolist(), rows.tolist(), strict=True)
    ]


def write_source(setting: Setting) -> Figures:
    """Write the corpus and the tokenizer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from embedcache.testing import tiny_encoder

    tiny_encoder(setting.tokenizer, plain=True)
    with pq.ParquetWriter(setting.source, pa.schema([("text", pa.string())])) as writer:
        for start in range(0, setting.rows, BLOCK):
            rows = np.arange(start, min(start + BLOCK, setting.rows))
            writer.write_table(pa.table({"text": sentences_of(rows)}))
    return {"source MB": setting.source.stat().st_size / 1e6}


def build(setting: Setting) -> Figures:
    """Build through the public function; rows already in the cache are not built again."""
    import embedcache

    began = time.perf_counter()
    cache = embedcache.build(
        setting.source,
        teacher=FakeEncoder(fake_teacher(setting.dimension)),
        cache=setting.cache,
        encode=EncodeOptions(codec=setting.dtype, store=setting.store),
    )
    seconds = time.perf_counter() - began
    result = cache.result
    if result is None or result.encoded + result.cached != setting.rows:
        raise SystemExit(f"the build did not cover {setting.rows} rows: {result}")
    return {"rows/s": setting.rows / seconds, "seconds": seconds, "encoded": result.encoded}


def restart(setting: Setting) -> Figures:
    """Build once more, with nothing to do."""
    figures = build(setting)
    if figures["encoded"]:
        raise SystemExit(f"{figures['encoded']:.0f} rows were encoded again")
    return figures


def lookup(setting: Setting) -> Figures:
    """Look up random texts: the first time, while shards are still being opened, and then again and again."""
    from embedcache.cache import Cache

    generator = np.random.default_rng(0)

    def some() -> list[str]:
        return sentences_of(generator.integers(setting.rows, size=LOOKUP_TEXTS))

    texts = some()
    began = time.perf_counter()
    cache = Cache(setting.cache)
    cache.lookup(texts)
    opened = time.perf_counter() - began
    times = []
    for _ in range(OPENING_ROUNDS + LOOKUP_ROUNDS):
        texts = some()
        began = time.perf_counter()
        vectors = cache.lookup(texts)
        times.append(1000 * (time.perf_counter() - began))
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2):
            raise SystemExit("a vector of another length than 1 was looked up")
    return {
        "first ms": 1000 * opened,
        "opening ms": max(times[:OPENING_ROUNDS]),
        "median ms": statistics.median(times[OPENING_ROUNDS:]),
        "p95 ms": float(np.percentile(times[OPENING_ROUNDS:], 95)),
    }


def tokenise(setting: Setting) -> Figures:
    """Tokenise the corpus for training, once."""
    from distill.data.tokens import tokenise_corpus
    from embedcache.cache import Cache

    cache = Cache(setting.cache)
    began = time.perf_counter()
    tokens = tokenise_corpus(cache, cache.corpus(), _tokenizer(setting))
    seconds = time.perf_counter() - began
    return {"rows/s": setting.rows / seconds, "tokens a row": len(tokens.ids) / setting.rows}


def epoch(setting: Setting) -> Figures:
    """Run the training loader over every row once."""
    from distill.data.dataset import open_rows
    from distill.data.loader import Loader
    from distill.data.sampler import epoch_batches
    from distill.data.source import DistillSource
    from distill.data.tokens import RowLengths, tokenise_corpus
    from embedcache.cache import Cache

    began = time.perf_counter()
    cache = Cache(setting.cache)
    dataset = open_rows(cache).split()
    opened = time.perf_counter() - began
    tokens = tokenise_corpus(cache, dataset.corpus, _tokenizer(setting))
    began = time.perf_counter()
    batches = epoch_batches(RowLengths(tokens, dataset.rows), setting.batch_size, seed=0, epoch=0)
    rows = sum(len(batch.rows) for batch in Loader(DistillSource(dataset, (tokens,)), batches))
    seconds = time.perf_counter() - began
    if rows != setting.rows:
        raise SystemExit(f"the epoch had {rows} rows, the corpus {setting.rows}")
    return {"open s": opened, "rows/s": rows / seconds}


def _tokenizer(setting: Setting) -> object:
    from transformers import AutoTokenizer

    from embedcache.teacher.tokenize import FastTokenizer

    return FastTokenizer(AutoTokenizer.from_pretrained(setting.tokenizer, local_files_only=True), 64)


RUN: dict[str, Callable[[Setting], Figures]] = dict(
    zip(PHASES, (write_source, build, restart, lookup, tokenise, epoch), strict=True)
)


def in_a_process(phase: str, setting: Setting) -> Figures:
    """Run a phase in a separate process; return its figures, and its peak of anonymous memory in MB."""
    command = [sys.executable, __file__, "--phase", phase, "--setting", json.dumps(asdict(setting))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None  # noqa: S101 - it was asked for
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{phase} of {setting.rows} rows failed")
    return {**json.loads(said.splitlines()[-1]), "RssAnon MB": peak / 1e6}


def anonymous_bytes(process: int) -> int:
    """Memory of a process that no file stands behind; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def disk_mb(folder: Path) -> float:
    """Bytes allocated below a folder, in MB."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6


@contextmanager
def workplace(folder: Path | None) -> Iterator[Path]:
    """Yield ``folder``, or a temporary one that is removed at the end."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        yield Path(name)


def measure(arguments: argparse.Namespace, rows: int, folder: Path) -> dict[str, Figures]:
    """Run all phases for a corpus of ``rows`` and return the figures of each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    setting = Setting(
        str(folder), rows, arguments.dimension, arguments.dtype, arguments.store, arguments.batch_size
    )
    found: dict[str, Figures] = {}
    for phase in PHASES:
        print(f"{rows:>12,} rows: {phase} …", file=sys.stderr, flush=True)
        found[phase] = in_a_process(phase, setting)
    found["disk"] = {
        "cache MB": disk_mb(setting.cache) - disk_mb(setting.cache / "derived"),
        "derived MB": disk_mb(setting.cache / "derived"),
    }
    return found


def judge(small: dict[str, Figures], large: dict[str, Figures]) -> dict[str, tuple[float, float]]:
    """Return the promises: description -> (figure, limit)."""
    growth = {phase: large[phase]["RssAnon MB"] - small[phase]["RssAnon MB"] for phase in PHASES[1:]}
    return {
        "most memory above the small run, MB": (max(growth.values()), MEMORY_LIMIT_MB),
        "build again with nothing to do, s": (large["restart"]["seconds"], RESTART_LIMIT_S),
        f"look up {LOOKUP_TEXTS} random texts, warm p95, ms": (large["lookup"]["p95 ms"], LOOKUP_LIMIT_MS),
    }


def show(arguments: argparse.Namespace, small: dict[str, Figures], large: dict[str, Figures]) -> None:
    """Print the figures."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    memory = Table("phase", title="Peak of anonymous memory, MB")
    for heading in (f"{arguments.small:,} rows", f"{arguments.rows:,} rows", "difference", "bytes a row"):
        memory.add_column(heading, justify="right")
    for phase in PHASES[1:]:
        before, after = small[phase]["RssAnon MB"], large[phase]["RssAnon MB"]
        a_row = 1e6 * (after - before) / (arguments.rows - arguments.small)
        memory.add_row(phase, f"{before:,.0f}", f"{after:,.0f}", f"{after - before:,.0f}", f"{a_row:,.1f}")
    speed = Table("phase", "figure", title="Speed and size")
    for heading in (f"{arguments.small:,} rows", f"{arguments.rows:,} rows"):
        speed.add_column(heading, justify="right")
    for phase, figures in large.items():
        for name, value in figures.items():
            if name != "RssAnon MB":
                speed.add_row(phase, name, f"{small[phase].get(name, 0):,.2f}", f"{value:,.2f}")
    promises = Table("promise", title="Limits")
    for heading in ("found", "at most", ""):
        promises.add_column(heading, justify="right")
    for what, (value, limit) in judge(small, large).items():
        promises.add_row(what, f"{value:,.1f}", f"{limit:,}", "held" if value <= limit else "BROKEN")
    for table in (memory, speed, promises):
        console.print(table)


def main() -> int:
    """Measure and print; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--dtype", default="float16", help="codec of the vectors")
    parser.add_argument("--store", default="arrow", choices=["arrow", "lmdb"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--folder", type=Path, help="work and leave everything here  [default: temporary]")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--phase", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        print(json.dumps(RUN[arguments.phase](Setting(**json.loads(arguments.setting)))))
        return 0
    if not 0 < arguments.small < arguments.rows:
        parser.error("--small has to be below --rows")
    with workplace(arguments.folder) as folder:
        small = measure(arguments, arguments.small, folder / "small")
        large = measure(arguments, arguments.rows, folder / "large")
    show(arguments, small, large)
    if arguments.json:
        arguments.json.write_text(json.dumps({"small": small, "large": large}, indent=2) + "\n")
    return int(any(value > limit for value, limit in judge(small, large).values()))


if __name__ == "__main__":
    sys.exit(main())
