"""List the teachers, corpora and pushes of a remote, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from embedcache.check.findings import Kind
from embedcache.errors import MissingExtraError
from embedcache.share.remote.manifest import CorpusLine, Manifest, SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import signed_by
from embedcache.share.remotes import location_of


@dataclass(frozen=True)
class RemoteTeacher:
    """A teacher on a remote.

    Attributes:
        names: what it is called.
        contract: its contract's id.
        rows: of its shards; a text that stands in two of them counts twice.
        bytes: size of all its files.
        model: where its model came from, as far as said.
        licence: of the model, as far as declared.
    """

    names: tuple[str, ...]
    contract: str
    rows: int
    bytes: int
    model: str
    licence: str


@dataclass(frozen=True)
class RemotePush:
    """A push to a remote.

    Attributes:
        manifest: its id.
        by: who pushed; empty where that was not given.
        when: when; empty where that was not given.
        message: what for; empty where that was not given.
        files: files it lists.
        bytes: their size.
        signed_by: the keys that have signed it, as ``ssh-keygen -l`` prints them; None where that cannot be
            told.
    """

    manifest: str
    by: str
    when: str
    message: str
    files: int
    bytes: int
    signed_by: tuple[str, ...] | None


@dataclass(frozen=True)
class RemoteListing:
    """What a remote has.

    Attributes:
        remote: where.
        teachers: by name.
        corpora: by name and digest.
        pushes: by time and id.
        refused: manifests that cannot be read: id -> why.
    """

    remote: str
    teachers: tuple[RemoteTeacher, ...]
    corpora: tuple[CorpusLine, ...]
    pushes: tuple[RemotePush, ...]
    refused: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        """Return the listing as a JSON object."""
        return asdict(self)


def list_remote(remote: str) -> RemoteListing:
    """Return what ``remote``, a name or a URL, has.

    Args:
        remote: the remote.

    Raises:
        RemoteError: if it cannot be reached.
    """
    source = Remote(location_of(remote))
    source.require()
    survey = source.survey()
    manifests = survey.manifests
    stock = Stock(manifests)
    # The first that says something is believed; nothing is decided by it.
    pushes = source.in_threads(lambda manifest: _push(source, manifest), manifests)
    pushes.sort(key=lambda push: (push.when, push.manifest))
    return RemoteListing(source.where, _teachers(stock), _corpora(manifests), tuple(pushes), survey.refused)


def _teachers(stock: Stock) -> tuple[RemoteTeacher, ...]:
    files: dict[str, list[SharedFile]] = {}
    for file in stock:
        if file.entry.teacher:
            files.setdefault(file.entry.teacher, []).append(file)
    teachers = []
    for contract, names in stock.teacher_names.items():
        manifests = stock.manifests
        lines = [line for each in manifests for line in each.teachers if line.contract == contract]
        teachers.append(
            RemoteTeacher(
                tuple(sorted(names)),
                contract,
                sum(file.rows for file in files[contract] if file.entry.kind is Kind.SHARD),
                sum(file.bytes for file in files[contract]),
                _first(line.model for line in lines),
                _first(line.licence for line in lines),
            )
        )
    return tuple(sorted(teachers, key=lambda teacher: (teacher.names, teacher.contract)))


def _corpora(manifests: Sequence[Manifest]) -> tuple[CorpusLine, ...]:
    versions: dict[tuple[str, str], list[CorpusLine]] = {}
    for manifest in manifests:
        for line in manifest.corpora:
            versions.setdefault((line.name, line.digest), []).append(line)
    return tuple(
        CorpusLine(
            name,
            digest,
            lines[0].rows,
            tuple(sorted({view for line in lines for view in line.views})),
            _first(line.licence for line in lines),
        )
        for (name, digest), lines in sorted(versions.items())
    )


def _push(remote: Remote, manifest: Manifest) -> RemotePush:
    try:
        keys: tuple[str, ...] | None = tuple(key.shown for key in signed_by(remote, manifest.id))
    except MissingExtraError:
        keys = None
    return RemotePush(
        manifest.id,
        manifest.by,
        manifest.when,
        manifest.message,
        len(manifest.files),
        sum(file.bytes for file in manifest.files),
        keys,
    )


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")
