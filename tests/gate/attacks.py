"""Attacks of a stranger on a cache, and the operations that have to refuse each: one table, at the end."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
from stranger import (
    KINDS,
    Fires,
    batch_of,
    build_honest,
    file_of,
    one,
    received,
    recontract,
    renamed,
    renamed_codebook,
    renamed_part,
    reseal,
    rewritten,
)

from embedcache.corpus.corpus import Corpus
from embedcache.fsio import write_sealed_json
from embedcache.testing import sentences

# Operations that have to refuse. The others may refuse with an error, or give the right answer.
NOTHING: frozenset[str] = frozenset()
ANYTHING = frozenset({"any of them"})
OPENING = frozenset({"open", "texts", "lookup", "views", "build"})
CORPUS, VECTORS, VIEWS = frozenset({"texts", "build"}), frozenset({"lookup", "build"}), frozenset({"views"})
TEACHERS = frozenset({"open", "lookup", "build"})

CORPUS_JSON, PART = "corpora/words/corpus.json", "corpora/words/*.arrow"
CONTRACT, NAME, SHARD = "teachers/*/contract.json", "teachers/*/names/*.json", "teachers/*/shards/*.arrow"
RECIPE, VIEW_JSON = "corpora/words/views/crop/recipe.json", "corpora/words/views/crop/corpus.json"
NOTE, LMDB, SEAL = "derived/sources/words.json", "teachers/*/vectors.mdb", "teachers/*/vectors.seal.json"


@dataclass(frozen=True)
class Attack:
    """Something a stranger does to a cache.

    Attributes:
        do: does it to the cache in a folder.
        refused: operations that must end with an error; where there are none, everything must go well.
        kind: of the cache.
        word: common word of the messages.
        damage: True if verify calls the cache damaged; None leaves that open.
    """

    do: Callable[[Path], object]
    refused: frozenset[str]
    kind: str = "arrow"
    word: str = ""
    damage: bool | None = True


def sealed(place: str, **fields: object) -> Callable[[Path], object]:
    """Change fields of a sealed file and seal it again."""
    return lambda cache: reseal(one(cache, place), lambda value: value.update(fields))


def recipe(**fields: object) -> Callable[[Path], object]:
    """Change fields of a view's recipe and seal it again."""
    return lambda cache: reseal(one(cache, RECIPE), lambda value: value["recipe"].update(fields))


def header(**claims: Any) -> Callable[[Path], object]:
    """Change what the header of a shard claims."""
    return lambda cache: rewritten(one(cache, SHARD), **claims)


def contract(shards: bool, **changes: object) -> Callable[[Path], object]:
    """Change fields of the contract, in its shards too or without any."""
    return lambda cache: recontract(cache, shards=shards, **changes)


def written(place: str, data: bytes) -> Callable[[Path], object]:
    """Put bytes in the place of a file."""
    return lambda cache: one(cache, place).write_bytes(data)


def part_elsewhere(place: str, name: str) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        part = one(cache, PART)
        shutil.copy(part, cache.parent)
        reseal(cache / place, lambda value: value["parts"][0].update(sha256=name.format(part.stem)))

    return do


def link_to(target: str) -> Callable[[Path], object]:
    return lambda cache: (cache / "corpora/words/x.arrow").symlink_to(target)


def strange_names(cache: Path) -> None:
    for name in ("\x1b[31mred", "two\nlines", "[link=x]", os.fsdecode(b"\xff\xfe"), ".x"):
        shutil.copytree(cache / "corpora/words", cache / "corpora" / name)
        shutil.copy(one(cache, NAME), one(cache, NAME).with_name(f"{name}.json"))
        shutil.copytree(cache / "corpora/words/views/crop", cache / "corpora/words/views" / f"{name} view")
    for folder in ("f" * 63, "F" * 64, "..f"):
        shutil.copytree(one(cache, "teachers/*"), cache / "teachers" / folder)


def linked(place: str) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        path = one(cache, place)
        path.rename(cache.parent / "outside")
        path.symlink_to(cache.parent / "outside")

    return do


def bound_socket(path: Path) -> None:
    # The path of a socket may have 108 bytes.
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        Path("s").rename(path)


