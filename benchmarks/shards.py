"""Time and memory of the commands on a cache of many small shards.

Every command runs in a separate process that may open few files, on a cache of 100 shards and on one of
10,000. A fake teacher makes the vectors; they mean nothing.

    python benchmarks/shards.py --shards 10000

Needs Linux, and about 300 MB of disk for 10,000 shards.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from embedcache.cache import Cache
from embedcache.store import ShardStore
from embedcache.testing import WORDS, FakeEncoder, fake_teacher

DIMENSION, SHARD_ROWS, COPIED_ROWS = 16, 20, 16_384
SECONDS_LIMIT, RESTART_LIMIT_S, MEMORY_LIMIT_MB = 60, 5, 300
LOOKUP_TEXTS, LOOKUP_ROUNDS = 512, 20


@dataclass(frozen=True)
class Setting:
    """Setting that a command runs in.

    Attributes:
        folder: folder of the source, the caches, the remote and the run.
        shards: shards of the cache.
        files: open files that a process may have.
    """

    folder: str
    shards: int
    files: int

    def path(self, name: str) -> Path:
        """Return the path of a file or folder."""
        return Path(self.folder) / name

    @property
    def rows(self) -> int:
        """Rows of the corpus."""
        return self.shards * SHARD_ROWS


def texts_of(rows: Sequence[int]) -> list[str]:
    """Return the text of each row; all are distinct."""
    count = len(WORDS)
    return [f"{WORDS[row % count]} {WORDS[row // count % count]} {row}" for row in rows]


def prepare(setting: Setting) -> None:
    """Write the source, and the model that students are loaded from."""
    from embedcache.testing import tiny_encoder

    source = setting.path("corpus.txt")
    source.write_text("\n".join(texts_of(range(setting.rows))) + "\n")
    # How a file looks that was written a moment ago is not noted.
    os.utime(source, (1e9, 1e9))
    tiny_encoder(setting.path("student"), dimension=DIMENSION, layers=1)


def build(setting: Setting) -> int:
    """Build the corpus; return the rows encoded."""
    import embedcache
    from embedcache.teacher.options import EncodeOptions

    cache = embedcache.build(
        setting.path("corpus.txt"),
        teacher=FakeEncoder(fake_teacher(DIMENSION)),
        cache=setting.path("cache"),
        encode=EncodeOptions(shard_rows=SHARD_ROWS),
    )
    _expect(cache.result is not None and cache.result.distinct == setting.rows, "rows are missing")
    return 0 if cache.result is None else cache.result.encoded


def build_first(setting: Setting) -> None:
    """Build the corpus for the first time."""
    _expect(build(setting) == setting.rows, "not all rows were encoded")
    _expect(len(open_store(setting).shard_names) == setting.shards, "another number of shards")


def build_again(setting: Setting) -> None:
    """Build the corpus with nothing to do."""
    _expect(build(setting) == 0, "rows were encoded again")


def look_up(setting: Setting) -> None:
    """Look up random texts and compare their vectors."""
    cache, encoder = Cache(setting.path("cache")), FakeEncoder(fake_teacher(DIMENSION))
    generator = np.random.default_rng(0)
    for _ in range(LOOKUP_ROUNDS):
        texts = texts_of(generator.integers(setting.rows, size=LOOKUP_TEXTS).tolist())
        same = np.allclose(cache.lookup(texts), encoder.encode(texts).vectors, atol=1e-3)
        _expect(same, "other vectors were looked up")


def scan(setting: Setting) -> None:
    """Read all rows with their vectors."""
    rows = sum(batch.num_rows for batch in Cache(setting.path("cache")).scan())
    _expect(rows == setting.rows, "rows are missing")


def repair_shard(setting: Setting) -> None:
    """Damage a shard and repair it."""
    from embedcache.repair import ENCODED, repair

    shard = sorted(setting.path("cache").glob("teachers/*/shards/*.arrow"))[0]
    before = shard.read_bytes()
    shard.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    encoder = FakeEncoder(fake_teacher(DIMENSION))
    done = repair(setting.path("cache"), encoder=encoder)
    _expect([fix.outcome for fix in done.fixes] == [ENCODED], f"repaired otherwise: {done.fixes}")
    _expect(shard.read_bytes() == before, "other bytes")


def open_store(setting: Setting, name: str = "cache") -> ShardStore:
    """Return the vectors of a cache."""
    cache = Cache(setting.path(name))
    return cache.store(cache.teacher().contract)


def compare_copy(setting: Setting) -> None:
    """Check the shards of the copy."""
    _expect(len(open_store(setting, "copy").shard_names) == -(-setting.rows // COPIED_ROWS), "other shards")


def compare_pulled(setting: Setting) -> None:
    """Check the shards that were pulled."""
    names = [sorted(open_store(setting, name).shard_names) for name in ("cache", "pulled")]
    _expect(names[0] == names[1], "other shards were pulled")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


def _embedcache(*arguments: str) -> Callable[[Setting], None]:
    from embedcache.cli.main import cli

    return _command(cli, arguments)


def _distill(*arguments: str) -> Callable[[Setting], None]:
    def run(setting: Setting) -> None:
        from distill.cli.main import cli

        _command(cli, arguments)(setting)

    return run


def _command(group: click.Group, arguments: Sequence[str]) -> Callable[[Setting], None]:
    """Return a function that runs a command line, with the paths of a setting in place of ``@name``."""

    def run(setting: Setting) -> None:
        words = [str(setting.path(one[1:])) if one.startswith("@") else one for one in arguments]
        try:
            group.main(words, standalone_mode=False)
        except SystemExit as end:
            _expect(not end.code, f"{' '.join(words)} ended with {end.code}")

    return run


def collect_all(setting: Setting) -> None:
    """Remove the corpus of a copy, then all of its vectors."""
    _embedcache("rm", "corpus", "corpus", "--yes", "--cache", "@whole")(setting)
    _embedcache("gc", "--unused", "--older", "0", "--cache", "@whole")(setting)
    _expect(not open_store(setting, "whole").shard_names, "shards are left")


_CACHE = ("--cache", "@cache")
_QUERY = """
    SELECT count(*) AS rows, avg(vectors.vector[1]) AS mean FROM rows JOIN vectors ON rows.key = vectors.key
    WHERE characters > 5"""
_STUDENT = ("--student", "@student", "--epochs", "1", "--device", "cpu", "--threads", "1")

PHASES: dict[str, Callable[[Setting], None]] = {
    "source": prepare,
    "first build": build_first,
    "build again": build_again,
    "look-up": look_up,
    "scan": scan,
    "ls": _embedcache("ls", *_CACHE),
    "info": _embedcache("info", *_CACHE),
    "query": _embedcache("query", _QUERY, *_CACHE),
    "verify": _embedcache("verify", *_CACHE),
    "repair": _embedcache("repair", *_CACHE),
    "repair a shard": repair_shard,
    "doctor": _embedcache("doctor", *_CACHE),
    "copy": _embedcache("copy", "@cache", "@whole"),
    "copy --shard-rows": _embedcache("copy", "@cache", "@copy", "--shard-rows", str(COPIED_ROWS)),
    "push": _embedcache("push", "@remote", *_CACHE),
    "push again": _embedcache("push", "@remote", *_CACHE),
    "pull": _embedcache("pull", "@remote", "--cache", "@pulled"),
    "pull again": _embedcache("pull", "@remote", "--cache", "@pulled"),
    "gc": _embedcache("gc", *_CACHE),
    "gc --unused": _embedcache("gc", *_CACHE, "--unused"),
    "gc of all vectors": collect_all,
    "export": _embedcache("export", *_CACHE, "--out", "@exported.parquet"),
    "distill run": _distill("run", *_CACHE, *_STUDENT, "--out", "@run"),
}
"""Name -> command; each needs those before it."""

CHECKS = {"copy --shard-rows": compare_copy, "pull": compare_pulled}
"""Name of a command -> check of its result."""


def run_phase(name: str, setting: Setting) -> None:
    """Run a command in this process, which may open few files from now on."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (setting.files, setting.files))
    PHASES[name](setting)


