"""Pull: read the manifests, download what is missing into a quarantine, check it, then admit it."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.choice import CorpusChoice
from embedcache.corpus.corpus import DESCRIPTION, Corpus, CorpusInfo
from embedcache.corpus.view_record import RECIPE, record_from_json
from embedcache.errors import ContractMismatchError, InputError, RemoteError, StorageError
from embedcache.fsio import parsed_json, sha256_file
from embedcache.keys import KeyArray
from embedcache.share.files import Selection, corpus_paths, missing_files
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import SharedFile, Stock, names_beginning
from embedcache.share.part import cut_part
from embedcache.share.remote import Remote, object_path
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import SampleCheck, compare, local_teacher
from embedcache.share.sign import require_signed
from embedcache.sizes import readable

_MOST_DOCUMENT_BYTES = 4 << 20
_RESERVE_BYTES = 64 << 20


@dataclass(frozen=True)
class PullResult:
    """What a pull did, or what a preview says it would.

    Attributes:
        remote: its URL.
        files: files that came.
        bytes: their size.
        corpora: names of the corpora that came.
        vectors: rows of vectors that came, by the teacher's name.
        left_out: what is on the remote under a name that the cache uses for something else.
        samples: how vectors compare with the teacher and with one's own.
        seconds: how long it took.
    """

    remote: str
    files: int
    bytes: int
    corpora: list[str]
    vectors: dict[str, int]
    left_out: list[str]
    samples: list[SampleCheck] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether a teacher was refused because its vectors are not the teacher's."""
        return any(sample.is_bad for sample in self.samples)

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return asdict(self)