def replaced(place: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        path = one(cache, place)
        path.unlink()
        make(path)

    return do


def marker(**fields: object) -> Callable[[Path], object]:
    return lambda cache: write_sealed_json(cache / "cache.json", fields)


def deep_folders(cache: Path) -> None:
    with chdir(cache):
        for _ in range(1200):  # more than Python lets functions call each other
            Path("d").mkdir()
            os.chdir("d")


def two_teachers(cache: Path) -> None:
    teacher = one(cache, "teachers/*")
    shutil.copytree(teacher, cache.parent / "kept")
    recontract(cache, pooling="cls")
    shutil.move(cache.parent / "kept", teacher)


def shard_of_another(cache: Path) -> None:
    other = received(cache.parent / "other")
    recontract(other, pooling="cls")
    shutil.copy(one(other, SHARD), one(cache, SHARD).parent)
    shutil.rmtree(cache.parent / "other")


def copied_in_part(cache: Path, name: str = "{}", size: int = 2000) -> None:
    shard = one(cache, SHARD)
    shard.with_name(name.format(shard.name)).write_bytes(shard.read_bytes()[:size])


def both_stores(cache: Path) -> None:
    other = received(cache.parent / "other", "lmdb")
    shutil.copy(one(other, LMDB), one(cache, "teachers/*"))
    shutil.rmtree(cache.parent / "other")


def compressed_shard(cache: Path) -> None:
    zeros = 40 << 20
    much = pa.array(np.zeros(zeros, np.int8))
    path = rewritten(
        one(cache, SHARD), lambda batch: batch.set_column(2, "tokens", much[: len(batch)]), None, "zstd"
    )
    renamed(path, file_of(pa.record_batch([pa.array(np.zeros(zeros, np.int64))], names=["key"]), "zstd"))


def compressed_part(cache: Path) -> None:
    renamed_part(cache, file_of(batch_of(one(cache, PART)), "zstd"))


def large_header(metadata: dict[bytes, bytes]) -> Callable[[Path], object]:
    return lambda cache: rewritten(one(cache, SHARD), metadata=metadata)


def many_columns(cache: Path) -> None:
    columns = [pa.array([0], pa.int8())] * 100_000
    names = [str(number) for number in range(len(columns))]
    renamed(one(cache, SHARD), file_of(pa.RecordBatch.from_arrays(columns, names=names)))


def absurd_width(dimension: int) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        contract = json.loads(one(cache, CONTRACT).read_text())
        rewritten(one(cache, SHARD), contract={**contract, "dimension": dimension})

    return do


def pickled_extension(cache: Path) -> None:
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Fires(cache.parent / "fired")),
    }

    def extended(batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = pa.schema([field.with_metadata(metadata) for field in batch.schema], batch.schema.metadata)
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    rewritten(one(cache, SHARD), extended)


def swapped_shards(cache: Path) -> None:
    first, second = sorted(cache.glob(SHARD))
    content = first.read_bytes()
    shutil.copy(second, first)
    second.write_bytes(content)


def offsets_outside(cache: Path) -> None:
    data = one(cache, PART).read_bytes()
    offsets = batch_of(one(cache, PART)).column("original").buffers()[1].to_pybytes()
    absurd = (2**40).to_bytes(8, "little")
    renamed_part(cache, data.replace(offsets[8:24], absurd + offsets[16:24]))


def npy(head: str, rest: bytes = b"") -> bytes:
    text = head.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest


def codebook(data: bytes) -> Callable[[Path], object]:
    return lambda cache: renamed_codebook(cache, data)


def pickled_codebook(cache: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.array([Fires(cache.parent / "fired")], dtype=object), allow_pickle=True)
    renamed_codebook(cache, content.getvalue())


@contextmanager
def opened_lmdb(cache: Path, **options: Any) -> Iterator[lmdb.Environment]:
    # Who changes the file would seal it again; without a seal every value is looked at.
    one(cache, SEAL).unlink()
    with lmdb.open(
        str(one(cache, LMDB)), subdir=False, lock=False, map_size=1 << 30, **options
    ) as environment:
        yield environment


def put(*pairs: tuple[bytes, bytes]) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        with opened_lmdb(cache) as env, env.begin(write=True) as transaction:
            for name, value in pairs:
                transaction.put(name, value)

    return do


def lmdb_database(cache: Path) -> None:
    with opened_lmdb(cache, max_dbs=1) as env:
        env.open_db(b"0" * 64)


def lmdb_flags(flags: int) -> Callable[[Path], object]:
    def do(cache: Path) -> None:
        path = one(cache, LMDB)
        data = bytearray(path.read_bytes())
        for place in (92, 4096 + 92):  # the main database's, in the two pages that LMDB begins with
            data[place : place + 2] = flags.to_bytes(2, "little")
        path.write_bytes(data)

    return do


def forged_index(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Change every file of the derived index, under the digest that it has then where its name holds one."""

    def do(cache: Path) -> None:
        for path in [path for path in cache.glob("derived/index/**/*") if path.is_file()]:
            whole = path.read_bytes()
            path.unlink()
            data = change(whole)
            old, new = (hashlib.sha256(some).hexdigest() for some in (whole, data))
            path.with_name(path.name.replace(old, new)).write_bytes(data)

    return do


def surrogate(cache: Path) -> None:
    value = json.loads(one(cache, CONTRACT).read_text())
    one(cache, CONTRACT).write_text(json.dumps({**value, "pooling": "\ud800"}))


def part_often(cache: Path) -> None:
    parts = {"rows": 300 * 3000}
    reseal(cache / CORPUS_JSON, lambda value: value.update(parts, parts=value["parts"] * 3000))


def view_in_a_view(cache: Path) -> None:
    views = cache / "corpora/words/views"
    shutil.copytree(views / "delete-words", views / "crop/views/inner")


def column_of_any_name(cache: Path) -> None:
    recipe(kind="column", parameters={"column": "a\nb\x1b[2J"}, seed=None)(cache)


def fewer_rows(cache: Path) -> None:
    """Give the corpus a view of another one; rows beyond its end must never be asked of it."""
    (cache.parent / "short").mkdir()
    other = build_honest(cache.parent / "short" / "cache", sentences(3))
    shutil.rmtree(cache / "corpora/words/views/crop")
    shutil.copytree(other.folder / "corpora/words/views/crop", cache / "corpora/words/views/crop")
    shutil.rmtree(cache.parent / "short")
    sealed(RECIPE, of=Corpus(cache / "corpora/words").info.digest)(cache)


def code_about(cache: Path) -> None:
    (cache / "derived" / "tokens" / "x").mkdir(parents=True)
    for place in ("derived/tokens/x/offsets.npy", "derived/more.pkl"):
        (cache / place).write_bytes(pickle.dumps(Fires(cache.parent / "fired")))
    for place in ("conftest.py", "sitecustomize.py"):
        (cache / place).write_text(f"import os; os.mkdir({str(cache.parent / 'fired')!r})")


def pretended(cache: Path) -> None:
    os.truncate(one(cache, LMDB), 1 << 28)


# A link is refused by what would follow it; a link that nothing asks for is followed by nothing.
LINKS = {
    **dict.fromkeys(("cache.json", "corpora/words", "teachers", "derived/index"), OPENING),
    PART: frozenset({"texts"}),
    RECIPE: VIEWS,
    CONTRACT: TEACHERS,
    SHARD: VECTORS,
}
BOMBS = {
    "deep": b"[" * 100_000,
    "too deep": b'{"a":' * 300 + b"1" + b"}" * 300,
    "large": b'{"version":2,"sha256":"0","a":[' + b"[]," * 9_000_000 + b"0]}",
    "digits": b'{"version":' + b"9" * 1_000_000 + b"}",
    "many": b'{"version":2,"sha256":"0","a":[' + b'{"a":1},' * 30_000 + b"0]}",
    "binary": bytes(range(256)),
}
CLAIMS: dict[str, dict[str, Any]] = {
    "rows": {"rows": 10**18},
    "codec": {"codec": "x" * 100_000},
    "codec pq": {"codec": "pq"},
    "codebook elsewhere": {"codec": "pq", "codebook": "../../../outside"},
    "provenance": {"provenance": {"a": [[1]]}},
    "error": {"error": {"mean_cosine": "1", "worst_cosine": 1.0}},
    "contract": {"contract": {"weights": "\n" * 1000}},
    "version": {"version": 10**1000},
}
METADATA = {
    "json": {b"embedcache": b"[" + b"[]," * 300_000 + b"0]"},
    "number": {b"embedcache": b"9" * 2_000_000},
    "fields": {str(number).encode(): b"x" * 100 for number in range(20_000)},
}
CODEBOOKS = {
    "pickle": pickle.dumps(["a pickle"]),
    "shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999, 256, 4), }"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps(["a pickle"])),
    "code": npy("__import__('os').mkdir('fired')"),
    "deep": npy("[" * 100),
    "long": b"\x93NUMPY\x03\x00\xff\xff\xff\x7f",
}
RECIPES: dict[str, Callable[[Path], object]] = {
    "name elsewhere": recipe(name="../delete-words"),
    "name of a path": recipe(name="/etc"),
    "of": sealed(RECIPE, of="a line\nand another"),
    "counts": sealed(RECIPE, counts={"changed": 10**4000}),
    "list": sealed(RECIPE, recipe=[]),
    "kind": recipe(kind="a\nb"),
    "parameters": recipe(parameters={"share": [1]}),
    "models": recipe(models={"\x1b[2J": "x"}),
}
INDEXES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "backwards": lambda whole: np.frombuffer(whole[: len(whole) // 8 * 8], np.int64)[::-1].tobytes(),
    "halved": lambda whole: whole[: len(whole) // 2],
    "added": lambda whole: (np.frombuffer(whole[: len(whole) // 8 * 8], np.int64) + 2**40).tobytes(),
    "random": lambda whole: np.random.default_rng(0).bytes(len(whole)),
}

ATTACKS = {
    **{f"nothing, {kind}": Attack(lambda cache: None, NOTHING, kind, damage=False) for kind in KINDS},
    # Names that lead elsewhere
    "part above": Attack(part_elsewhere(CORPUS_JSON, "../../../{}"), CORPUS),
    "part at a path": Attack(part_elsewhere(CORPUS_JSON, "/{}"), CORPUS),
    "part without a name": Attack(part_elsewhere(CORPUS_JSON, ""), CORPUS),
    "part of a view above": Attack(part_elsewhere(VIEW_JSON, "../../../../{}"), VIEWS),
    "corpus of another name": Attack(sealed(CORPUS_JSON, name="../../../outside"), CORPUS),
    "names that nothing has": Attack(strange_names, NOTHING, damage=False),
    # Links, devices, folders
    **{f"link {place}": Attack(linked(place), refused, "arrow") for place, refused in LINKS.items()},
    f"link {LMDB}": Attack(linked(LMDB), VECTORS, "lmdb", "symbolic link"),
    f"link {SEAL}": Attack(linked(SEAL), NOTHING, "lmdb"),
    "link to a device": Attack(link_to("/dev/zero"), NOTHING, "arrow"),
    "link to nothing": Attack(link_to("nowhere"), NOTHING, "arrow"),
    "link to itself": Attack(link_to("x.arrow"), NOTHING, "arrow"),
    "link to its folder": Attack(link_to("."), NOTHING, "arrow"),
    "pipe": Attack(replaced(PART, os.mkfifo), frozenset({"texts"})),
    "socket": Attack(replaced(PART, bound_socket), frozenset({"texts"})),
    "pipe for a marker": Attack(replaced("cache.json", os.mkfifo), OPENING),
    "folder for a description": Attack(replaced(CORPUS_JSON, os.mkdir), CORPUS),
    "folder for a contract": Attack(replaced(CONTRACT, os.mkdir), TEACHERS),
    # Other versions, and what was put together by hand
    "newer cache": Attack(marker(format="embedcache", version=3), OPENING, "arrow", "upgrade"),
    "newer corpus": Attack(sealed(CORPUS_JSON, version=3), CORPUS, "arrow", "upgrade"),
    "newer recipe": Attack(sealed(RECIPE, version=2), VIEWS, "arrow", "upgrade"),
    "newer shard": Attack(header(version=3), VECTORS, "arrow", "upgrade"),
    "newer contract": Attack(contract(True, version=2), TEACHERS, "arrow", "upgrade"),
    "long version": Attack(marker(version=10**4000), OPENING),
    "list for a version": Attack(marker(version=["2"] * 10_000), OPENING),
    "two teachers of a name": Attack(two_teachers, VECTORS, damage=False),
    "shard of another teacher": Attack(shard_of_another, VECTORS, "arrow", "pooling"),
    "shard copied in part": Attack(copied_in_part, VECTORS),
    "shard being copied": Attack(partial(copied_in_part, name="{}.part"), NOTHING, damage=False),
    "both stores": Attack(both_stores, VECTORS),
    # Shards and parts
    **{f"header claims {name}": Attack(header(**claims), VECTORS) for name, claims in CLAIMS.items()},
    **{f"large header, {name}": Attack(large_header(large), VECTORS) for name, large in METADATA.items()},
    "100,000 columns": Attack(many_columns, VECTORS),
    "compressed shard": Attack(compressed_shard, VECTORS),
    "no width": Attack(absurd_width(0), VECTORS),
    "large width": Attack(absurd_width(2**31 - 1), VECTORS),
    "pickled extension": Attack(pickled_extension, ANYTHING, damage=None),
    "swapped shards": Attack(swapped_shards, VECTORS),
    "offsets outside": Attack(offsets_outside, frozenset({"texts"})),
    "compressed part": Attack(compressed_part, CORPUS),
    "part named often": Attack(part_often, CORPUS),
    **{f"codebook, {name}": Attack(codebook(data), VECTORS, "pq") for name, data in CODEBOOKS.items()},
    "codebook of objects": Attack(pickled_codebook, VECTORS, "pq"),
    # LMDB
    "values other than shards": Attack(
        put((b"../../x", b"1"), (b"\xff", b"2"), (b"F" * 64, b"3")), NOTHING, "lmdb"
    ),
    "value of another name": Attack(put((b"0" * 64, b""), (b"1" * 64, pickle.dumps(["x"]))), VECTORS, "lmdb"),
    "empty value": Attack(put((hashlib.sha256(b"").hexdigest().encode(), b"")), VECTORS, "lmdb"),
    "database for a shard": Attack(lmdb_database, VECTORS, "lmdb"),
    **{f"flags {flags}": Attack(lmdb_flags(flags), VECTORS, "lmdb") for flags in (0x04, 0x08, 0x40, 0xFFFF)},
    "empty lock": Attack(written(f"{LMDB}-lock", b""), NOTHING, "lmdb", damage=False),
    "strange lock": Attack(written(f"{LMDB}-lock", b"\xff" * 8192), NOTHING, "lmdb", damage=False),
    "LMDB file that pretends": Attack(pretended, NOTHING, "lmdb", damage=None),
    # Small files
    **{f"{name} in a name": Attack(written(NAME, bomb), TEACHERS) for name, bomb in BOMBS.items()},
    **{
        f"{name} in a note": Attack(written(NOTE, bomb), NOTHING, damage=None) for name, bomb in BOMBS.items()
    },
    "deep marker": Attack(written("cache.json", BOMBS["deep"]), OPENING),
    "deep description": Attack(written(CORPUS_JSON, BOMBS["deep"]), CORPUS),
    "deep contract": Attack(written(CONTRACT, BOMBS["deep"]), TEACHERS),
    "deep recipe": Attack(written(RECIPE, BOMBS["deep"]), VIEWS),
    "contract of no width": Attack(contract(True, dimension=0), TEACHERS),
    "contract of absurd width": Attack(contract(False, dimension=10**30), TEACHERS),
    "contract of negative length": Attack(contract(True, max_length=-1), TEACHERS),
    "contract of long numbers": Attack(contract(False, truncate_dim=10**4000), TEACHERS),
    "surrogate in a contract": Attack(surrogate, TEACHERS),
    "nested origin": Attack(sealed(NAME, spec={"spec": ["fake"]}), TEACHERS),
    # Views
    **{f"recipe, {name}": Attack(do, VIEWS) for name, do in RECIPES.items()},
    "column of any name": Attack(column_of_any_name, NOTHING, damage=False),
    "view of fewer rows": Attack(fewer_rows, VIEWS),
    "view in a view": Attack(view_in_a_view, NOTHING, damage=False),
    # What is derived, and code
    **{f"index, {name}": Attack(forged_index(do), NOTHING, damage=None) for name, do in INDEXES.items()},
    "code lying about": Attack(code_about, NOTHING, damage=None),
}
"""Attacks of a stranger, by name."""
