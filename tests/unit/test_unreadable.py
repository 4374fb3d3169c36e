"""Files that cannot be opened or read, and full disks: an error that names the file; nothing is changed.

Only bytes that were read and are wrong are damage.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import command_lines
import numpy as np
import pytest
from building import content, leftovers, write_lines
from damage import flip_middle

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import UnreadableError
from embedcache.inventory import QUARANTINE
from embedcache.repair import repair
from embedcache.testing import sentences
from embedcache.verify import verify

TEXTS = sentences(420, seed=3)
OWNER = 65534
STORES = {"arrow": "pq", "lmdb": "float16"}


class Outcome(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str


def run_here(*words: object) -> Outcome:
    """Run a command in this process."""
    return Outcome(*command_lines.run([*map(str, words)]))


def succeed(*words: object) -> None:
    """Run a command of embedcache in this process, which must succeed."""
    outcome = run_here("embedcache", *words)
    assert outcome.code == 0, outcome


@dataclass(frozen=True)
class Place:
    """Sources, a teacher, a cache of each store, and another cache with its remote.

    Attributes:
        folder: folder of all of them.
        model: folder of the teacher.
    """

    folder: Path
    model: Path

    @property
    def teacher(self) -> list[object]:
        """Options of a build."""
        return ["--teacher", self.model, "--teacher-name", "tiny", "--device", "cpu"]

    @cached_property
    def news(self) -> Path:
        """Source of the corpus ``news``."""
        return write_lines(self.folder / "news.txt", TEXTS[:400])

    @cached_property
    def more(self) -> Path:
        """Source of more rows."""
        return write_lines(self.folder / "more.txt", TEXTS)

    def base(self, store: str) -> Path:
        """Return the folder of a cache: corpora ``small`` and ``news``, and the view ``crop``."""
        return self.folder / store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_teacher: Path) -> Place:
    folder = tmp_path_factory.mktemp("unreadable")
    place = Place(folder, tiny_teacher)
    small = write_lines(folder / "small.txt", TEXTS[:300])
    for store, codec in STORES.items():
        build = [*place.teacher, "--cache", place.base(store), "--store", store, "--codec", codec]
        succeed("build", small, *build)
        succeed("build", place.news, *build, "--view", "crop", "--embed-views", "crop")
        succeed("build", place.news, *build, "--token-embeddings")
    vectors = ["--corpus", "news", "--out", folder / "vectors.parquet"]
    succeed("export", *in_cache(place.base("lmdb")), *vectors)
    succeed("build", place.more, *place.teacher, *in_cache(folder / "other"))
    (folder / "remote").mkdir()
    succeed("push", folder / "remote", *in_cache(folder / "other"))
    return place


def in_cache(cache: Path) -> list[object]:
    return ["--cache", cache]


class Process:
    """Process that runs commands.

    Args:
        prefix: words before the command line of the process.
        flags: see ``command_lines``.
    """

    def __init__(self, *prefix: str, flags: tuple[str, ...] = ()) -> None:
        self.is_quiet = "--quiet-paths" in flags
        script = Path(__file__).with_name("command_lines.py")
        settings = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "250"}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(script), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | settings,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, *words: object) -> Outcome:
        """Run a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*map(str, words)]) + "\n")
        self._process.stdin.flush()
        return Outcome(*json.loads(self._process.stdout.readline()))

    def succeed(self, *words: object) -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*words)
        assert outcome.code == 0, outcome
        return outcome


# A second user


