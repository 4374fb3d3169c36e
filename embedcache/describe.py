"""What a cache holds, in figures: for ``embedcache ls`` and ``info``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.origin import read_note
from embedcache.corpus.view_record import VIEWS, read_record
from embedcache.errors import CorruptCacheError
from embedcache.missing import MissingRows
from embedcache.store import Shard
from embedcache.store.containers.lmdb import SEAL
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.view_coverage import ViewCoverage


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus in one line.

    Attributes:
        name: its name.
        rows: its rows.
        digest: the first 12 digits of its identity.
        labels: whether rows carry labels.
        views: how many views it has.
    """

    name: str
    rows: int
    digest: str
    labels: bool
    views: int


@dataclass(frozen=True)
class TeacherSummary:
    """A teacher in one line.

    Attributes:
        name: its name.
        contract: the first 12 digits of its contract's id.
        vectors: distinct texts whose vectors are stored; None where that cannot be told.
        width: components of a vector.
        codec: how new vectors are stored; None where that cannot be told.
        store: ``arrow``, ``lmdb``, or ``lmdb, missing`` where its file is gone.
        bytes: size of its shards; None where that cannot be told.
        pooling: how token vectors become one.
        max_length: tokens after which a text is cut.
        token_embeddings: size of its table of token embeddings in bytes; None without one.
        damage: why there are no vectors, and what to do; None where they can be used.
    """

    name: str
    contract: str
    vectors: int | None
    width: int
    codec: str | None
    store: str
    bytes: int | None
    pooling: str
    max_length: int
    token_embeddings: int | None = None
    damage: str | None = None


def summarize_corpus(corpus: Corpus) -> CorpusSummary:
    """Return a corpus in one line."""
    info = corpus.info
    return CorpusSummary(
        corpus.name, len(corpus), info.digest[:12], info.has_labels, len(corpus.view_names())
    )


def summarize_teacher(cache: Cache, teacher: CachedTeacher) -> TeacherSummary:
    """Return a teacher in one line; one whose LMDB file is gone must not hide the others.

    Raises:
        CorruptCacheError: if its vectors are damaged in another way.
    """
    contract = teacher.contract
    folder = cache.teacher_folder(contract)
    try:
        store = cache.store(contract)
    except CorruptCacheError as error:
        if not (folder / SEAL).exists() or (folder / "vectors.mdb").exists():
            raise
        return _missing(cache, teacher, str(error))
    return TeacherSummary(
        teacher.name,
        contract.id[:12],
        len(store),
        contract.dimension,
        store.codec_name,
        store.kind,
        store.bytes_on_disk,
        contract.pooling,
        contract.max_length,
        _table_bytes(cache, teacher),
    )


def _table_bytes(cache: Cache, teacher: CachedTeacher) -> int | None:
    path = table_path(cache.folder, teacher.contract)
    return path.stat().st_size if path.is_file() else None


def _missing(cache: Cache, teacher: CachedTeacher, damage: str) -> TeacherSummary:
    contract = teacher.contract
    return TeacherSummary(
        teacher.name,
        contract.id[:12],
        None,
        contract.dimension,
        None,
        "lmdb, missing",
        None,
        contract.pooling,
        contract.max_length,
        _table_bytes(cache, teacher),
        damage,
    )


