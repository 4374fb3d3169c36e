"""The plan of a pull: which manifests count, which versions are meant, which files and bytes that makes.

A pull is planned before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.corpus.choice import CorpusChoice
from embedcache.errors import InputError
from embedcache.share.limits import Allowance
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.corpora import CorpusPlanner
from embedcache.share.pulling.teachers import TeacherPlanner
from embedcache.share.pulling.wanted import PullPlan
from embedcache.share.remote.documents import Documents
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.open_stock import open_stock
from embedcache.share.remote.remote import Remote


@dataclass(frozen=True)
class Preparation:
    """Everything that a pull knows before it writes anything.

    Attributes:
        source: the remote.
        stock: what it has.
        cache: what is pulled into; None where there is no cache yet.
        folder: its folder.
        plan: the files that are wanted; if a part of a corpus is, under their names on the remote.
        allowance: how much may be fetched, with what was read to plan it.
    """

    source: Remote
    stock: Stock
    cache: Cache | None
    folder: Path
    plan: PullPlan
    allowance: Allowance


def prepare(
    cache: Cache | str | Path,
    remote: str | Remote,
    choice: PullChoice,
    meter: Meter,
    *,
    into_mirror: bool = False,
    allowance: Allowance | None = None,
) -> Preparation:
    """Read manifests and documents of a remote and plan a pull; nothing is written but copies of manifests.

    Args:
        cache: the cache or its folder.
        remote: the name or the URL of a remote, or the remote itself.
        choice: what is wanted.
        meter: counts the work.
        into_mirror: whether the cache is a mirror. Then one corpus is pulled, the one of the choice or the
            only one on the remote. The plan tells what it is called in the mirror.
        allowance: how much may be fetched; default: what the choice says.

    Raises:
        InputError, ContractMismatchError, RemoteError: as :func:`embedcache.share.pull.pull`.
    """
    meter.begin("read the remote")
    opened = open_if_there(cache)
    allowance = allowance or Allowance(choice.max_bytes)
    source, stock = open_stock(
        remote, opened, choice.require_signature, choice.skip_manifests, allowance=allowance
    )
    if not stock.manifests:
        raise InputError(f"nothing to pull: {_why_nothing(source)}")
    with TemporaryDirectory(prefix="embedcache-pull-") as scratch:
        documents = Documents(source, Path(scratch), allowance, _kept_documents(source, opened))
        plan = _plan(source, stock, opened, documents, choice, into_mirror=into_mirror)
    if not plan.wanted and not choice.allow_local_names:
        raise InputError(f"nothing to pull: {source.where} has no teacher and no corpus that was asked for")
    return Preparation(source, stock, opened, _folder(cache), plan, allowance)


def _why_nothing(source: Remote) -> str:
    """Return why there is nothing to pull on a remote."""
    if source.manifest_ids():
        return f"{source.where} has no push that --require-signature and --skip-manifest leave to look at"
    return (
        f"{source.where} has no finished push: one that was stopped declares what it has sent once it is run "
        "again"
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
    # A process that was killed as it made the cache has left names that begin with a dot.
    is_new = not folder.exists() or (
        folder.is_dir() and all(entry.name.startswith(".") for entry in folder.iterdir())
    )
    return None if is_new else Cache(folder)


def _kept_documents(source: Remote, cache: Cache | None) -> list[Path]:
    """Return the folders that documents of a remote may lie in as they do there: caches, whole or not."""
    if cache is None:
        return []
    return [cache.folder, *(cache.derived_folder / "remotes" / source.id / "parts").glob("*")]


def _plan(
    source: Remote,
    stock: Stock,
    cache: Cache | None,
    documents: Documents,
    choice: PullChoice,
    *,
    into_mirror: bool,
) -> PullPlan:
    asked = choice.corpora or stock.corpus_names
    if into_mirror and len(asked) != 1:
        corpora = f"several corpora ({', '.join(asked)}): choose one with --corpus" if asked else "no corpus"
        raise InputError(f"{source.where} has {corpora}")
    choices = [CorpusChoice.parse(text) for text in asked] if choice.text else []
    if choice.allow_local_names and cache is not None:
        only_here = set(cache.corpus_names()) - set(stock.corpus_names)
        choices = [corpus for corpus in choices if corpus.name not in only_here]
    teachers = TeacherPlanner(stock, documents, cache, source.where, into_mirror=into_mirror)
    # A part gets a name of its own, so a corpus here with the name of the whole is not in its way.
    corpora_here = None if choice.is_part else cache
    corpora_planner = CorpusPlanner(stock, documents, corpora_here, source.where, into_mirror=into_mirror)
    names_corpus = bool(choice.corpora)
    ids = teachers.choose(choice.teachers, allow_local_names=choice.allow_local_names)
    wanted = teachers.plan(ids, None if names_corpus else choice.alias)
    wanted += corpora_planner.plan(choices, choice.alias if names_corpus and not choice.is_part else None)
    told = [f"manifest {digits[:12]} was left out, as was asked for" for digits in choice.skip_manifests]
    if choice.alias is not None and names_corpus and len(choice.teachers) == 1:
        told.append(
            f"--as {choice.alias} names the corpus; to give the teacher another name, pull it alone, with "
            "--teacher NAME --no-text --as OTHER"
        )
    return PullPlan(wanted, teachers.contracts, [*told, *teachers.told, *corpora_planner.told])