@pytest.fixture(scope="module", params=["", "--quiet-paths"], ids=["raising", "quiet"])
def second_user(request: pytest.FixtureRequest) -> Iterator[Process]:
    """Yield a process that may not read what another user keeps to himself."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can act as a second user")
    # It reads the interpreter and its packages, which may lie in root's home.
    limits = "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown"
    with Process("setpriv", limits, flags=(request.param,)) as process:
        yield process


TEACHER = "teachers/*"
CORPUS = "corpora/news"
CHANGING = {"add", "replace", "import", "pull", "distill", "repair"}
"""Commands that write, so they run only where they must fail."""


@dataclass(frozen=True)
class Case:
    """Unreadable file or folder.

    Attributes:
        pattern: its path in the cache.
        works: commands that do not need it.
        store: store of the cache.
        mode: its mode; default: the owner alone may read it.
    """

    pattern: str
    works: str = ""
    store: str = "arrow"
    mode: int | None = None

    def __str__(self) -> str:
        mode = "" if self.mode is None else f"-{self.mode:o}"
        return f"{self.pattern.replace('*', '')}{mode}"


BESIDE = "add import"
OTHER_TEXTS = f"{BESIDE} copy-into"
VIEW = f"{OTHER_TEXTS} query export"
NOT_SEARCHED, NOT_LISTED = 0o744, 0o733
CASES = [
    Case("cache.json"),
    Case("teachers"),
    Case(TEACHER),
    Case(f"{TEACHER}/contract.json"),
    Case(f"{TEACHER}/names"),
    Case(f"{TEACHER}/names/*.json"),
    Case(f"{TEACHER}/shards"),
    Case(f"{TEACHER}/shards/*.arrow"),
    Case(f"{TEACHER}/codebooks"),
    Case(f"{TEACHER}/codebooks/*.npy"),
    Case(f"{TEACHER}/vectors.mdb", store="lmdb"),
    Case(f"{TEACHER}/vectors.mdb-lock", "verify repair plan", store="lmdb"),
    Case("corpora"),
    Case(CORPUS, BESIDE),
    Case(f"{CORPUS}/corpus.json", OTHER_TEXTS),
    Case(f"{CORPUS}/*.arrow", f"{OTHER_TEXTS} ls replace export-view gc"),
    Case(f"{CORPUS}/views", VIEW),
    Case(f"{CORPUS}/views/crop", VIEW),
    Case(f"{CORPUS}/views/crop/recipe.json", f"{VIEW} ls distill"),
    Case(f"{CORPUS}/views/crop/corpus.json", f"{VIEW} ls distill replace"),
    Case(f"{CORPUS}/views/crop/*.arrow", f"{VIEW} ls distill replace gc"),
    *(
        Case(pattern, works, mode=mode)
        for mode in (NOT_SEARCHED, NOT_LISTED)
        for pattern, works in (("teachers", ""), (TEACHER, ""), (f"{TEACHER}/shards", ""), ("corpora", ""))
    ),
    Case(CORPUS, OTHER_TEXTS, mode=NOT_SEARCHED),
]
# Verify and repair read these; copies take the table along.
ALL = "ls info query build add replace copy-into pull export export-view import doctor explain gc unused "
ALL += "distill"
CASES += [
    Case(f"{TEACHER}/vectors.seal.json", f"{ALL} copy push", store="lmdb"),
    Case(f"{TEACHER}/token_embeddings.safetensors", ALL),
]


def commands(place: Place, cache: Path, out: Path) -> dict[str, list[object]]:
    """Return every command that reads a cache, by a name."""
    given, other = in_cache(cache), place.folder / "other"
    sql = "SELECT count(*), sum(vectors.vector[1]) FROM rows JOIN vectors ON rows.key = vectors.key"
    build, replace = ["build", place.news, *place.teacher, *given], ["--name", "news", "--overwrite"]
    imported = ["import", place.folder / "vectors.parquet", "--from", "parquet", "--corpus", "imported"]
    student = ["--student", "layers:1", "--loss", "mse", "--max-steps", "1", "--device", "cpu"]
    words: dict[str, list[object]] = {
        "ls": ["ls"],
        "info": ["info"],
        "query": ["query", sql],
        "verify": ["verify"],
        "plan": ["repair", "--dry-run"],
        "repair": ["repair"],
        "export": ["export", "--corpus", "news", "--overwrite", "--out", out / "rows.parquet"],
        "export-view": ["export", "--corpus", "news", "--view", "crop", "--out", out / "view.parquet"],
        "push": ["push", out / "remote"],
        "pull": ["pull", place.folder / "remote"],
        "doctor": ["doctor"],
        "explain": ["explain", "a text of no corpus"],
        "gc": ["gc", "--older", "0"],
        "unused": ["gc", "--older", "0", "--unused"],
        "import": [*imported, *place.teacher[:-2]],
    }
    found = {name: ["embedcache", *one, *given] for name, one in words.items()}
    return found | {
        "build": ["embedcache", *build, "--view", "crop", "--embed-views", "crop"],
        "add": ["embedcache", "build", place.more, *place.teacher, *given],
        "replace": ["embedcache", "build", place.more, *place.teacher, *given, *replace],
        "copy": ["embedcache", "copy", cache, out / "copy"],
        "copy-into": ["embedcache", "copy", other, cache, "--dry-run"],
        "distill": ["distill", "run", *given, "--corpus", "news", *student, "--out", out / "run"],
    }


def snapshot(cache: Path) -> dict[str, bytes]:
    """Return the files outside ``derived/``, and those in the quarantine; LMDB's lock is left out."""
    found = {path.relative_to(cache).as_posix(): path for path in cache.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not name.endswith("-lock") and (not name.startswith("derived/") or name.startswith(QUARANTINE))
    }