def describe_teacher(cache: Cache, teacher: CachedTeacher) -> dict[str, object]:
    """Return everything about a teacher: contract, origin, shards, what its codecs lost, what is covered.

    Of one whose LMDB file is gone, what is known without it.
    """
    summary = summarize_teacher(cache, teacher)
    known: dict[str, object] = {
        **asdict(summary),
        "contract": teacher.contract.id,
        "token_embeddings": _describe_table(cache, teacher),
        "fields": teacher.contract.to_json(),
        "origin": teacher.origin,
        "also_called": [
            t.name for t in cache.teachers() if t.contract == teacher.contract and t.name != teacher.name
        ],
    }
    if summary.damage is not None:
        return known
    store = cache.store(teacher.contract)
    coverage, views = {}, {}
    for corpus in cache.corpora():
        missing = MissingRows.of(corpus, store)
        coverage[corpus.name] = {"distinct": missing.distinct, "missing": len(missing)}
        for view in corpus.views():
            found = ViewCoverage.of(view, store)
            if found.is_embedded:
                views[f"{corpus.name}, {view.name}"] = {"own texts": found.own, "missing": found.missing}
    return {
        **known,
        "shards": len(store.shards),
        "rows_a_shard": dict(sorted(Counter(map(len, store.shards)).most_common(5), reverse=True)),
        "codecs": _codecs(store.shards),
        "provenance": _provenance(store.shards),
        "coverage": coverage,
        "views_encoded": views,
    }


def _describe_table(cache: Cache, teacher: CachedTeacher) -> dict[str, object] | None:
    """Return what the header of a teacher's token embeddings says; damage must not hide the rest."""
    path = table_path(cache.folder, teacher.contract)
    if not path.is_file():
        return None
    found: dict[str, object] = {"bytes": path.stat().st_size}
    try:
        table = TokenTable.read(path, teacher.contract)
    except (OSError, ValueError) as error:
        return {**found, "damage": str(error)[:600]}
    return {
        "tokens": len(table.tokens),
        "width": table.word.shape[1],
        "norm": table.norm_eps is not None,
        **found,
    }


def describe_corpus(cache: Cache, corpus: Corpus) -> dict[str, object]:
    """Return everything about a corpus: parts, columns, views, what was skipped, where it was read from.

    Raises:
        CorruptCacheError: if the recipe of a view is damaged.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    note = read_note(cache.derived_folder, corpus.name)
    return {
        "name": corpus.name,
        "rows": len(corpus),
        "digest": corpus.info.digest,
        "parts": len(corpus.parts),
        "bytes": sum((corpus.folder / part.file_name).stat().st_size for part in corpus.parts),
        "columns": corpus.info.types,
        "skipped": dict(corpus.info.skipped),
        "views": [_describe_view(corpus, name) for name in corpus.view_names()],
        "read_from": [file.path for file in note.files] if note is not None else None,
    }


def _describe_view(corpus: Corpus, name: str) -> dict[str, object]:
    record = read_record(corpus.folder / VIEWS / name)
    counts = dict(record.counts)
    found: dict[str, object] = {
        "name": name,
        "recipe": record.recipe.describe(),
        "rows changed": counts.pop("changed", 0),
        **{f"rows kept: {reason}": rows for reason, rows in counts.items()},
    }
    if record.of != corpus.info.digest:
        found["not read"] = "it was made of other rows than the corpus has now"
    return found


def _codecs(shards: Iterable[Shard]) -> dict[str, dict[str, float]]:
    """Return, for each codec, its rows, the mean cosine to what the teacher gave, and the worst."""
    found: dict[str, dict[str, float]] = {}
    for shard in shards:
        entry = found.setdefault(shard.header.codec, {"rows": 0, "mean_cosine": 0.0, "worst_cosine": 1.0})
        rows, error = len(shard), shard.header.error
        entry["mean_cosine"] += (error["mean_cosine"] - entry["mean_cosine"]) * rows / (entry["rows"] + rows)
        entry["worst_cosine"] = min(entry["worst_cosine"], error["worst_cosine"])
        entry["rows"] += rows
    return found


def _provenance(shards: Iterable[Shard]) -> list[dict[str, object]]:
    """Return the distinct ways the shards were made, with the rows of each."""
    rows: Counter[tuple[tuple[str, str], ...]] = Counter()
    for shard in shards:
        way = sorted((key, str(value)) for key, value in shard.header.provenance.items())
        rows[tuple(way)] += len(shard)
    return [{"rows": count, **dict(fields)} for fields, count in rows.most_common()]