@dataclass
class Plan:
    """What a pull fetches.

    Attributes:
        corpora: files of the corpora that are missing, by the corpus's name.
        infos: descriptions of the corpora that are wanted, here or missing.
        teachers: names of the wanted teachers, by contract id.
        documents: files of the wanted teachers that are missing, but for shards.
        shards: shards that are missing.
        left_out: as in :class:`PullResult`.
    """

    corpora: dict[str, list[SharedFile]] = field(default_factory=dict)
    infos: dict[str, CorpusInfo] = field(default_factory=dict)
    teachers: dict[str, list[str]] = field(default_factory=dict)
    documents: list[SharedFile] = field(default_factory=list)
    shards: list[SharedFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def texts(self) -> list[SharedFile]:
        """Return the missing files of corpora."""
        return [file for files in self.corpora.values() for file in files]


def pull(
    cache: str | Path,
    remote: str,
    selection: Selection | None = None,
    *,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
    sample_check: bool = True,
    with_shards: bool = True,
    computing: Computing | None = None,
    on_progress: OnCheck | None = None,
) -> PullResult:
    """Fetch what a remote has and a cache lacks; the cache is made where there is none.

    What is downloaded is checked and compared before anything of it enters the cache. Vectors that are not
    the teacher's are refused with everything else of that teacher.

    Args:
        cache: the cache's folder.
        remote: name or URL of the remote.
        selection: what to fetch; default: everything.
        max_bytes: refuse to fetch more than this.
        require_signature: file of public ed25519 keys; only manifests that one of them signed count.
        skip_manifests: beginnings of digests of manifests that do not count.
        sample_check: compare a sample of vectors with the live teacher and with one's own.
        with_shards: fetch vectors as well.
        computing: how to run the teacher.
        on_progress: called as the work goes on.

    Raises:
        InputError: if something asked for is not on the remote, or is more than ``max_bytes``.
        ContractMismatchError: if a teacher of the same name has another contract; it names the fields.
        RemoteError: if the remote cannot be reached, or what lies there is refused; nothing of it enters.
        StorageError: if the disk has no room, or the cache cannot be written.
    """
    started = time.perf_counter()
    chosen, meter = selection or Selection(), Meter(on_progress)
    source, stock = _survey(remote, cache, require_signature, skip_manifests)
    opened = Cache.create(cache)
    plan = make_plan(source, stock, opened, chosen)
    texts, wanted = plan.texts(), [*plan.texts(), *plan.documents, *plan.shards]
    at_once = texts if chosen.corpora else wanted
    refuse_too_much(opened.folder, sum(file.bytes for file in at_once), max_bytes)
    incoming = Incoming(opened, source, stock, meter)
    with incoming.locked({file.path for file in wanted}) as staged:
        meter.begin("pull texts", total_files=len(texts), total_bytes=sum(file.bytes for file in texts))
        incoming.fetch(texts)
        incoming.check_corpora(texts)
        if chosen.corpora:
            texts, keys = _cut_to(incoming, staged, plan, chosen, texts)
            plan.shards = _shards_with(keys, incoming, plan) if with_shards else []
        vectors = [*plan.documents, *plan.shards]
        refuse_too_much(opened.folder, sum(file.bytes for file in vectors), max_bytes)
        meter.begin("pull", total_files=len(vectors), total_bytes=sum(file.bytes for file in vectors))
        incoming.fetch(vectors)
        samples, teachers = [], list[SharedFile]()
        for contract_id in plan.teachers:
            mine = [one for one in (*plan.documents, *plan.shards) if one.entry.teacher == contract_id]
            sample = _check_teacher(incoming, staged, mine, sample_check, computing, meter)
            samples += [sample] if sample is not None else []
            if sample is None or not sample.is_bad:
                teachers += mine
        incoming.admit([*texts, *teachers])
    corpora = sorted({file.entry.corpus for file in texts} - {""})
    came = [*texts, *teachers]
    return PullResult(
        source.url,
        len(came),
        sum(file.bytes for file in came),
        corpora,
        _vectors(plan.teachers, teachers),
        plan.left_out,
        samples,
        time.perf_counter() - started,
    )


def preview(
    cache: str | Path,
    remote: str,
    selection: Selection | None = None,
    *,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
) -> PullResult:
    """Return what :func:`pull` would fetch at most: which vectors chosen corpora need is not known before.

    Raises:
        InputError, ContractMismatchError, RemoteError: as :func:`pull`.
    """
    chosen = selection or Selection()
    source, stock = _survey(remote, cache, require_signature, skip_manifests)
    here = Cache(cache) if (Path(cache).expanduser() / "cache.json").exists() else None
    plan = make_plan(source, stock, here, chosen)
    files = [*plan.texts(), *plan.documents, *plan.shards]
    vectors = _vectors(plan.teachers, plan.shards)
    size = sum(file.bytes for file in files)
    return PullResult(source.url, len(files), size, sorted(plan.corpora), vectors, plan.left_out)


def _survey(
    remote: str, cache: str | Path, require_signature: str | Path | None, skip_manifests: Sequence[str]
) -> tuple[Remote, Stock]:
    source = Remote(remote)
    folder = Path(cache).expanduser()
    source.refuse_nested(folder)
    return source.open(), counted_stock(
        source, Cache(folder) if (folder / "cache.json").exists() else None, require_signature, skip_manifests
    )


def counted_stock(
    source: Remote,
    cache: Cache | None,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
) -> Stock:
    """Return what the manifests list that are signed as required and not skipped.

    Raises:
        InputError: if ``skip_manifests`` names none.
        RemoteError: if none is signed, or one cannot be used.
    """
    names = source.manifest_names()
    if not names:
        raise RemoteError(f"{source.url}: nothing was pushed there yet.")
    skipped = names_beginning(names, skip_manifests, source.url)
    names = [name for name in names if name not in skipped]
    if require_signature is not None:
        names = require_signed(source, names, require_signature)
    return source.stock(cache, names)


def refuse_too_much(folder: Path, size: int, max_bytes: int | None) -> None:
    """Refuse to fetch more bytes than allowed, or than the disk has room for.

    Raises:
        InputError: if they are more than ``max_bytes``.
        StorageError: if the disk has no room for them.
    """
    if max_bytes is not None and size > max_bytes:
        raise InputError(
            f"{readable(size)} would be fetched, --max-bytes allows {max_bytes:,}: choose less with "
            "--teacher, --corpus, --rows or --no-text."
        )
    free = shutil.disk_usage(folder).free
    if size and size + _RESERVE_BYTES > free:
        raise StorageError(
            f"{folder}: {readable(size)} would be fetched, {free:,} bytes are free ({_RESERVE_BYTES:,} stay "
            "reserved). Make room, or choose less with --teacher, --corpus, --rows or --no-text."
        )


def make_plan(source: Remote, stock: Stock, cache: Cache | None, selection: Selection) -> Plan:
    """Return what to fetch.

    Raises:
        InputError: if something asked for is not on the remote, or clashes with what is in the cache.
        ContractMismatchError: if a teacher of the same name has another contract.
        RemoteError: if a document cannot be read.
    """
    plan = Plan()
    _plan_corpora(plan, source, stock.files(), cache, selection)
    _plan_teachers(plan, source, stock, cache, selection)
    return plan


def _plan_teachers(
    plan: Plan, source: Remote, stock: Stock, cache: Cache | None, selection: Selection
) -> None:
    files = stock.files()
    names = stock.teacher_names()
    contracts = {file.entry.teacher: file for file in files if file.entry.kind is Kind.CONTRACT}
    plan.teachers = {one: called for one, called in names.items() if selection.takes_teacher(called, one)}
    for asked in selection.teachers:
        if not any(Selection([asked]).takes_teacher(n, i) for i, n in plan.teachers.items()):
            known = sorted({name for called in names.values() for name in called})
            raise InputError(f"{source.url}: no teacher {asked!r} (it has {', '.join(known) or 'none'}).")
    _refuse_clashes(plan, source, contracts, cache)
    for contract_id in plan.teachers:
        mine = [file for file in files if file.entry.teacher == contract_id]
        documents = {file.path: file for file in reversed(mine) if file.entry.kind is not Kind.SHARD}
        shards = {file.sha256: file for file in mine if file.entry.kind is Kind.SHARD}
        plan.documents += _missing(cache, documents.values())
        plan.shards += _missing(cache, shards.values())
    if plan.shards:
        # A codebook of shards that come is needed beside them, wherever else it is.
        coming = {file.entry.teacher for file in plan.shards if file.codec == "pq"}
        books = {f.path: f for f in files if f.entry.kind is Kind.CODEBOOK and f.entry.teacher in coming}
        plan.documents += [book for path, book in books.items() if book not in plan.documents]


def _refuse_clashes(
    plan: Plan, source: Remote, contracts: dict[str, SharedFile], cache: Cache | None
) -> None:
    known = {teacher.name: teacher.contract for teacher in cache.teachers()} if cache is not None else {}
    owner: dict[str, str] = {}
    for contract_id, called in plan.teachers.items():
        for name in called:
            if name in owner:
                raise InputError(
                    f"{source.url}: two teachers are called {name!r}. Choose one by its contract: --teacher "
                    f"{owner[name][:12]} or --teacher {contract_id[:12]}."
                )
            owner[name] = contract_id
            if name in known and known[name].id != contract_id:
                theirs = Contract.from_json(parsed_json(_document(source, contracts[contract_id])))
                differences = known[name].differences(theirs)
                raise ContractMismatchError(
                    f"the cache has {name!r} with another contract than {source.url} "
                    f"({describe_differences(differences)}): choose other teachers with --teacher, or pull "
                    "into another cache.",
                    differences,
                )


def _plan_corpora(
    plan: Plan, source: Remote, files: list[SharedFile], cache: Cache | None, selection: Selection
) -> None:
    by_path: dict[str, list[SharedFile]] = {}
    for file in files:
        by_path.setdefault(file.path, []).append(file)
    described = [file for file in files if file.entry.kind is Kind.CORPUS]
    names = dict.fromkeys(file.entry.corpus for file in described)
    for asked in selection.corpora:
        if CorpusChoice.parse(asked).name not in names:
            raise InputError(
                f"{source.url}: no corpus {asked!r} (it has {', '.join(sorted(names)) or 'none'})."
            )
    here = set(cache.corpus_names()) if cache is not None else set()
    for name in names if selection.text else ():
        if not any(selection.takes_corpus(name, choice.digest) for choice in _choices(selection, name)):
            continue
        own = cache.corpus(name) if cache is not None and name in here else None
        versions = [file for file in described if file.entry.corpus == name]
        found = _version(source, versions, selection, name, None if own is None else own.info.digest)
        if found is None:
            told = f"corpus {name!r}: the cache has one of that name with other rows"
            if selection.corpora:
                raise InputError(f"{source.url}: {told}. Pull it into another cache.")
            plan.left_out.append(told)
            continue
        file, info = found
        if own is None or selection.is_part:
            parts = [_listed(by_path, f"corpora/{name}/{part.file_name}", source) for part in info.parts]
            plan.corpora[name] = [*parts, file]
        plan.infos[name] = info
        _plan_views(plan, source, by_path, own, name, info, is_part=selection.is_part)


def _plan_views(
    plan: Plan,
    source: Remote,
    by_path: dict[str, list[SharedFile]],
    own: Corpus | None,
    corpus: str,
    info: CorpusInfo,
    *,
    is_part: bool,
) -> None:
    start = f"corpora/{corpus}/views/"
    for path, recipes in sorted(by_path.items()):
        if not (path.startswith(start) and path.endswith(f"/{RECIPE}")):
            continue
        view = path[len(start) :].partition("/")[0]
        for recipe in recipes:
            try:
                record = record_from_json(_value(source, recipe), view)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RemoteError(f"{source.url}: {path} is damaged ({error}).") from error
            if record.of != info.digest:
                continue
            if own is not None and not is_part and view in own.view_names():
                if own.view(view).info.digest != record.digest:
                    plan.left_out.append(f"view {view!r} of corpus {corpus!r}: the cache has another one")
                break
            for file in by_path.get(f"{start}{view}/{DESCRIPTION}", ()):
                described = _info(source, file)
                if described.digest == record.digest:
                    parts = [
                        _listed(by_path, f"{start}{view}/{part.file_name}", source)
                        for part in described.parts
                    ]
                    plan.corpora.setdefault(corpus, []).extend([*parts, file, recipe])
                    break
            break


def _choices(selection: Selection, name: str) -> list[CorpusChoice]:
    asked = [CorpusChoice.parse(one) for one in selection.corpora]
    return [one for one in asked if one.name == name] if asked else [CorpusChoice(name)]


def _version(
    source: Remote, versions: list[SharedFile], selection: Selection, name: str, own: str | None
) -> tuple[SharedFile, CorpusInfo] | None:
    """Return the version of a corpus to take: the cache's, else the newest; None where the cache has another.

    Raises:
        InputError: if a digest that was asked for is none of a version.
    """
    infos = [(file, _info(source, file)) for file in versions]
    digests = [choice.digest for choice in _choices(selection, name)]
    fitting = [one for one in infos if any(one[1].digest.startswith(digest) for digest in digests)]
    if not fitting:
        raise InputError(
            f"{source.url}: no corpus {name!r} with that digest (it has "
            f"{', '.join(info.digest[:12] for _, info in infos)})."
        )
    if own is None or selection.is_part:
        return fitting[0]
    return next((one for one in fitting if one[1].digest == own), None)


def _listed(by_path: dict[str, list[SharedFile]], path: str, source: Remote) -> SharedFile:
    if path not in by_path:
        raise RemoteError(f"{source.url}: no manifest lists {path}. Let its owner push again.")
    return by_path[path][0]


def _document(source: Remote, file: SharedFile) -> bytes:
    data = source.read(object_path(file.sha256), min(file.bytes, _MOST_DOCUMENT_BYTES))
    if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
        raise RemoteError(f"{source.url}: {file.path} is damaged or missing. Let its owner push again.")
    return data


def _value(source: Remote, file: SharedFile) -> dict[str, object]:
    try:
        value = parsed_json(_document(source, file))
    except ValueError as error:
        raise RemoteError(f"{source.url}: {file.path} is damaged ({error}).") from error
    if not isinstance(value, dict):
        raise RemoteError(f"{source.url}: {file.path} is no JSON object.")
    return value


def _info(source: Remote, file: SharedFile) -> CorpusInfo:
    try:
        return CorpusInfo.from_json(_value(source, file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(f"{source.url}: {file.path} is damaged ({error}).") from error


def _missing(cache: Cache | None, files: Iterable[SharedFile]) -> list[SharedFile]:
    return list(files) if cache is None else missing_files(cache, files)


def _cut_to(
    incoming: Incoming, staged: Cache, plan: Plan, selection: Selection, texts: list[SharedFile]
) -> tuple[list[SharedFile], KeyArray]:
    """Return the files of the chosen corpora, or of the chosen part of one, and the keys of their texts."""
    if not selection.is_part:
        corpora = [Corpus(incoming.corpus_folder(name)) for name in plan.infos]
        every = [keys for one in corpora for keys in (one.keys(), *(view.keys() for view in one.views()))]
        # Views that come beside a corpus that is here lie in the quarantine alone.
        every += [Corpus(incoming.path(f).parent).keys() for f in texts if f.entry.kind is Kind.VIEW]
        return texts, np.concatenate(every)
    (name,) = plan.infos
    part, keys = cut_part(staged, staged.corpus(name), selection)
    files = []
    for path in (path for one in (part, *part.views()) for path in corpus_paths(one)):
        place = path.relative_to(staged.folder).as_posix()
        files.append(SharedFile(path=place, sha256=sha256_file(path), bytes=path.stat().st_size))
    own = incoming.cache.corpora_folder / part.name
    if (own / DESCRIPTION).is_file() and Corpus(own).info.digest != part.info.digest:
        raise InputError(f"the cache has another corpus {part.name!r}. Pull the part into another cache.")
    return missing_files(incoming.cache, files), keys


def _shards_with(keys: KeyArray, incoming: Incoming, plan: Plan) -> list[SharedFile]:
    """Return the shards that hold the vectors of ``keys`` and that the cache lacks."""
    cache, source = incoming.cache, incoming.remote
    found: list[SharedFile] = []
    for contract_id in plan.teachers:
        shards = incoming.stock.shards(contract_id)
        found += RemoteKeys(cache, source, shards, incoming.meter).shards_with(keys)
    return missing_files(cache, found)


def _check_teacher(
    incoming: Incoming,
    staged: Cache,
    files: list[SharedFile],
    sample_check: bool,
    computing: Computing | None,
    meter: Meter,
) -> SampleCheck | None:
    """Check a teacher's files and compare its vectors; None where no vectors came."""
    if not files:
        return None
    cache, contract = incoming.cache, incoming.contract(files[0].entry.teacher)
    came = incoming.open_store(contract, files)
    tables = [incoming.path(file) for file in files if file.entry.kind is Kind.TABLE]
    if not (came.shards or tables) or not sample_check:
        return None
    teacher = incoming.teacher(contract.id)
    corpora = [texts for one in (*staged.corpora(), *cache.corpora()) for texts in (one, *one.views())]
    load = partial(local_teacher, cache, teacher, came, computing)
    table = tables[0] if tables else None
    sample = compare(came, cache.store(contract), teacher, corpora, load, table=table, meter=meter)
    if sample.is_bad:
        incoming.reject(contract.id)
        pushed = incoming.stock.pushed_by([file.sha256 for file in files if file.rows])
        told = f"{sample.told}; refused, pushed in {pushed}: leave it out with --skip-manifest"
        return SampleCheck(sample.teacher, sample.verdict, sample.sampled, sample.own, told)
    return sample


def _vectors(teachers: dict[str, list[str]], files: Iterable[SharedFile]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for file in files:
        if file.rows:
            name = teachers[file.entry.teacher][0]
            rows[name] = rows.get(name, 0) + file.rows
    return rows