def owned_copy(place: Place, store: str, folder: Path, *, shared: bool = True) -> Path:
    """Return a copy of a cache that belongs to another user; ``shared``: everyone may write."""
    cache = Path(shutil.copytree(place.base(store), folder / "cache"))
    for path in (cache, *cache.rglob("*")):
        os.chown(path, OWNER, OWNER)
        path.chmod((0o777 if shared else 0o755) if path.is_dir() else (0o666 if shared else 0o644))
    return cache


def hide(cache: Path, pattern: str, mode: int | None = None) -> Path:
    """Take the right to read the first path of a pattern from others; return it."""
    path = sorted(cache.glob(pattern))[0]
    path.chmod(mode or (0o700 if path.is_dir() else 0o600))
    return path


def assert_unread(outcome: Outcome, path: Path, cache: Path, reason: str = "Permission denied") -> None:
    """Check that a command failed with one line that names a file and the cause."""
    said = outcome.out + outcome.err
    assert outcome.code == 1, outcome
    assert reason in said
    assert "damaged" not in said
    if outcome.out:  # verify and repair print a table, with short digests
        name = path.relative_to(cache).as_posix()
        start, _, digest = name.rpartition("/")
        assert start[:21] in said
        assert digest[:12] in said
        assert "not read" in said or "not repaired" in said
    else:
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err


