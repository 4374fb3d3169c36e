"""Claims: which process is sending what at the moment, so that no object is sent twice.

A lost claim costs time, never correctness: objects are written under their digests, so one that is sent twice
is the same object.

The files of a process lie in ``claims/`` and begin with its mark. It writes ``MARK.beat`` again and again
while it lives, ``MARK.N.plan`` while it plans, ``MARK.N.json`` to list the objects it will send, and
``MARK.N.gc`` while it deletes. The place must list files in the order in which they were written: a process
that has written a file waits until it is listed, and then sees all that were written before. The age of a
beat is told by the clock of the place.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from embedcache.errors import EmbedCacheError, RemoteError
from embedcache.fsio import canonical_json
from embedcache.share.places import Stat
from embedcache.share.remote.beats import AheadBeats
from embedcache.share.remote.claimed import claimed_digests
from embedcache.share.remote.marks import may_run, new_mark
from embedcache.share.remote.remote import Remote
from embedcache.sizes import counted

FOLDER = "claims"
STALE_SECONDS = 60.0
"""A process without a beat for this long counts as gone."""

LISTING_SECONDS = 30.0
"""A place may take this long to list a file that was written."""

GONE_SECONDS = 3600.0
"""A push without a beat for this long no longer blocks deletion."""

OnWait = Callable[[int], None]
"""Called with how many processes are waited for."""

_BEATS = 6
_CLOCK_TRIES = 10
_POLL_SECONDS = 0.5
_LARGEST_CLAIM = 32 << 20
_NAME = re.compile(r"([0-9a-f]{12}-[0-9]{1,10}-[0-9a-f]{12})\.(beat|[0-9]{1,6}\.(?:plan|json|gc))")


class AtWorkError(RemoteError):
    """Nothing can be deleted, because other processes are at work on the remote.

    Args:
        where: the remote.
        others: how many.
    """

    def __init__(self, where: str, others: int) -> None:
        are, were = ("is", "was") if others == 1 else ("are", "were")
        super().__init__(
            f"{counted(others, 'other process', 'es')} {are} at work on {where}, or {were} within the last "
            f"{GONE_SECONDS / 60:.0f} minutes: nothing was deleted; run the same command again later"
        )
        self.others = others


def _marks(names: Iterable[str]) -> set[str]:
    """Return the marks of the processes that files in ``claims/`` are of."""
    return {name.partition(".")[0] for name in names}


@dataclass(frozen=True)
class _Seen:
    """The names of the files in ``claims/``.

    Attributes:
        mine: files of this process.
        alive: files of other live processes.
        gone: files of processes that are gone.
        doubtful: marks of those that count as alive only because their beats lie in the future.
    """

    mine: frozenset[str]
    alive: tuple[str, ...]
    gone: tuple[str, ...]
    doubtful: frozenset[str]


@dataclass
class Claims:
    """The claims on a remote, as one process sees and makes them.

    Args:
        remote: the remote.
        stale_seconds: a process without a beat for this long counts as gone.
        alone: no other process is at work there: claims are neither read nor made.

    Attributes:
        mark: what the names of this process's files begin with.
    """

    remote: Remote
    stale_seconds: float = STALE_SECONDS
    mark: str = field(default_factory=new_mark)
    alone: bool = False
    _number: int = 0
    _mine: str | None = None
    _notes: set[str] = field(default_factory=set)
    _last_beat: float = 0.0
    _overslept: bool = False
    _known: dict[str, frozenset[str]] = field(default_factory=dict)
    _ahead: AheadBeats = field(default_factory=AheadBeats)

    @contextmanager
    def alive(self, on_wait: OnWait | None = None) -> Iterator[Claims]:
        """Give signs of life while the block runs, and delete the files of this process afterwards.

        The block begins once no other process deletes anything there.

        Args:
            on_wait: called now and then with the number of the processes that delete.

        Raises:
            RemoteError: if the place does not list what was written there.
        """
        with self._beating():
            if not self.alone:
                self._until_listed(f"{self.mark}.beat")
                while deleting := _marks(name for name in self._look().alive if name.endswith(".gc")):
                    if on_wait is not None:
                        on_wait(len(deleting))
                    self._pause(_POLL_SECONDS)
            yield self

    @contextmanager
    def collecting(self, on_wait: OnWait | None = None) -> Iterator[Claims]:
        """Be the only process at work on the remote while the block runs: pushes wait for its end.

        Of a push and a deletion that begin at once, at least one sees the other's file: the push waits then,
        and the deletion does not begin. Beats in the future are watched first: a live process renews its own.

        Args:
            on_wait: called now and then with the number of the processes whose beats are watched.

        Raises:
            AtWorkError: if another process is at work there.
            RemoteError: if the place does not list what was written there.
        """
        with self._beating():
            self._note("gc", b"gc")
            while others := _marks((seen := self._look(GONE_SECONDS)).alive):
                if others - seen.doubtful:
                    raise AtWorkError(self.remote.where, len(others))
                if on_wait is not None:
                    on_wait(len(others))
                self._pause(_POLL_SECONDS)
            self._remove_gone(seen)
            yield self

    @property
    def overslept(self) -> bool:
        """Whether others may take this process for gone, because it stood still or could not write."""
        return self._overslept or abs(time.time() - self._last_beat) > self.stale_seconds / 2

    def clock(self) -> float:
        """Return the time by the clock of the place, in seconds; at most one beat old.

        Raises:
            RemoteError: if the place does not tell when it was written to.
        """
        for _ in range(_CLOCK_TRIES):
            stat = self.remote.files_in(FOLDER).get(f"{self.mark}.beat")
            if stat is not None and stat.changed is not None:
                return stat.changed
            self._pause(_POLL_SECONDS)
        raise RemoteError(
            f"{self.remote.where} does not tell how old its files are: nothing can be judged by age"
        )

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Be the only process that plans while the block runs.

        A process writes a plan file, waits until it is listed, and looks for those of others. Of two that do
        so at once, at least one sees the other. A process that sees a smaller mark deletes its file and tries
        again; one that sees larger marks only waits until they are gone. So a process goes on only when it
        sees no other, and of those that wait for each other the one with the smallest mark does.

        Raises:
            RemoteError: if the place does not list what was written there.
        """
        if self.alone:
            yield
            return
        mine: str | None = None
        pause = 0.05
        while True:
            others = self._planners()
            if others and (mine is None or min(others) < self.mark):
                if mine is not None:
                    self._take_away(mine)
                    mine = None
                self._pause(pause * (0.5 + random.random()))  # noqa: S311 - no secret
                pause = min(2 * pause, _POLL_SECONDS)
            elif mine is None:
                mine = self._note("plan", b"plan")
            elif others:
                self._pause(0.05)
            else:
                break
        try:
            yield
        finally:
            with suppress(EmbedCacheError, OSError):
                self._take_away(mine)

    def take(self, digests: Collection[str]) -> None:
        """Claim objects; this process's earlier claim is given up.

        Raises:
            RemoteError: if the claim cannot be written, or is not listed.
        """
        self.give_up()
        if digests and not self.alone:
            self._mine = self._note("json", canonical_json(sorted(digests)))

    def give_up(self) -> None:
        """Delete the claim of this process: its objects have been sent.

        Raises:
            RemoteError: if it cannot be deleted.
        """
        if self._mine is not None:
            self._take_away(self._mine)
            self._mine = None

    def of_others(self) -> dict[str, frozenset[str]]:
        """Return the claims of other live processes: name of the claim -> digests.

        Files of processes that are gone are deleted.

        Raises:
            RemoteError: if claims cannot be listed or read.
        """
        claims: dict[str, frozenset[str]] = {}
        if self.alone:
            return claims
        seen = self._look()
        self._remove_gone(seen)
        for name in seen.alive:
            if name.endswith(".json"):
                digests = self._known.get(name)
                if digests is None:
                    digests = self._read(name)
                if digests is not None:
                    self._known[name] = claims[name] = digests
        return claims

    def wait(self, left: Collection[str], on_wait: OnWait) -> None:
        """Wait until a claim on ``left`` is given up, or its process is gone.

        Args:
            left: digests of missing objects; where none of them is claimed, nothing is waited for.
            on_wait: called now and then with the number of the processes that have claimed some of them.

        Raises:
            RemoteError: if claims cannot be listed or read.
        """
        missing = set(left)
        first = {name for name, digests in self.of_others().items() if digests & missing}
        while first and first <= self.of_others().keys():
            on_wait(len(_marks(first)))
            self._pause(_POLL_SECONDS)

    def _planners(self) -> list[str]:
        """Return the marks of other processes that plan."""
        seen = self._look()
        self._remove_gone(seen, ".plan")
        return [name.partition(".")[0] for name in seen.alive if name.endswith(".plan")]

    def _remove_gone(self, seen: _Seen, ending: str = "") -> None:
        """Delete the files of processes that are gone; one that cannot be deleted does no harm."""
        for name in seen.gone:
            if name.endswith(ending):
                with suppress(EmbedCacheError, OSError):
                    self.remote.remove(f"{FOLDER}/{name}")

    def _look(self, gone_seconds: float | None = None) -> _Seen:
        """List ``claims/``; a process whose last beat is older than ``gone_seconds`` counts as gone."""
        limit = self.stale_seconds if gone_seconds is None else gone_seconds
        files = {name: stat for name, stat in self.remote.files_in(FOLDER).items() if _NAME.fullmatch(name)}
        beats = {name.removesuffix(".beat"): stat for name, stat in files.items() if name.endswith(".beat")}
        now = beats.get(self.mark)
        mine: set[str] = set()
        alive, gone, doubtful = list[str](), list[str](), set[str]()
        for name in sorted(files):
            mark = name.partition(".")[0]
            if mark == self.mark:
                mine.add(name)
            else:
                (alive if self._lives(mark, beats.get(mark), now, limit, doubtful) else gone).append(name)
        return _Seen(frozenset(mine), tuple(alive), tuple(gone), frozenset(doubtful))

    def _until_listed(self, name: str) -> None:
        """Wait until a file of this process is listed, and with it all that were written before."""
        deadline = time.monotonic() + LISTING_SECONDS
        pause = 0.05
        while name not in self._look().mine:
            if time.monotonic() > deadline:
                raise RemoteError(
                    f"{self.remote.where} does not list {FOLDER}/{name}, which was written there "
                    f"{LISTING_SECONDS:.0f} s ago: others who push cannot be seen, and would send the same; "
                    "see to the caches in between, or push with --alone while nobody else does"
                )
            self._pause(pause)
            pause = min(2 * pause, _POLL_SECONDS)

    def _lives(
        self, mark: str, beat: Stat | None, now: Stat | None, limit: float, doubtful: set[str]
    ) -> bool:
        """Return whether a process counts as alive; note in ``doubtful`` where only a beat ahead tells so."""
        if not may_run(mark):
            return False
        # A file that is written anew while others are listed may be left out.
        beat = beat or self.remote.stat(f"{FOLDER}/{mark}.beat")
        if beat is None:
            return False
        if now is None or now.changed is None or beat.changed is None:
            return True
        if beat.changed > now.changed:
            # Such a beat has no age: what tells is whether it is renewed as often as a live process does.
            lives = self._ahead.lives(mark, beat.changed, self.stale_seconds)
            if lives and not self._ahead.has_changed(mark):
                doubtful.add(mark)
            return lives
        return now.changed - beat.changed < limit

    def _read(self, name: str) -> frozenset[str] | None:
        """Return what a claim lists; None where it was given up just now, or is not a claim."""
        data = self.remote.read(f"{FOLDER}/{name}", _LARGEST_CLAIM)
        if data is None:
            return None
        return claimed_digests(data)

    @contextmanager
    def _beating(self) -> Iterator[None]:
        ended = threading.Event()
        self._last_beat = time.time()
        self._beat()
        heart = threading.Thread(target=self._go_on, args=(ended,), name="claims", daemon=True)
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()
            # Should this fail, the missing beat tells others that this process is gone.
            for name in (*sorted(self._notes), f"{self.mark}.beat"):
                with suppress(EmbedCacheError, OSError):
                    self.remote.place.remove(f"{FOLDER}/{name}")

    def _beat(self) -> None:
        # This clock goes on while a machine sleeps.
        began = time.time()
        self.remote.write(f"{FOLDER}/{self.mark}.beat", b"beat")
        self._overslept = self._overslept or abs(time.time() - self._last_beat) > self.stale_seconds / 2
        self._last_beat = began

    def _note(self, kind: str, data: bytes) -> str:
        """Write a file under a name that no older listing has; return the name once it is listed."""
        self._number += 1
        name = f"{self.mark}.{self._number}.{kind}"
        self._notes.add(name)
        self.remote.write(f"{FOLDER}/{name}", data)
        self._until_listed(name)
        return name

    def _take_away(self, name: str) -> None:
        self.remote.remove(f"{FOLDER}/{name}")
        self._notes.discard(name)

    def _go_on(self, ended: threading.Event) -> None:
        while not ended.wait(self.stale_seconds / _BEATS):
            # One missed beat does no harm, and the work itself will meet the same error.
            with suppress(RemoteError, OSError):
                self._beat()

    def _pause(self, seconds: float) -> None:
        if self.remote.stop.wait(seconds):
            raise RemoteError("stopped while waiting for other pushes: run the same command again")
