"""Claims: which process is sending what at the moment, so that no object is sent twice.

A lost claim costs time, never correctness: objects are written under their digests, so one that is sent twice
is the same object.

The files of a process lie in ``claims/`` and begin with its mark. It writes ``MARK.beat`` again and again
while it lives, ``MARK.N.plan`` while it plans, ``MARK.N.json`` to list the objects it will send, and
``MARK.N.gc`` while it deletes. The place must list files in the order in which they were written: a process
that has written a file waits until it is listed, and then sees all that were written before. The age of a
beat is told by the clock of the place.

A push that goes on unnoticed costs others time; a deletion that does costs them files. So who deletes counts
as alive for an hour without a beat, others for a minute.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from embedcache.errors import EmbedCacheError, RemoteError
from embedcache.fsio import canonical_json
from embedcache.share.places import Stat
from embedcache.share.remote.beats import AheadBeats
from embedcache.share.remote.claimed import claimed_digests
from embedcache.share.remote.marks import may_run, new_mark
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.seen import Seen, SilenceTeller, marks_of
from embedcache.sizes import counted

FOLDER = "claims"
STALE_SECONDS = 60.0
"""A process without a beat for this long counts as gone, unless it deletes."""

LISTING_SECONDS = 30.0
"""A place may take this long to list a file that was written."""

GONE_SECONDS = 3600.0
"""A push without a beat for this long no longer blocks deletion, nor a deletion a push."""

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

        The block begins once no other process deletes anything there. For one that gives no sign of life any
        more it waits long, and tells how to go on at once.

        Args:
            on_wait: called now and then with the number of the processes that delete.

        Raises:
            RemoteError: if the place does not list what was written there.
        """
        with self._beating():
            if not self.alone:
                self._until_listed(f"{self.mark}.beat")
                teller = SilenceTeller(self.remote.where, FOLDER, GONE_SECONDS / 60)
                while deleting := (seen := self._look()).deleting:
                    if on_wait is not None:
                        on_wait(len(marks_of(deleting)))
                    teller.look(seen)
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
            while others := marks_of((seen := self._look(GONE_SECONDS)).alive):
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
            beat = self._beats(self.remote.files_in(FOLDER)).get(self.mark)
            if beat is not None and beat.changed is not None:
                return beat.changed
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
        others = self._planners(self._look())
        while mine is None or others:
            if others and (mine is None or min(others) < self.mark):
                if mine is not None:
                    self._take_away(mine)
                    mine = None
                self._pause(pause * (0.5 + random.random()))  # noqa: S311 - no secret
                pause = min(2 * pause, _POLL_SECONDS)
                seen = self._look()
            elif mine is None:
                mine = self._write("plan", b"plan")
                seen = self._until_listed(mine)
            else:
                self._pause(0.05)
                seen = self._look()
            others = self._planners(seen)
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
        if self.alone:
            return {}
        seen = self._look()
        self._remove_gone(seen)
        names = [name for name in seen.alive if name.endswith(".json")]
        # Those who send much claim it piece by piece: time after time many claims are new, and old ones gone.
        fresh = [name for name in names if name not in self._known]
        read = dict(zip(fresh, self.remote.in_threads(self._read, fresh), strict=True))
        claims = {name: read.get(name, self._known.get(name)) for name in names}
        self._known = {name: digests for name, digests in claims.items() if digests is not None}
        return self._known

    def is_awaited(self) -> bool:
        """Return whether another live push has claimed nothing: it may wait for this one."""
        alive = () if self.alone else self._look().alive
        return marks_of(alive) != marks_of(name for name in alive if not name.endswith(".beat"))

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
            on_wait(len(marks_of(first)))
            self._pause(_POLL_SECONDS)

    def _planners(self, seen: Seen) -> list[str]:
        """Return the marks of other processes that plan."""
        self._remove_gone(seen, ".plan")
        return [name.partition(".")[0] for name in seen.alive if name.endswith(".plan")]

    def _remove_gone(self, seen: Seen, ending: str = "") -> None:
        """Delete the files of processes that are gone; one that cannot be deleted does no harm."""
        for name in seen.gone:
            if name.endswith(ending):
                with suppress(EmbedCacheError, OSError):
                    self.remote.remove(f"{FOLDER}/{name}")

    def _look(self, gone_seconds: float | None = None) -> Seen:
        """List ``claims/``; a process whose last beat is older than ``gone_seconds`` counts as gone."""
        limit = self.stale_seconds if gone_seconds is None else gone_seconds
        files = {name: stat for name, stat in self.remote.files_in(FOLDER).items() if _NAME.fullmatch(name)}
        beats = self._beats(files)
        now = beats.get(self.mark)
        # Who deletes stops when its own beat is late. But nobody can call back the request that is under way
        # by then, and places give up on one that is not answered only after minutes, or never.
        deleting = marks_of(name for name in files if name.endswith(".gc"))
        mine: set[str] = set()
        alive, gone, doubtful, silent = list[str](), list[str](), set[str](), set[str]()
        for name in sorted(files):
            mark = name.partition(".")[0]
            if mark == self.mark:
                mine.add(name)
            elif self._lives(mark, beats.get(mark), now, limit, doubtful):
                alive.append(name)
            elif mark in deleting and self._lives(mark, beats.get(mark), now, GONE_SECONDS, doubtful):
                alive.append(name)
                silent.add(mark)
            else:
                gone.append(name)
        return Seen(frozenset(mine), tuple(alive), tuple(gone), frozenset(doubtful), frozenset(silent))

    def _beats(self, files: Mapping[str, Stat]) -> dict[str, Stat]:
        found = {f"{FOLDER}/{name}": stat for name, stat in files.items() if name.endswith(".beat")}
        dated = self.remote.dated(found)
        return {path[len(FOLDER) + 1 : -len(".beat")]: stat for path, stat in dated.items()}

    def _until_listed(self, name: str) -> Seen:
        """Wait until a file of this process is listed, and return what is: all that was written before is."""
        deadline = time.monotonic() + LISTING_SECONDS
        pause = 0.05
        while name not in (seen := self._look()).mine:
            if time.monotonic() > deadline:
                raise RemoteError(
                    f"{self.remote.where} does not list {FOLDER}/{name}, which was written there "
                    f"{LISTING_SECONDS:.0f} s ago: others who push cannot be seen, and would send the same; "
                    "see to the caches in between, or push with --alone while nobody else does"
                )
            self._pause(pause)
            pause = min(2 * pause, _POLL_SECONDS)
        return seen

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
        """Write a file as :meth:`_write`; return its name once it is listed."""
        name = self._write(kind, data)
        self._until_listed(name)
        return name

    def _write(self, kind: str, data: bytes) -> str:
        """Write a file under a name that no older listing has, and return the name."""
        self._number += 1
        name = f"{self.mark}.{self._number}.{kind}"
        self._notes.add(name)
        self.remote.write(f"{FOLDER}/{name}", data)
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
