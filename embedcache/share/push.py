"""Push a cache: send the files that a remote lacks, then write a manifest that lists all of them.

A licence that no manifest declares yet is news, too: then a manifest is written although no file is new.

Each file is read, its digest is checked, and it is written whole. The manifest is written when everything it
lists lies on the remote with the right size; until then nobody sees any of it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import InputError, RemoteError
from embedcache.share.pushing.bad_samples import note_sent, refuse_bad
from embedcache.share.pushing.card import card_of
from embedcache.share.pushing.licences import (
    contradiction_notes,
    licence_notes,
    new_licences,
    unkept_notes,
)
from embedcache.share.pushing.namesakes import namesake_notes
from embedcache.share.pushing.new_remote import refuse_unfit_place
from embedcache.share.pushing.news import only_news
from embedcache.share.pushing.own_indexes import index_objects, with_indexes
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import EVERYTHING, LocalObject, PushChoice, Selection, select_files
from embedcache.share.remote.claims import STALE_SECONDS, Claims
from embedcache.share.remote.manifest import MOST_FILES, Manifest
from embedcache.share.remote.remote import Remote, object_path
from embedcache.share.remote.sign import Signer, sign_manifest
from embedcache.share.remotes import location_of
from embedcache.share.transfer import JOBS, Stopped, run_all
from embedcache.sizes import counted

if TYPE_CHECKING:
    import pyarrow as pa

# An object that is sent to its end after Ctrl-C harms nobody, and can take minutes.
_PATIENCE_SECONDS = 0.5
_LONGEST_TEXT = 1000


@dataclass(frozen=True)
class PushResult:
    """What a push did.

    Attributes:
        remote: where.
        manifest: id of the manifest it wrote; empty where nothing was to be added.
        sent: objects sent.
        sent_bytes: their size.
        present: objects that the remote had already.
        present_bytes: their size.
        others: objects that other processes sent meanwhile.
        others_bytes: their size.
        signed_by: the key it was signed with, as ``ssh-keygen -l`` prints it; empty without one.
        told: what is worth telling: shards that were left out, other corpora and teachers of a name that was
            pushed, licences, manifests of others that cannot be read.
        seconds: how long it took.
    """

    remote: str
    manifest: str
    sent: int
    sent_bytes: int
    present: int
    present_bytes: int
    others: int
    others_bytes: int
    signed_by: str
    told: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


def push(
    cache: Cache | str | Path,
    remote: str,
    choice: PushChoice = EVERYTHING,
    *,
    text_licence: str = "",
    by: str = "",
    message: str = "",
    sign: str | Path | None = None,
    jobs: int = JOBS,
    alone: bool = False,
    stale_seconds: float = STALE_SECONDS,
    on_progress: OnCheck | None = None,
) -> PushResult:
    """Send what ``cache`` has and ``remote`` lacks. Repeated, it sends only what is still missing.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote; it is made where there is none.
        choice: what is pushed; default: all.
        text_licence: licence of the texts; it is kept even where no file is new.
        by: who pushes, for the card; it is kept with the time, where there is something to add.
        message: what for, for the card, as ``by``.
        sign: file of a private ed25519 key, OpenSSH's or PEM, to sign the manifest with.
        jobs: transfers at once.
        alone: nobody else pushes or deletes there meanwhile, so claims are not used; for places that do not
            list what was just written.
        stale_seconds: a push without a sign of life for this long counts as gone, and its objects are sent
            from here.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not in the cache, there is nothing to push, an argument cannot be used,
            vectors are among it that a sample of a pull has found bad, cache and remote lie inside each
            other, or a folder that is no remote holds other files.
        CorruptCacheError: if a file of the cache is damaged; nothing of it is sent.
        RemoteError: if the remote cannot be reached or written.
        StorageError: if there is no room here for row indexes of the remote.
    """
    started = time.perf_counter()
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    signer = None if sign is None else Signer.load(Path(sign))
    _check_texts({"--by": by, "--message": message, "--text-licence": text_licence})
    target = Remote(location_of(remote))
    refuse_unfit_place(target, opened.folder)
    meter = Meter(on_progress)
    meter.begin("read the cache")
    selection = select_files(opened, choice, text_licence=text_licence)
    if len(selection.files) > MOST_FILES:
        raise InputError(
            f"{len(selection.files):,} files, more than the {MOST_FILES:,} of a push: push teachers one by "
            "one, or merge small shards with 'embedcache compact'"
        )
    refuse_bad(opened, selection)
    state = RemoteState(target, opened, signer)
    selection, notes = only_news(selection, state, opened, meter, jobs)
    files = with_indexes(opened, selection.files, meter, jobs, target.stop)
    selection = replace(selection, files=files)
    meter.begin("read the remote")
    target.prepare()
    claims = Claims(target, stale_seconds, alone=alone)
    objects = [*(local.object for local in files), *index_objects(files)]
    delivery = _Delivery(target, objects, jobs, meter, claims)
    manifest = _deliver(
        delivery, state, selection, claims, lambda: _declare(target, selection, by, message, signer)
    )
    note_sent(opened, target, selection, delivery.sent)
    notes += _notes(state, selection, manifest)
    notes += unkept_notes(selection, message=message, text_licence=text_licence, manifest=manifest)
    return _result(delivery, state, manifest, signer, notes, time.perf_counter() - started)


def _check_texts(texts: Mapping[str, str]) -> None:
    """See that texts can be shown as one line each.

    Args:
        texts: option -> its text.

    Raises:
        InputError: if one cannot.
    """
    for option, text in texts.items():
        if not text.isprintable():
            raise InputError(f"{option} has line breaks or control characters: give one line of plain text")
        if len(text) > _LONGEST_TEXT:
            raise InputError(
                f"{option} has {len(text):,} letters, expected {_LONGEST_TEXT:,} at most: shorten it"
            )


def _deliver(
    delivery: _Delivery, state: RemoteState, selection: Selection, claims: Claims, declare: Callable[[], str]
) -> str:
    """Send what is missing, and declare it where manifests lack files of it or a licence.

    Args:
        delivery: the objects.
        state: what the remote has.
        selection: what is pushed.
        claims: of this process.
        declare: writes the manifest and returns its id.

    Returns:
        The manifest's id; empty where there was nothing to add.

    Raises:
        CorruptCacheError: if a file of the cache is damaged.
        RemoteError: if the remote cannot be reached or written.
    """
    # From the first look at what is there until all is declared, nobody may delete any of it.
    with claims.alive(delivery.show_deletion):
        delivery.run(state.objects())
        # Others may have declared the same by now, or somebody may have deleted it.
        state.look_again()
        if _is_listed(selection, state) and not new_licences(selection, state.stock().manifests):
            return ""
        delivery.check_rest()
        delivery.refuse_gaps()
        manifest = declare()
        if claims.overslept:
            delivery.refuse_gaps(manifest)
        return manifest


def _is_listed(selection: Selection, state: RemoteState) -> bool:
    """Return whether manifests that count list all files of a push."""
    return all(file in state.stock() for file in selection.shared)


def _notes(state: RemoteState, selection: Selection, manifest: str) -> list[str]:
    """Return notes on the other manifests of a remote: licences, names that are taken, damaged manifests."""
    where, survey = state.remote.where, state.survey()
    is_for_licences = manifest and _is_listed(selection, state)
    return [
        *licence_notes(new_licences(selection, state.stock().manifests) if is_for_licences else ()),
        *contradiction_notes(where, survey.manifests, selection, manifest),
        *namesake_notes(where, survey.manifests, selection.corpora, selection.teachers, manifest),
        *(
            f"manifests/{name}.json of {where} cannot be read ({why}): pulls have to do without it"
            for name, why in survey.refused.items()
            # The same push once more mends one that was damaged.
            if name != manifest
        ),
    ]


def _result(
    delivery: _Delivery,
    state: RemoteState,
    manifest: str,
    signer: Signer | None,
    notes: Sequence[str],
    seconds: float,
) -> PushResult:
    return PushResult(
        remote=state.remote.where,
        manifest=manifest,
        sent=len(delivery.sent),
        sent_bytes=delivery.size_of(delivery.sent),
        present=len(delivery.present),
        present_bytes=delivery.size_of(delivery.present),
        others=len(delivery.others),
        others_bytes=delivery.size_of(delivery.others),
        signed_by="" if signer is None else signer.public.shown,
        told=tuple(notes),
        seconds=seconds,
    )


class _Delivery:
    """Brings objects to a remote, each of them once, whoever else is about to.

    Attributes:
        sent: digests of the objects that were sent from here.
        present: digests of those that the remote had.
        others: digests of those that other processes sent meanwhile.
    """

    def __init__(
        self, remote: Remote, objects: Iterable[LocalObject], jobs: int, meter: Meter, claims: Claims
    ) -> None:
        self._remote, self._jobs, self._meter = remote, jobs, meter
        self._claims = claims
        # The same bytes may lie under several paths.
        self._objects = {local.sha256: local for local in objects}
        self._opening = threading.Lock()
        self.sent: set[str] = set()
        self.present: set[str] = set()
        self.others: set[str] = set()

    def size_of(self, digests: Iterable[str]) -> int:
        """Return how many bytes objects have together."""
        return sum(self._objects[digest].bytes for digest in digests)

    def run(self, listed: Collection[str]) -> None:
        """Send, or see sent, all objects.

        Args:
            listed: digests of those that manifests list. The remote has them as a rule, and where nothing
                else is to be sent, nothing has to be planned. The others are looked up during the planning.
        """
        self.present = self._remote.present(self._objects[digest] for digest in self._objects.keys() & listed)
        left = set(self._objects) - self.present
        if not left:
            return
        self._meter.begin("send", total_files=len(left), total_bytes=self.size_of(left))
        is_first = True
        while left:
            with self._claims.planning():
                # In this order: of what is sent and given up meanwhile, either shows.
                taken = frozenset().union(*self._claims.of_others().values())
                arrived = self._remote.present(self._objects[digest] for digest in left)
                mine = left - arrived - taken
                self._claims.take(mine)
            # Objects that no process was sending are those of a stopped push.
            older = arrived - taken if is_first else set()
            is_first = False
            self.present |= older
            self.others |= arrived - older
            self._meter.add(files=len(arrived), size=self.size_of(arrived))
            self._send(mine)
            self._claims.give_up()
            left -= arrived | mine
            if left:
                with self._meter.aside("wait for other pushes"):
                    self._claims.wait(left, self._show_pushes)

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
            RemoteError: if one does not.
        """
        gone = set(self._objects) - self._remote.present(self._objects.values())
        if gone:
            declared = f"manifest {manifest[:12]} lists it already" if manifest else "nothing was declared"
            raise RemoteError(
                f"{object_path(min(gone))} of {self._remote.where} is not there as it was sent, or of "
                f"another size ({counted(len(gone), 'object')} in all): {declared}; run the same "
                "command again"
            )

    def _send(self, digests: Iterable[str]) -> None:
        def send(local: LocalObject) -> None:
            data = local.read(self._opened(local))
            if self._remote.stop.is_set():
                raise Stopped
            self._remote.write(object_path(local.sha256), data)
            self.sent.add(local.sha256)
            self._meter.add(files=1, size=local.bytes)

        # The largest first, or the last one would leave the other threads idle.
        ordered = sorted((self._objects[digest] for digest in digests), key=lambda local: -local.bytes)
        run_all(send, ordered, jobs=self._jobs, stop=self._remote.stop, patience=_PATIENCE_SECONDS)

    def _opened(self, local: LocalObject) -> pa.Buffer:
        # Shards inside one LMDB file are read through one transaction.
        with self._opening:
            return local.open()


def _declare(remote: Remote, selection: Selection, by: str, message: str, signer: Signer | None) -> str:
    """Write card, manifest and signature, and return the manifest's id."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if by else ""
    card = card_of(selection, by=by, when=when, message=message).encode()
    digest = hashlib.sha256(card).hexdigest()
    manifest = Manifest(
        selection.shared, selection.teachers, selection.corpora, digest, by=by, when=when, message=message
    )
    # What could not be read back must not be written.
    Manifest.from_bytes(manifest.data, manifest.id)
    remote.write(f"cards/{digest}.md", card)
    if signer is not None:
        # Before the manifest: whoever sees that sees the signature.
        sign_manifest(remote, manifest.id, signer)
    remote.write(f"manifests/{manifest.id}.json", manifest.data)
    return manifest.id