@pytest.mark.parametrize("shared", [True, False], ids=["writable", "read-only"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_commands_name_what_a_second_user_cannot_read(
    place: Place, second_user: Process, tmp_path: Path, case: Case, shared: bool
) -> None:
    if not shared and second_user.is_quiet:
        pytest.skip("nothing can be written there")
    cache = owned_copy(place, case.store, tmp_path, shared=shared)
    (tmp_path / "remote").mkdir()
    before = snapshot(cache)
    path = hide(cache, case.pattern, case.mode)
    for name, words in commands(place, cache, tmp_path).items():
        if name == "pull" and not shared:
            continue  # it says that it cannot write
        if name not in case.works.split():
            assert_unread(second_user.run(*words), path, cache)
        elif name not in CHANGING:
            second_user.succeed(*words)
    assert snapshot(cache) == before


@pytest.mark.parametrize("pattern", ["derived/*.*", "derived/*/*", "derived/**/*.*"])
def test_derived_files_that_cannot_be_read_are_not_needed(
    place: Place, second_user: Process, tmp_path: Path, pattern: str
) -> None:
    cache = owned_copy(place, "arrow", tmp_path)
    (tmp_path / "remote").mkdir()
    for path in cache.glob(pattern):
        if path.is_file():
            path.chmod(0o600)
    before = snapshot(cache)
    for name, words in commands(place, cache, tmp_path).items():
        # Students of layers read the model, whose place is noted there.
        if name not in CHANGING | {"distill"}:
            second_user.succeed(*words)
    assert snapshot(cache) == before
    second_user.succeed(*commands(place, cache, tmp_path)["add"])


@pytest.mark.parametrize(
    ("pattern", "mode"),
    [("derived", None), ("derived", NOT_SEARCHED), ("derived", NOT_LISTED), ("derived/index", None)],
)
def test_derived_folders_that_cannot_be_read_are_not_needed(
    place: Place, second_user: Process, tmp_path: Path, pattern: str, mode: int | None
) -> None:
    cache = owned_copy(place, "arrow", tmp_path)
    hide(cache, pattern, mode)
    for name in ("ls", "query", "build", "add", "gc"):
        second_user.succeed(*commands(place, cache, tmp_path)[name])


@pytest.mark.parametrize(
    ("kind", "name", "pattern"),
    [
        ("teacher", "tiny", f"{TEACHER}/shards"),
        ("teacher", "tiny", f"{TEACHER}/codebooks"),
        ("corpus", "news", f"{CORPUS}/views"),
        ("corpus", "news", f"{CORPUS}/views/crop"),
    ],
)
def test_what_cannot_be_removed_as_a_whole_stays(
    place: Place, second_user: Process, tmp_path: Path, kind: str, name: str, pattern: str
) -> None:
    cache = owned_copy(place, "arrow", tmp_path)
    before, path = snapshot(cache), hide(cache, pattern)
    assert_unread(second_user.run("embedcache", "rm", kind, name, "--yes", "--cache", cache), path, cache)
    assert snapshot(cache) == before


# Faults of disks and limits

FAULTS = {
    "EIO": (errno.EIO, "open", "Input/output error"),
    "ESTALE": (errno.ESTALE, "open", "Stale file handle"),
    "EMFILE": (errno.EMFILE, "open", "Too many open files"),
    "EIO while reading": (errno.EIO, "read", "Input/output error"),
}


class BrokenFile(io.FileIO):
    """File whose bytes cannot be read; its state and its descriptor neither, so nothing maps it."""

    number = errno.EIO

    def _fail(self, *arguments: object) -> Any:
        raise OSError(self.number, os.strerror(self.number))

    read = readinto = readall = fileno = _fail


@contextmanager
def broken(path: Path, fault: str) -> Iterator[None]:
    """Let a file fail while it is opened or read inside the block."""
    number, step, _ = FAULTS[fault]
    open_file, open_descriptor, descriptors = io.open, os.open, set[int]()

    def is_it(file: object) -> bool:
        if isinstance(file, int):
            return file in descriptors
        return os.fspath(file) == str(path)  # type: ignore[call-overload, no-any-return]

    def check(file: object) -> bool:
        if is_it(file) and step == "open":
            raise OSError(number, os.strerror(number), str(path))
        return is_it(file)

    def open_broken(file: Any, *arguments: Any, **options: Any) -> Any:
        return BrokenFile(file) if check(file) else open_file(file, *arguments, **options)

    def open_number(file: Any, *arguments: Any, **options: Any) -> int:
        is_broken, found = check(file), open_descriptor(file, *arguments, **options)
        if is_broken:
            descriptors.add(found)
        else:
            descriptors.discard(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", open_broken)
        patch.setattr("builtins.open", open_broken)
        patch.setattr(os, "open", open_number)
        yield


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "pattern",
    [
        f"{TEACHER}/shards/*.arrow",
        f"{TEACHER}/contract.json",
        f"{TEACHER}/codebooks/*.npy",
        f"{TEACHER}/token_embeddings.safetensors",
        f"{TEACHER}/vectors.mdb",
        f"{CORPUS}/*.arrow",
        f"{CORPUS}/corpus.json",
        f"{CORPUS}/views/crop/recipe.json",
        "cache.json",
    ],
)
def test_a_file_that_fails_is_not_damaged(place: Place, tmp_path: Path, pattern: str, fault: str) -> None:
    store = "lmdb" if pattern.endswith(".mdb") else "arrow"
    cache = Path(shutil.copytree(place.base(store), tmp_path / "cache"))
    path, before = sorted(cache.glob(pattern))[0], snapshot(cache)
    (tmp_path / "remote").mkdir()
    not_needed = {f"{CORPUS}/*.arrow": {"ls"}, f"{CORPUS}/views/crop/recipe.json": {"ls", "export"}}.get(
        pattern, {"ls", "build", "export", "unused"} if "token" in pattern else set()
    )
    needed = {"ls", "build", "verify", "plan", "repair", "copy", "push", "export", "unused"} - not_needed
    with broken(path, fault):
        for name in sorted(needed):
            outcome = run_here(*commands(place, cache, tmp_path)[name])
            assert_unread(outcome, path, cache, FAULTS[fault][2])
        found = verify(cache)
        assert not found.damage
        assert found.unread
        assert {fix.outcome for fix in repair(cache).fixes} == {"not repaired"}
    assert snapshot(cache) == before
    assert not verify(cache).unread


@pytest.mark.parametrize("fault", FAULTS)
def test_the_python_interface_raises_its_own_error(place: Place, tmp_path: Path, fault: str) -> None:
    cache = Path(shutil.copytree(place.base("arrow"), tmp_path / "cache"))

    def lookup() -> object:
        return Cache(cache).lookup(TEXTS[:2])

    def scan() -> object:
        return Cache(cache).scan(corpus="news").read_all()

    def texts() -> object:
        return Cache(cache).corpus("news").texts(np.arange(3))

    calls: dict[str, list[Callable[[], object]]] = {
        f"{TEACHER}/shards/*.arrow": [lookup, scan],
        f"{CORPUS}/*.arrow": [scan, texts],
    }
    for pattern, functions in calls.items():
        for function in functions:
            path = sorted(cache.glob(pattern))[0]
            with broken(path, fault), pytest.raises(UnreadableError, match=path.name):
                function()


# A full disk


@contextmanager
def full_disk(after: int) -> Iterator[list[Path]]:
    """Let every write inside the block fail after so many steps; yield the files of all steps."""
    files = list[Path]()

    def fill(step: str, path: Path) -> None:
        files.append(path)
        if len(files) > after and step != "remove":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsio, "on_write_step", fill)
        yield files


def fill_up(command: list[object], cache: Path, check: Callable[[], None]) -> None:
    """Run a command on a disk that is full after 0, 1, 3, 6 ... steps, until it succeeds."""
    after, runs, code = 0, 0, 1
    while code:
        assert after < 500
        with full_disk(after) as files:
            code, out, err = run_here(*command)
        if code:
            said = out + err
            assert code == 1, said
            assert "the disk is full" in said
            assert any(str(path) in said or path.name[:12] in said for path in files[after:]), said
            assert out or err.count("\n") == 1
        if (cache / "cache.json").exists():
            assert not leftovers(cache)
            check()
        runs += 1
        after += runs
    assert runs > 1


def assert_sound(cache: Path) -> None:
    assert not verify(cache).damage


@pytest.mark.parametrize("keep", [30.0, 0.0], ids=["", "pending"])
@pytest.mark.parametrize("store", STORES)
def test_a_build_goes_on_after_a_full_disk(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, keep: float
) -> None:
    monkeypatch.setattr("embedcache.building.pending.KEEP_SECONDS", keep)
    cache, other = tmp_path / "cache", tmp_path / "other"
    build = ["embedcache", "build", place.more, *place.teacher, "--store", store, "--view", "crop"]
    build += ["--cache"]
    with full_disk(1 << 20) as written:
        assert run_here(*build, other).code == 0
    assert any("pending" in path.parts for path in written) == (keep == 0)
    fill_up([*build, cache], cache, lambda: assert_sound(cache))
    assert content(cache) == content(other)


@pytest.mark.parametrize("words", [["copy", "{arrow}", "{}"], ["pull", "{remote}", "--cache", "{}"]], ids=str)
def test_copies_go_on_after_a_full_disk(place: Place, tmp_path: Path, words: list[str]) -> None:
    known = {name: place.folder / name for name in ("arrow", "remote")}
    caches = [tmp_path / name for name in ("cache", "other")]
    command, undisturbed = (
        ["embedcache", *(word.format(cache, **known) for word in words)] for cache in caches
    )
    assert run_here(*undisturbed).code == 0
    fill_up([*command], caches[0], lambda: assert_sound(caches[0]))
    assert content(caches[0]) == content(caches[1])


def test_a_repair_goes_on_after_a_full_disk(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A long temporary path would break the error over two lines of the table.
    monkeypatch.setattr("embedcache.cli.tables.WIDTH_WITHOUT_TERMINAL", 1000)
    cache = Path(shutil.copytree(place.base("arrow"), tmp_path / "cache"))
    whole = content(cache)
    names = ["cache.json", f"{TEACHER}/contract.json", f"{TEACHER}/names/*.json", f"{TEACHER}/shards/*.arrow"]
    for path in [sorted(cache.glob(name))[0] for name in names]:
        flip_middle(path)
    damaged = content(cache)

    def check() -> None:
        now = content(cache)
        strange = {name for name in now if now[name] not in (whole.get(name), damaged.get(name))}
        assert not strange

    fill_up(["embedcache", "repair", "--cache", cache, "--teacher-model", place.model], cache, check)
    assert content(cache) == whole
