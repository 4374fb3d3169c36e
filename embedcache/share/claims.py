"""Claims: who is sending what right now, so that no object travels twice.

Claims are a courtesy. Whatever becomes of them, objects are written under their digests and stay right; all
that a lost claim costs is that something is sent twice.

Files of a process lie in ``claims/`` and begin with its mark. ``MARK.beat`` is written again and again while
it lives, ``MARK.plan`` while it plans, ``MARK.N.json`` lists what it has taken upon itself. All that is asked
of the place is that a file that was written is listed at once. Its own clock tells how old a beat is.
"""

from __future__ import annotations

import os
import platform
import random
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from embedcache.errors import EmbedCacheError, RemoteError
from embedcache.fsio import canonical_json, parsed_json
from embedcache.share.places import Stat
from embedcache.share.remote import Remote

FOLDER = "claims"
STALE_SECONDS = 60.0
"""Without a beat for so long a process counts as gone."""

_BEATS = 6
_POLL_SECONDS = 0.5
_LARGEST_CLAIM = 32 << 20
_NAME = re.compile(r"([0-9a-f]{12}-[0-9]{1,10}-[0-9a-f]{12})\.(beat|plan|[0-9]{1,6}\.json)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass
class Claims:
    """The claims on a remote, as one process sees and makes them.

    Args:
        remote: the remote.
        stale_seconds: without a beat for so long a process counts as gone.

    Attributes:
        mark: what the names of this process's files begin with.
    """

    remote: Remote
    stale_seconds: float = STALE_SECONDS
    mark: str = field(default_factory=lambda: new_mark())
    _number: int = 0
    _mine: str | None = None
    _known: dict[str, frozenset[str]] = field(default_factory=dict)

    @contextmanager
    def alive(self) -> Iterator[Claims]:
        """Give signs of life while the block runs; afterwards nothing of this process is left."""
        ended = threading.Event()
        self._beat()
        heart = threading.Thread(target=self._go_on, args=(ended,), name="claims", daemon=True)
        heart.start()
        try:
            yield self
        finally:
            ended.set()
            heart.join()
            # Whoever comes next sees that this process is gone by the missing beat.
            for path in (f"{self.mark}.plan", self._mine, f"{self.mark}.beat"):
                if path is not None:
                    with suppress(EmbedCacheError, OSError):
                        self.remote.place.remove(f"{FOLDER}/{path}")

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Be the only one that plans while the block runs.

        A process writes its plan file and then looks who else has one. Of two that do so at once, at least
        one sees the other. Who sees a smaller mark steps back; who sees larger ones alone waits until they
        are gone. So only who sees nobody goes on, and of those who wait for each other the smallest does.
        """
        path = f"{FOLDER}/{self.mark}.plan"
        there = False
        pause = 0.05
        while True:
            others = self._planners()
            if others and (not there or min(others) < self.mark):
                if there:
                    self.remote.remove(path)
                    there = False
                self._pause(pause * (0.5 + random.random()))  # noqa: S311 - no secret
                pause = min(2 * pause, _POLL_SECONDS)
            elif not there:
                self.remote.write(path, b"plan")
                there = True
            elif others:
                self._pause(0.05)
            else:
                break
        try:
            yield
        finally:
            with suppress(EmbedCacheError, OSError):
                self.remote.remove(path)

    def take(self, digests: Collection[str]) -> None:
        """Claim objects; what was claimed before is given up."""
        self.give_up()
        if digests:
            self._number += 1
            name = f"{self.mark}.{self._number}.json"
            self.remote.write(f"{FOLDER}/{name}", canonical_json(sorted(digests)))
            self._mine = name

    def give_up(self) -> None:
        """Claim nothing any more: what was claimed has been sent."""
        if self._mine is not None:
            self.remote.remove(f"{FOLDER}/{self._mine}")
            self._mine = None

    def of_others(self) -> dict[str, frozenset[str]]:
        """Return what other processes that live have claimed: name of the claim -> digests.

        What those have left that live no more is deleted.
        """
        found = {}
        alive, gone = self._look()
        for name in gone:
            with suppress(EmbedCacheError, OSError):
                self.remote.remove(f"{FOLDER}/{name}")
        for name in alive:
            if name.endswith(".json"):
                digests = self._known.get(name)
                if digests is None:
                    digests = self._read(name)
                if digests is not None:
                    self._known[name] = found[name] = digests
        return found

    def wait(self, left: Collection[str], on_wait: Callable[[], None]) -> None:
        """Wait until something changes about the claims on ``left``: one is given up, or its process gone.

        Args:
            left: digests of what is missing; without a claim on any of it there is nothing to wait for.
            on_wait: called now and then.
        """
        missing = set(left)
        first = {name for name, digests in self.of_others().items() if digests & missing}
        while first and first <= self.of_others().keys():
            on_wait()
            self._pause(_POLL_SECONDS)

    def _planners(self) -> list[str]:
        alive, gone = self._look()
        for name in gone:
            if name.endswith(".plan"):
                with suppress(EmbedCacheError, OSError):
                    self.remote.remove(f"{FOLDER}/{name}")
        return [name.removesuffix(".plan") for name in alive if name.endswith(".plan")]

    def _look(self) -> tuple[list[str], list[str]]:
        """Return the files of other processes: of those that live, and of those that do so no more."""
        files = {name: stat for name, stat in self.remote.files_in(FOLDER).items() if _NAME.fullmatch(name)}
        beats = {name.removesuffix(".beat"): stat for name, stat in files.items() if name.endswith(".beat")}
        now = beats.get(self.mark)
        alive: list[str] = []
        gone: list[str] = []
        for name in sorted(files):
            mark = name.partition(".")[0]
            if mark != self.mark:
                (alive if self._lives(mark, beats.get(mark), now) else gone).append(name)
        return alive, gone

    def _lives(self, mark: str, beat: Stat | None, now: Stat | None) -> bool:
        if not _may_run(mark):
            return False
        # A file that is written anew while others are listed may be left out.
        beat = beat or self.remote.place.stat(f"{FOLDER}/{mark}.beat")
        if beat is None:
            return False
        if now is None or now.changed is None or beat.changed is None:
            return True
        return now.changed - beat.changed < self.stale_seconds

    def _read(self, name: str) -> frozenset[str] | None:
        """Return what a claim lists; None where it was given up just now, or is none."""
        data = self.remote.read(f"{FOLDER}/{name}", _LARGEST_CLAIM)
        if data is None:
            return None
        try:
            value = parsed_json(data)
        except ValueError:
            return None
        if not isinstance(value, list):
            return None
        return frozenset(one for one in value if isinstance(one, str) and _DIGEST.fullmatch(one))

    def _beat(self) -> None:
        self.remote.write(f"{FOLDER}/{self.mark}.beat", b"beat")

    def _go_on(self, ended: threading.Event) -> None:
        while not ended.wait(self.stale_seconds / _BEATS):
            # One missed beat is no harm, and the work itself will find out what is wrong.
            with suppress(RemoteError, OSError):
                self._beat()

    def _pause(self, seconds: float) -> None:
        if self.remote.stop.wait(seconds):
            raise RemoteError("stopped while waiting for other pushes: run the same command again")


def new_mark() -> str:
    """Return what the files of a process begin with: digits for its machine, its number, and random ones."""
    return f"{_machine()}-{os.getpid()}-{random.SystemRandom().getrandbits(48):012x}"


def _machine() -> str:
    """Return 12 digits that stand for this machine since it was started, and for what its processes see."""
    names = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            file = Path(path)
            names.append(str(file.readlink()) if file.is_symlink() else file.read_text(encoding="utf-8"))
    return blake2b("\n".join(names).encode(), digest_size=6).hexdigest()


def _may_run(mark: str) -> bool:
    """Return whether the process of a mark may still run: of this machine's that can be told at once."""
    machine, process, _ = mark.split("-")
    if machine != _machine():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
