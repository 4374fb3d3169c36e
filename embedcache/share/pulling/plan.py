"""What a pull would do: which manifests count, which versions are meant, which files and bytes that makes.

Everything is found out before anything is written.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.corpus.choice import CorpusChoice
from embedcache.corpus.description import check_name
from embedcache.errors import InputError, StorageError
from embedcache.share.pulling.corpora import CorpusPlanner
from embedcache.share.pulling.recode import check_kept_codec
from embedcache.share.pulling.teachers import TeacherPlanner
from embedcache.share.pulling.wanted import PullPlan
from embedcache.share.remote.documents import Documents
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import PublicKey, signed_manifests
from embedcache.share.remotes import location_of

# What other processes may write to the disk meanwhile.
_SPARE_BYTES = 64 << 20

_PULL_LESS = "pull less with --teacher, --corpus, --rows or --no-text"


@dataclass(frozen=True)
class PullChoice:
    """What somebody wants of a remote.

    Attributes:
        teachers: these alone, names or contract ids; empty: all.
        corpora: these alone, ``NAME`` or ``NAME@DIGEST``; empty: all.
        text: whether corpora and their views are wanted.
        alias: what the one corpus of ``corpora``, or else the one teacher of ``teachers``, is called here.
        rows: so many rows of the one corpus at most; None: all.
        where: those of its rows that this condition takes; None: all.
        codec: how vectors are to be kept here; None: as they are.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        max_bytes: refuse to fetch more than this.
        skip_manifests: leave out manifests whose names begin so.
        into_mirror: whether it is a mirror that is pulled into, of one corpus: of ``corpora`` there is one,
            or else one on the remote. What it is called there is looked up in the plan.

    Raises:
        InputError: if these do not go together, or cannot be used.
    """

    teachers: Collection[str] = ()
    corpora: Collection[str] = ()
    text: bool = True
    alias: str | None = None
    rows: int | None = None
    where: str | None = None
    codec: str | None = None
    require_signature: str | Path | None = None
    max_bytes: int | None = None
    skip_manifests: Collection[str] = ()
    into_mirror: bool = False

    def __post_init__(self) -> None:
        if self.corpora and not self.text:
            raise InputError(
                "--corpus together with --no-text: with the one texts are pulled, with the other none"
            )
        if self.is_part and len(self.corpora) != 1:
            raise InputError("--rows and --where take a part of one corpus: name it with one --corpus")
        if self.rows is not None and self.rows < 1:
            raise InputError(f"--rows {self.rows}: expected at least 1")
        if self.alias is not None and len(self.corpora or self.teachers) != 1:
            raise InputError("--as needs one --corpus, or else one --teacher, that it is another name of")
        if self.alias is not None:
            check_name(self.alias)
        if self.codec is not None:
            check_kept_codec(self.codec)

    @property
    def is_part(self) -> bool:
        """Whether some rows of a corpus are wanted, and vectors of these alone."""
        return self.rows is not None or self.where is not None


@dataclass(frozen=True)
class Preparation:
    """What a pull knows before it writes anything.

    Attributes:
        source: the remote.
        stock: what it has.
        cache: what is pulled into; None where there is no cache yet.
        folder: its folder.
        plan: the files that are wanted; where a part of a corpus is, under the names that the remote has.
    """

    source: Remote
    stock: Stock
    cache: Cache | None
    folder: Path
    plan: PullPlan


def prepare(cache: Cache | str | Path, remote: str, choice: PullChoice, meter: Meter) -> Preparation:
    """Read manifests and documents of a remote and plan a pull; nothing is written but copies of manifests.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote.
        choice: what is wanted.
        meter: counts the work.

    Raises:
        InputError, ContractMismatchError, RemoteError: as :func:`embedcache.share.pull.pull`.
    """
    wanted_key = choice.require_signature
    key = None if wanted_key is None else PublicKey.load(Path(wanted_key))
    source = Remote(location_of(remote), stop=threading.Event())
    meter.begin("read the remote")
    source.require()
    opened = open_if_there(cache)
    signed = None if key is None else signed_manifests(source, key)
    stock = Stock(source.manifests(opened, signed, choice.skip_manifests))
    if not stock.manifests:
        raise InputError(f"nothing to pull: {_why_nothing(source)}")
    with TemporaryDirectory(prefix="embedcache-pull-") as scratch:
        plan = _plan(source, stock, opened, Path(scratch), choice)
    if not plan.wanted:
        raise InputError(f"nothing to pull: {source.where} has no teacher and no corpus that was asked for")
    return Preparation(source, stock, opened, _folder(cache), plan)


def _why_nothing(source: Remote) -> str:
    """Return why no manifest of a remote counts."""
    if source.manifest_ids():
        return f"{source.where} has no push that --require-signature and --skip-manifest leave to look at"
    return (
        f"{source.where} has no finished push: one that was stopped declares what it has sent once it is run "
        "again"
    )


def refuse_more_than(most: int | None, size: int, less: str = _PULL_LESS) -> None:
    """See that so many bytes may be fetched; arguments as for :func:`refuse_too_much`.

    Raises:
        InputError: if they are more than ``most``.
    """
    if most is not None and size > most:
        raise InputError(
            f"{size:,} bytes would have to be fetched, more than the {most:,} of --max-bytes: allow more, or "
            f"{less}"
        )


def refuse_too_much(
    folder: Path, size: int, most: int | None, less: str = _PULL_LESS, *, freed: int = 0
) -> None:
    """See that so many bytes may be fetched, and have room.

    Args:
        folder: where they go.
        size: how many, with what was fetched before.
        most: how many may be; None: as many as there is room for.
        less: for messages, how to fetch fewer.
        freed: bytes that will be deleted before.

    Raises:
        InputError: if they are more than ``most``.
        StorageError: if the disk that ``folder`` lies on, or will, has no room for them.
    """
    refuse_more_than(most, size, less)
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free + freed
    if size + _SPARE_BYTES > free:
        raise StorageError(
            f"cannot write {folder}: {size:,} bytes would have to be fetched, and {free:,} are free; make "
            f"room, or {less}"
        )


def _folder(cache: Cache | str | Path) -> Path:
    return cache.folder if isinstance(cache, Cache) else Path(cache).expanduser()


def open_if_there(cache: Cache | str | Path) -> Cache | None:
    """Return the cache, opened where it is a folder; None where there is none yet.

    Raises:
        CacheFormatError: if the folder holds other things, or a cache of a newer version.
    """
    if isinstance(cache, Cache):
        return cache
    folder = _folder(cache)
    # What was killed as it made the cache has left names that begin with a dot.
    is_new = not folder.exists() or (
        folder.is_dir() and all(entry.name.startswith(".") for entry in folder.iterdir())
    )
    return None if is_new else Cache(folder)


def _plan(source: Remote, stock: Stock, cache: Cache | None, scratch: Path, choice: PullChoice) -> PullPlan:
    documents = Documents(source, scratch)
    asked = choice.corpora or stock.corpus_names
    if choice.into_mirror and len(asked) != 1:
        found = f"several corpora ({', '.join(asked)}): choose one with --corpus" if asked else "no corpus"
        raise InputError(f"{source.where} has {found}")
    choices = [CorpusChoice.parse(one) for one in asked] if choice.text else []
    of_teachers = TeacherPlanner(stock, documents, cache, source.where)
    # A part becomes a corpus of another name: what is called as the whole is, here, is not in its way.
    of_corpora = CorpusPlanner(
        stock, documents, None if choice.is_part else cache, source.where, into_mirror=choice.into_mirror
    )
    names_corpus = bool(choice.corpora)
    wanted = of_teachers.plan(of_teachers.choose(choice.teachers), None if names_corpus else choice.alias)
    wanted += of_corpora.plan(choices, choice.alias if names_corpus and not choice.is_part else None)
    told = [f"manifest {one[:12]} was left out, as was asked for" for one in choice.skip_manifests]
    return PullPlan(wanted, of_teachers.contracts, [*told, *of_teachers.told, *of_corpora.told])
