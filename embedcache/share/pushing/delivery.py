"""Sending objects to a remote, each of them once, whoever else is about to."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from embedcache.check.progress import Meter
from embedcache.errors import RemoteError
from embedcache.share.pushing.selection import LocalObject
from embedcache.share.pushing.turns import Turns
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.transfer import Stopped, run_all
from embedcache.sizes import counted

if TYPE_CHECKING:
    import pyarrow as pa

# An object that is sent to its end after Ctrl-C harms nobody, and can take minutes.
_PATIENCE_SECONDS = 0.5


class GoneError(RemoteError):
    """An object is not on the remote, though it was seen or sent there."""


class Delivery:
    """Brings objects to a remote, each of them once, whoever else is about to.

    Attributes:
        sent: digests of the objects that were sent from here.
        present: digests of those that the remote had.
        others: digests of those that other processes sent meanwhile.
    """

    def __init__(self, remote: Remote, jobs: int, meter: Meter) -> None:
        self._remote, self._jobs, self._meter = remote, jobs, meter
        self._objects: dict[str, LocalObject] = {}
        self._sizes: dict[str, int] = {}
        self._opening = threading.Lock()
        self.sent: set[str] = set()
        self.present: set[str] = set()
        self.others: set[str] = set()

    def size_of(self, digests: Iterable[str]) -> int:
        """Return how many bytes objects have together."""
        return sum(self._sizes[digest] for digest in digests)

    def run(self, objects: Iterable[LocalObject], listed: Collection[str], claims: Claims) -> None:
        """Send, or see sent, all objects. Repeated, it sends again those that are gone.

        Args:
            objects: the objects.
            listed: digests of those that manifests list. The remote has them as a rule, and where nothing
                else is to be sent, nothing has to be planned. The others are looked up during the planning.
            claims: of this process, which is alive.
        """
        # The same bytes may lie under several paths.
        self._objects = {local.sha256: local for local in objects}
        self._sizes |= {digest: local.bytes for digest, local in self._objects.items()}
        there = self._remote.present(self._of(self._objects.keys() & listed))
        self.present |= there - self.sent - self.others
        left = set(self._objects) - there
        if not left:
            return
        self._meter.begin("send", total_files=len(left), total_bytes=self.size_of(left))
        is_first = True
        turns = Turns(self._jobs)
        while left:
            with claims.planning():
                # In this order: of what is sent and given up meanwhile, either shows.
                taken = frozenset().union(*claims.of_others().values()) & left
                turns.see(taken)
                arrived, mine = self._plan(left, taken, turns, is_whole=is_first)
                claims.take(mine)
            # Objects that no process was sending are those of a stopped push.
            older = arrived - taken if is_first else set()
            is_first = False
            self.present |= older - self.sent - self.others
            self.others |= arrived - older - self.sent
            self._meter.add(files=len(arrived), size=self.size_of(arrived))
            rest = self._send(mine, claims, turns)
            claims.give_up()
            left -= arrived | (mine - rest)
            if left and left <= taken:
                with self._meter.aside("wait for other pushes"):
                    claims.wait(left, self._show_pushes)

    def _plan(
        self, left: set[str], taken: frozenset[str], turns: Turns, *, is_whole: bool
    ) -> tuple[set[str], set[str]]:
        """Return the digests of objects that have arrived, and of those that are to be sent from here now.

        Args:
            left: what was missing.
            taken: what of it others have claimed.
            turns: says how much is to be sent.
            is_whole: whether to look for all of it, and not only for as much as is to be sent.
        """
        if is_whole or not turns.is_shared:
            arrived = self._remote.present(self._of(left))
            return arrived, turns.choose(turns.in_order(self._of(left - arrived - taken)))
        arrived = set()
        ordered = turns.in_order(self._of(left - taken))
        most = turns.objects
        while ordered:
            some, ordered = ordered[:most], ordered[most:]
            arrived |= self._remote.present(some)
            if mine := turns.choose(local for local in some if local.sha256 not in arrived):
                return arrived, mine
            most *= 4
        return arrived, set()

    def show_deletion(self, others: int) -> None:
        """Show that nothing is sent while other processes delete files there."""
        self._meter.begin(f"wait until nobody deletes there ({others:,} now)")

    def _show_pushes(self, others: int) -> None:
        self._meter.begin(f"wait for {counted(others, 'other push', 'es')}")

    def check_rest(self) -> None:
        """Check the files of the cache that were not sent from here: the manifest vouches for them, too.

        Raises:
            CorruptCacheError: if a file is not what its digest says.
        """
        # A row index is right where its file is, and a file that was found right before is so still.
        unsent = [self._objects[digest] for digest in sorted(set(self._objects) - self.sent)]
        rest = [local for local in unsent if local.derive is None and not local.is_checked()]
        self._meter.begin("check", total_files=len(rest), total_bytes=sum(local.bytes for local in rest))

        def check(local: LocalObject) -> None:
            local.read(self._opened(local))
            self._meter.add(files=1, size=local.bytes)

        run_all(check, rest, jobs=self._jobs, stop=self._remote.stop)

    def refuse_gaps(self, manifest: str = "") -> None:
        """Check that every object lies on the remote, with the size it should have.

        Args:
            manifest: id of the manifest that lists them already; empty where none was written yet.

        Raises:
            GoneError: if one does not.
            RemoteError: if they cannot be looked up.
        """
        gone = set(self._objects) - self._remote.present(self._objects.values())
        if gone:
            declared = f"manifest {manifest[:12]} lists it already" if manifest else "nothing was declared"
            raise GoneError(
                f"{object_path(min(gone))} of {self._remote.where} is not there as it was sent, or of "
                f"another size ({counted(len(gone), 'object')} in all): {declared}; run the same "
                "command again"
            )

    def _send(self, digests: Collection[str], claims: Claims, turns: Turns) -> set[str]:
        """Send objects; return the digests of those that are left to others, who wait."""
        rest: set[str] = set()
        is_awaited = turns.watch(claims)

        def send(local: LocalObject) -> None:
            if is_awaited():
                rest.add(local.sha256)
                return
            data = local.read(self._opened(local))
            if self._remote.stop.is_set():
                raise Stopped
            self._remote.write(object_path(local.sha256), data)
            self.sent.add(local.sha256)
            self.present.discard(local.sha256)
            self.others.discard(local.sha256)
            self._meter.add(files=1, size=local.bytes)

        # The largest first, or the last one would leave the other threads idle.
        ordered = sorted(self._of(digests), key=lambda local: -local.bytes)
        began = time.monotonic()
        run_all(send, ordered, jobs=self._jobs, stop=self._remote.stop, patience=_PATIENCE_SECONDS)
        if digests:
            turns.end(time.monotonic() - began, is_awaited=bool(rest))
        return rest

    def _of(self, digests: Iterable[str]) -> list[LocalObject]:
        return [self._objects[digest] for digest in digests]

    def _opened(self, local: LocalObject) -> pa.Buffer:
        # Shards inside one LMDB file are read through one transaction.
        with self._opening:
            return local.open()
