"""Catalogues of the ``entities`` suite, and training data: its sets without their test queries.

A catalogue is known beforehand, so all its entities may be learnt from; of the queries only those that the
suite does not ask.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.files import find_files, read_rows, read_texts
from distill.evaluation.task import NotThereError
from embedcache.corpus.folding import fold
from embedcache.fsio import make_directory, write_bytes

PAIRS, TEXTS = "pairs.tsv", "texts.tsv"


@dataclass(frozen=True)
class Catalogue:
    """Entities, and queries with the ids of their right entities.

    Attributes:
        entities: id -> text.
        queries: (id, text, splits, ids of entities) of all splits.
        skipped: reason -> rows left out.
        path: file of the queries.
    """

    entities: dict[str, str]
    queries: list[tuple[str, str, list[str], list[str]]]
    skipped: Counter[str]
    path: Path


def read_catalogues(data: Path) -> dict[str, Catalogue]:
    """Read the sets of ``entities`` in a folder, with the queries of all splits.

    Raises:
        NotThereError: if there is none.
        DataError: if a set lacks its catalogue, or cannot be read.
    """
    found, catalogues = {}, find_files(data, "er_*_entities")
    for stem, path in find_files(data, "er_*_queries").items():
        name = stem.removeprefix("er_").removesuffix("_queries")
        if (catalogue := catalogues.get(f"er_{name}_entities")) is None:
            raise DataError(f"{data} holds {stem}.tsv but not er_{name}_entities.tsv, its catalogue; add it")
        rows, skipped = read_rows(path, ("query_id", "text", "split", "gold_entity_ids"))
        queries = [(query, text, _parts(splits), _parts(ids)) for query, text, splits, ids in rows]
        found[name] = Catalogue(read_texts(catalogue, "entity_id", skipped), queries, skipped, path)
    if not found:
        raise NotThereError(f"{data} holds no er_NAME_queries.tsv with er_NAME_entities.tsv, each also .gz")
    return found


def _parts(cell: str) -> list[str]:
    return list(dict.fromkeys(part for raw in cell.split(",") if (part := raw.strip())))


@dataclass(frozen=True)
class EntityPairs:
    """Queries with their entities.

    Attributes:
        sets: name of a set -> how many of its queries and entities are used, and how many are not and why.
        pairs: (query, entity) texts, each pair once, in the order of the files; a query has a pair with each
            of its right entities.
        texts: the entities of all catalogues and the queries of ``pairs``, each text once.
    """

    sets: dict[str, Counter[str]]
    pairs: list[tuple[str, str]]
    texts: list[str]


def read_entity_pairs(folder: str | Path) -> EntityPairs:
    """Read all sets in ``folder``.

    A query of the split ``test``, be it of others as well, is left out, and so is one whose text is that of
    a test query of any of the sets (case, blanks and punctuation aside).

    Raises:
        NotThereError: if there is no set.
        DataError: if a set cannot be read or marks no query as of the split test, or nothing is left.
    """
    folder = Path(folder)
    found = read_catalogues(folder)
    asked = {fold(text) for one in found.values() for _, text, splits, _ in one.queries if "test" in splits}
    pairs: dict[tuple[str, str], None] = {}
    sets = {}
    for name, one in found.items():
        if not any("test" in splits for _, _, splits, _ in one.queries):
            raise DataError(
                f"{one.path} has no query of the split test, so 'distill eval' asks all of them; "
                "mark those that nothing is to be learnt from with test in the column split"
            )
        sets[name] = _collect(one, asked, pairs)
    if not pairs:
        raise DataError(f"{folder} holds no query to learn from: all are of the split test, or empty")
    texts = [text for one in found.values() for text in one.entities.values()]
    texts += [query for query, _ in pairs]
    return EntityPairs(sets, list(pairs), list(dict.fromkeys(texts)))


def write_entity_pairs(found: EntityPairs, folder: str | Path) -> None:
    """Write ``pairs.tsv`` (``anchor, positive``) and ``texts.tsv`` (``text``), replacing earlier files."""
    folder = make_directory(Path(folder))
    lines = ["anchor\tpositive", *("\t".join(pair) for pair in found.pairs)]
    for name, rows in ((PAIRS, lines), (TEXTS, ["text", *found.texts])):
        write_bytes(folder / name, "".join(f"{row}\n" for row in rows).encode())


def _collect(one: Catalogue, asked: set[str], pairs: dict[tuple[str, str], None]) -> Counter[str]:
    counts = Counter({"entities": len(one.entities)})
    for _, text, splits, names in one.queries:
        right = [one.entities[name] for name in names if name in one.entities]
        if "test" in splits:
            counts["of the split test"] += 1
        elif not text.strip() or not right:
            counts["empty or without an entity"] += 1
        elif fold(text) in asked:
            counts["with the text of a test query"] += 1
        else:
            counts["queries"] += 1
            pairs.update(dict.fromkeys((text, entity) for entity in right))
    return counts
