"""Push a cache: send the files that a remote lacks, then write a manifest that lists all of them.

A licence that no manifest declares yet is news, too: then a manifest is written although no file is new.

Each file is read, its digest is checked, and it is written whole. The manifest is written when everything it
lists lies on the remote with the right size; until then nobody sees any of it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from embedcache.cache import Cache
from embedcache.check.progress import Meter, OnCheck
from embedcache.errors import InputError
from embedcache.share.pushing.bad_samples import note_sent, refuse_bad
from embedcache.share.pushing.card import card_of
from embedcache.share.pushing.delivery import Delivery, GoneError
from embedcache.share.pushing.licences import (
    contradiction_notes,
    licence_notes,
    new_licences,
    refuse_contradictions,
    unkept_notes,
)
from embedcache.share.pushing.namesakes import namesake_notes, namesake_warnings
from embedcache.share.pushing.new_remote import refuse_unfit_place
from embedcache.share.pushing.news import only_news
from embedcache.share.pushing.own_indexes import index_objects, with_indexes
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.pushing.selection import EVERYTHING, PushChoice, Selection, select_files
from embedcache.share.remote.claims import STALE_SECONDS, Claims
from embedcache.share.remote.manifest import MOST_FILES, Manifest
from embedcache.share.remote.news import news_among
from embedcache.share.remote.open_stock import open_remote
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import Signer, sign_manifest
from embedcache.share.transfer import JOBS

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
    remote: str | Remote,
    choice: PushChoice = EVERYTHING,
    *,
    text_licence: str = "",
    by: str = "",
    message: str = "",
    sign: str | Path | None = None,
    jobs: int = JOBS,
    alone: bool = False,
    new_remote: bool = False,
    stale_seconds: float = STALE_SECONDS,
    on_warning: Callable[[str], None] | None = None,
    on_progress: OnCheck | None = None,
) -> PushResult:
    """Send what ``cache`` has and ``remote`` lacks. Repeated, it sends only what is still missing.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote, or the remote itself; it is made where there is none.
        choice: what is pushed; default: all.
        text_licence: licence of the texts; it is kept even where no file is new. Where the remote declares
            another one for the same texts, these have to be named in ``choice``.
        by: who pushes, for the card; it is kept with the time, where there is something to add.
        message: what for, for the card, as ``by``.
        sign: file of a private ed25519 key, OpenSSH's or PEM, to sign the manifest with.
        jobs: transfers at once.
        alone: nobody else pushes or deletes there meanwhile, so claims are not used; for places that do not
            list what was just written.
        new_remote: make a remote in an empty folder, though the cache knows one that was there.
        stale_seconds: a push without a sign of life for this long counts as gone, and its objects are sent
            from here.
        on_warning: called before anything is sent with what others will have to do, because the remote has
            another corpus or teacher of a name.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not in the cache, there is nothing to push, an argument cannot be used,
            vectors are among it that a sample of a pull has found bad, cache and remote lie inside each
            other, a folder that is no remote holds other files, a remote that was there is missing, or the
            licence contradicts an earlier one.
        CorruptCacheError: if a file of the cache is damaged; nothing of it is sent.
        RemoteError: if the remote cannot be reached or written.
        StorageError: if there is no room here for row indexes of the remote.
    """
    started = time.perf_counter()
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    signer = None if sign is None else Signer.load(Path(sign))
    _check_texts({"--by": by, "--message": message, "--text-licence": text_licence})
    target = open_remote(remote)
    refuse_unfit_place(target, opened, new_remote=new_remote)
    meter = Meter(on_progress)
    meter.begin("read the cache")
    selection = select_files(opened, choice, text_licence=text_licence)
    if len(selection.files) > MOST_FILES:
        raise InputError(
            f"{len(selection.files):,} files, more than the {MOST_FILES:,} of a push: push teachers one by "
            "one, or merge small shards with 'embedcache compact'"
        )
    refuse_bad(opened, selection)
    if not target.is_there():
        # A damaged shard is to leave no new remote behind.
        indexed = with_indexes(opened, selection.files, meter, jobs, target.stop)
        selection = replace(selection, files=indexed)
    meter.begin("read the remote")
    target.prepare()
    state = RemoteState(target, opened, signer)
    delivery = Delivery(target, jobs, meter)

    def declare(chosen: Selection) -> str:
        return _declare(state, chosen, by, message, signer)

    work = _Work(opened, selection, choice.corpora, state, delivery, meter, jobs, declare, on_warning)
    for is_last in (False, True):
        claims = Claims(target, stale_seconds, alone=alone)
        # From the first look at what is there until all is declared, nobody may delete any of it.
        with claims.alive(delivery.show_deletion):
            try:
                work.run(claims)
            except GoneError:
                if is_last or not claims.overslept:
                    raise
            if not claims.overslept:
                break
        # Others may have taken this process for gone, and deleted what it counted on.
    else:
        delivery.refuse_gaps(work.manifest)
    note_sent(opened, target, work.chosen, delivery.sent)
    notes = [
        *work.notes,
        *unkept_notes(selection, message=message, text_licence=text_licence, manifest=work.manifest),
    ]
    return _result(delivery, state, work.manifest, signer, notes, time.perf_counter() - started)


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


@dataclass
class _Work:
    """What a push does while it gives signs of life; repeated, it does what is still to be done.

    Attributes:
        cache: the cache.
        selection: what was asked for.
        named: the corpora that were asked for by name.
        state: what the remote has.
        delivery: brings objects there.
        meter: counts the work.
        jobs: transfers at once.
        declare: writes the manifest of what was chosen and returns its id.
        on_warning: as for :func:`push`.
        chosen: of the selection, what the remote does not have as good or better.
        manifest: id of the manifest; empty where there was nothing to add.
        notes: what is worth telling.
    """

    cache: Cache
    selection: Selection
    named: Collection[str]
    state: RemoteState
    delivery: Delivery
    meter: Meter
    jobs: int
    declare: Callable[[Selection], str]
    on_warning: Callable[[str], None] | None
    chosen: Selection = field(init=False)
    manifest: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chosen = self.selection

    def run(self, claims: Claims) -> None:
        """Send what is missing, and declare it where manifests lack files of it or a licence.

        Args:
            claims: of this process, which is alive.

        Raises:
            InputError: if a licence contradicts an earlier one.
            CorruptCacheError: if a file of the cache is damaged.
            GoneError: if something that was sent is not there.
            RemoteError: if the remote cannot be reached or written.
            StorageError: if there is no room here for row indexes of the remote.
        """
        state, delivery = self.state, self.delivery
        survey = state.look_again()
        refuse_contradictions(state.remote.where, survey.manifests, self.selection, self.named)
        chosen, left_out = only_news(self.selection, state, self.cache, self.meter, self.jobs)
        files = with_indexes(self.cache, chosen.files, self.meter, self.jobs, state.remote.stop)
        self.chosen = chosen = replace(chosen, files=files)
        self._warn(survey.manifests)
        delivery.run([*(local.object for local in files), *index_objects(files)], state.objects(), claims)
        # Others may have declared the same by now, or somebody may have deleted it.
        state.look_again()
        manifest = ""
        if not _is_listed(chosen, state) or new_licences(chosen, state.stock().manifests):
            delivery.check_rest()
            delivery.refuse_gaps()
            manifest = self.declare(chosen)
        self.manifest = manifest or self.manifest
        self.notes = [*dict.fromkeys([*self.notes, *left_out, *_notes(state, chosen, manifest)])]

    def _warn(self, manifests: Sequence[Manifest]) -> None:
        """Tell, once, what will follow from names that are taken."""
        if self.on_warning is not None:
            where = self.state.remote.where
            for warning in namesake_warnings(where, manifests, self.chosen.corpora, self.chosen.teachers):
                self.on_warning(warning)
            self.on_warning = None


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
    delivery: Delivery,
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


def _declare(state: RemoteState, selection: Selection, by: str, message: str, signer: Signer | None) -> str:
    """Write card, manifest and signature, and return the manifest's id."""
    remote, files = state.remote, selection.shared
    when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if by else ""
    card = card_of(selection, by=by, when=when, message=message).encode()
    digest = hashlib.sha256(card).hexdigest()
    # Whoever has signed the others: when this push is taken back, all that they declared stays.
    news = news_among(files, state.survey().manifests)
    manifest = Manifest(files, selection.teachers, selection.corpora, digest, by, when, message, news)
    # What could not be read back must not be written.
    Manifest.from_bytes(manifest.data, manifest.id)
    remote.write(f"cards/{digest}.md", card)
    if signer is not None:
        # Before the manifest: whoever sees that sees the signature.
        sign_manifest(remote, manifest.id, signer)
    remote.write(f"manifests/{manifest.id}.json", manifest.data)
    return manifest.id
