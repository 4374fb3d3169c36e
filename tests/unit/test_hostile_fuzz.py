"""Any file of a cache, changed at random: a clean error, or the right answers.

Who changes a file by accident leaves its name as it was, and nothing that is read may be wrong. Who does so
on purpose gives it the name that its bytes deserve, and still must do no harm.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_helpers import judge, one, received, renamed, reseal, rewritten
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedcache.fsio import sha256_file

FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(FEW, max_examples=400)

OPERATIONS = {"verify", "texts", "lookup", "info", "build"}
ABSURD = [2**63 - 1, 2**62, 2**40, 2**35, 2**31 - 1, 2**31, 2**16, 1, 0, -1, -(2**31), -(2**63)]

FILES = {
    "marker": ("arrow", "cache.json"),
    "corpus": ("arrow", "corpora/words/corpus.json"),
    "part": ("arrow", "corpora/words/*.arrow"),
    "contract": ("arrow", "teachers/*/contract.json"),
    "name": ("arrow", "teachers/*/names/*.json"),
    "shard": ("arrow", "teachers/*/shards/*.arrow"),
    "codebook": ("pq", "teachers/*/codebooks/*.npy"),
    "notes": ("arrow", "derived/index/*/checked.bin"),
    "source": ("arrow", "derived/sources/words.json"),
    "index": ("arrow", "derived/index/*/*.mdb"),
    "store": ("lmdb", "teachers/*/vectors.mdb"),
    "seal": ("lmdb", "teachers/*/vectors.seal.json"),
    "lock": ("lmdb", "teachers/*/vectors.mdb-lock"),
}
"""What is changed -> the kind of cache, and where it lies in it."""


KINDS_OF_CHANGE = ("flip", "bytes", "number", "cut", "splice", "insert")


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw bytes that differ from ``whole`` in a few places, at one end, or in the order of their pieces."""
    data = bytearray(whole)
    place = st.integers(0, len(data) - 1)
    # Headers are at the ends of files, and what is there decides how everything else is read.
    place |= st.integers(0, min(len(data), 600) - 1) | st.integers(max(0, len(data) - 600), len(data) - 1)
    for kind in draw(st.lists(st.sampled_from(KINDS_OF_CHANGE), min_size=1, max_size=4)):
        start, end = sorted((draw(place) % max(1, len(data)), draw(place) % max(1, len(data))))
        if kind == "flip" and data:
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "bytes":
            data[start : start + 8] = draw(st.binary(min_size=8, max_size=8))
        elif kind == "number":
            width, number = draw(st.sampled_from([2, 4, 8])), draw(st.sampled_from(ABSURD))
            start -= start % width
            data[start : start + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == "cut":
            del data[start : draw(st.sampled_from([end, len(data)]))]
        elif kind == "splice":
            target = draw(place) % max(1, len(data))
            piece = bytes(data[start : min(end, start + 4096)])
            data[target : target + len(piece)] = piece
        else:
            data[start:start] = draw(st.binary(max_size=20))
    return bytes(data)


def keep_name(path: Path, data: bytes) -> None:
    """Change a file by accident."""
    path.write_bytes(data)


def named_anew(path: Path, data: bytes) -> None:
    """Change a file on purpose: whatever names it by its digest, names it so."""
    if path.suffix == ".json" or path.name.startswith("vectors"):
        path.write_bytes(data)
        path.with_name("vectors.seal.json").unlink(missing_ok=True)
    elif path.suffix == ".mdb":
        path.write_bytes(data)
        path.rename(path.with_name(f"{path.name.partition('-')[0]}-{sha256_file(path)}.mdb"))
    else:
        target = renamed(path, data)
        if "corpora" in path.parts:
            description = path.with_name("corpus.json")
            reseal(description, lambda value: value["parts"][0].update(sha256=target.stem))
        if path.suffix == ".npy":
            for shard in list(path.parent.with_name("shards").iterdir()):
                rewritten(shard, codebook=target.stem)


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that gives a new folder at every call and takes away the one before."""
    numbers = itertools.count()

    def fresh() -> Path:
        number = next(numbers)
        shutil.rmtree(tmp_path / str(number - 1), ignore_errors=True)
        return tmp_path / str(number)

    return fresh


def tried(scratch: Callable[[], Path], name: str, data: st.DataObject) -> None:
    """Change a file of a cache in a drawn way, and let everybody use the cache."""
    kind, pattern = FILES[name]
    cache = received(scratch(), kind)
    path = one(cache, pattern)
    whole = path.read_bytes()
    damaged = data.draw(changed(whole), "bytes")
    put = data.draw(st.sampled_from([keep_name, named_anew]), "how")
    put(path, damaged)
    judgement = judge(cache, OPERATIONS)
    if put is keep_name:
        # The digest of a part is taken by verify alone; whoever reads it believes its bytes.
        assert name == "part" or judgement.outcomes["texts"].get("result", True) is True
        assert judgement.outcomes["lookup"].get("result", 0) < (0.3 if kind == "pq" else 0.01)
        # No byte of a lock means anything.
        if damaged != whole and name != "lock":
            assert judgement.damage != []


@pytest.mark.parametrize("name", FILES)
@FEW
@given(data=st.data())
def test_a_changed_file_gives_an_error_or_the_truth(
    scratch: Callable[[], Path], name: str, data: st.DataObject
) -> None:
    tried(scratch, name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@MANY
@given(data=st.data())
def test_files_changed_in_many_ways_give_an_error_or_the_truth(
    scratch: Callable[[], Path], name: str, data: st.DataObject
) -> None:
    tried(scratch, name, data)
