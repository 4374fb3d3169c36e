"""A cache from a stranger: opening it runs no code, reads no other folder and takes bounded memory."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from attacks import ANYTHING, ATTACKS, deep_folders
from stranger import (
    KINDS,
    OPERATIONS,
    Fires,
    Judgement,
    judge,
    received,
    renamed,
    renamed_codebook,
    renamed_part,
)

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.testing import example_contract


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judgement | str]:
    """Return how everything went with the caches of all attacks."""
    folder = tmp_path_factory.mktemp("attacks")
    caches = {}
    for number, (name, attack) in enumerate(ATTACKS.items()):
        caches[name] = received(folder / str(number), attack.kind)
        attack.do(caches[name])
    fully = {name: cache for name, cache in caches.items() if "nothing" in name}
    found = judge(fully, list(OPERATIONS)) | judge(
        {name: caches[name] for name in caches.keys() - fully.keys()}
    )
    for name, cache in caches.items():
        if (cache.parent / "fired").exists():
            found[name] = "code was run"
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_a_cache_from_a_stranger(judged: dict[str, Judgement | str], name: str) -> None:
    attack, judgement = ATTACKS[name], judged[name]
    assert isinstance(judgement, Judgement), judgement
    judgement.assert_true(attack.kind)
    if not attack.refused:
        judgement.assert_unharmed(attack.kind)
    elif attack.refused != ANYTHING:
        assert attack.refused <= judgement.refused.keys()
        assert all(attack.word in judgement.refused[operation] for operation in attack.refused)
    assert attack.damage is None or judgement.results.get("verify", 1) == int(attack.damage)


def test_folders_a_thousand_deep_do_no_harm(tmp_path: Path) -> None:
    cache = received(tmp_path / "received")
    deep_folders(cache)
    try:
        judgement = judge({"deep": cache}, ["open", "verify"])["deep"]
        assert isinstance(judgement, Judgement), judgement
        assert judgement.refused == {}
    finally:
        # What clears up after the tests gives up on such folders.
        os.removedirs(Path(cache, *["d"] * 1200))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_in_the_place_of_any_file_is_not_read(tmp_path: Path, kind: str) -> None:
    honest, caches = received(tmp_path / "honest", kind), {}
    files = [path.relative_to(honest) for path in sorted(honest.rglob("*")) if path.is_file()]
    if kind != "arrow":
        files = [path for path in files if path.name.startswith("vectors.") or path.suffix == ".npy"]
    for number, path in enumerate(files):
        caches[str(path)] = cache = received(tmp_path / str(number), kind)
        (cache / path).write_bytes(pickle.dumps(Fires(tmp_path / "fired")))
    found = judge(caches, ["verify", "texts", "lookup", "views"])
    assert [why for why in found.values() if isinstance(why, str)] == []
    assert not (tmp_path / "fired").exists()


def test_the_pickle_of_these_tests_fires_when_it_is_read(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Fires(tmp_path / "fired")))  # noqa: S301 - that is what the test is about
    assert (tmp_path / "fired").is_dir()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "..", ".hidden", "", "a b", "a\n", "[red]", "\x1b[31m"])  # noqa: S108
def test_no_teacher_gets_a_name_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    cache = Cache.create(tmp_path / "cache")
    with pytest.raises(InputError):
        cache.register_teacher(name, example_contract(), {})
    assert [path.name for path in tmp_path.rglob("*")] == ["cache", "cache.json"]


def changed(generator: np.random.Generator, whole: bytes) -> bytes:
    """Return bytes that differ from ``whole`` in a few places, or in the order of their pieces."""
    data = bytearray(whole)
    for _ in range(int(generator.integers(1, 5))):
        size = len(data)
        # Headers are at the ends of files, and decide how everything else is read.
        ends = [0, 0, max(0, size - 600)], [size, min(size, 600), size]
        which = int(generator.integers(3))
        start = int(generator.integers(ends[0][which], max(ends[1][which], 1)))
        match int(generator.integers(5)):
            case 0 if data:
                data[start] ^= 1 << int(generator.integers(8))
            case 1:
                number = int(generator.choice([2**63 - 1, 2**40, 2**31, 2**16, 1, 0, -1, -(2**63)]))
                start -= start % 8
                data[start : start + 8] = number.to_bytes(8, "little", signed=True)
            case 2:
                del data[start : start + int(generator.integers(1, max(size, 2)))]
            case 3:
                data[int(generator.integers(max(size, 1))) :] = data[start : start + 4096]
            case _:
                data[start:start] = generator.bytes(20)
    return bytes(data)


def by_digest(path: Path, data: bytes) -> None:
    """Replace a file by ``data`` on purpose: references by digest are changed, too."""
    if path.match("corpora/words/*.arrow"):
        renamed_part(path.parents[2], data)
    elif path.match("codebooks/*"):
        renamed_codebook(path.parents[3], data)
    elif path.match("shards/*"):
        renamed(path, data)
    else:
        path.write_bytes(data)
        path.with_name("vectors.seal.json").unlink(missing_ok=True)


@pytest.mark.parametrize("examples", [8, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_changed_at_random_gives_an_error_or_the_truth(
    tmp_path: Path, kind: str, examples: int
) -> None:
    generator, caches = np.random.default_rng(examples), {}
    honest = received(tmp_path / "honest", kind)
    files = [path.relative_to(honest) for path in sorted(honest.rglob("*")) if path.is_file()]
    for number in range(examples):
        cache = caches[str(number)] = received(tmp_path / str(number), kind)
        path = cache / files[int(generator.integers(len(files)))]
        data = changed(generator, path.read_bytes())
        # By accident the name stays, and nothing that is read may be wrong. On purpose, no harm may be done.
        (by_digest if number % 2 else Path.write_bytes)(path, data)
    for number, judgement in enumerate(judge(caches).values()):
        assert isinstance(judgement, Judgement), (number, judgement)
        if number % 2 == 0:
            judgement.assert_true(kind)