def peak_mb() -> float:
    """Return the peak of resident memory of this process; unlike ``getrusage``, without its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:"))


@dataclass(frozen=True)
class Figures:
    """Seconds and peak of resident memory of a process."""

    seconds: float
    mb: float


def measure(name: str, setting: Setting) -> Figures:
    """Run a command in a process and return its figures.

    Raises:
        SystemExit: if it fails; its messages are shown.
    """
    command = [sys.executable, __file__, "--phase", name, "--setting", json.dumps(asdict(setting))]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    seconds = time.perf_counter() - began
    _expect(done.returncode == 0, f"{name} of {setting.shards} shards failed:\n{done.stdout[-4000:]}")
    return Figures(seconds, float(done.stdout.splitlines()[-1]))


def measure_all(setting: Setting, names: Sequence[str] = tuple(PHASES)) -> dict[str, Figures]:
    """Run the commands on a new cache and return the figures of each."""
    shutil.rmtree(setting.folder, ignore_errors=True)
    setting.path("").mkdir(parents=True)
    found = {}
    for name in names:
        found[name] = measure(name, setting)
        print(
            f"{setting.shards:>8,} shards: {name}, {found[name].seconds:.1f} s", file=sys.stderr, flush=True
        )
        if name in CHECKS:
            CHECKS[name](setting)
    return found


def broken(small: dict[str, Figures], large: dict[str, Figures]) -> list[str]:
    """Return the limits that the commands on the large cache break."""
    found = []
    for name, figures in large.items():
        most = RESTART_LIMIT_S if name == "build again" else SECONDS_LIMIT
        if figures.seconds > most:
            found.append(f"{name}: {figures.seconds:.1f} s, at most {most} s")
        if (grown := figures.mb - small[name].mb) > MEMORY_LIMIT_MB:
            found.append(f"{name}: {grown:.0f} MB more, at most {MEMORY_LIMIT_MB} MB")
    return found


def show(small: dict[str, Figures], large: dict[str, Figures], shards: Sequence[int]) -> None:
    """Print the figures."""
    from rich.console import Console
    from rich.table import Table

    table = Table("command")
    few, many = (f"{count:,} shards" for count in shards)
    for heading in (f"s, {few}", f"s, {many}", "ratio", f"MB, {few}", f"MB, {many}", "MB more"):
        table.add_column(heading, justify="right")
    for name, figures in large.items():
        before = small[name]
        table.add_row(
            name,
            *(
                f"{value:,.1f}"
                for value in (before.seconds, figures.seconds, figures.seconds / before.seconds)
            ),
            *(f"{value:,.0f}" for value in (before.mb, figures.mb, figures.mb - before.mb)),
        )
    Console(width=110).print(table)


def main() -> int:
    """Measure and print; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--small", type=int, default=100, help="shards of the small cache")
    parser.add_argument("--files", type=int, default=256, help="open files that a process may have")
    parser.add_argument("--folder", type=Path, help="work and leave everything here  [default: temporary]")
    parser.add_argument("--phase", nargs="+", choices=PHASES, help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        for name in arguments.phase:
            run_phase(name, Setting(**json.loads(arguments.setting)))
        print(f"\n{peak_mb()}")
        return 0
    with tempfile.TemporaryDirectory(prefix="shards-") as temporary:
        folder = arguments.folder or Path(temporary)
        counts = arguments.small, arguments.shards
        settings = [Setting(str(folder / str(count)), count, arguments.files) for count in counts]
        small, large = map(measure_all, settings)
    show(small, large, counts)
    limits = broken(small, large)
    print("\n".join(limits) or "all limits held")
    return int(bool(limits))


if __name__ == "__main__":
    sys.exit(main())
