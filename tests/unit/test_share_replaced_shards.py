"""A push beside a compact: shards that are replaced while it looks at them are not damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_helpers import TEXTS, make_cache

from embedcache.cache import Cache
from embedcache.errors import CorruptCacheError
from embedcache.housekeeping.compact import compact
from embedcache.share import push
from embedcache.share.pushing import selection


def compact_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, cache: Cache) -> None:
    """Compact ``cache`` once, when a push calls the function ``name`` of ``module``."""
    plain: Callable[..., object] = getattr(module, name)
    waiting = [cache]

    def call(*arguments: Any, **more: Any) -> object:
        if waiting:
            compact(waiting.pop())
        return plain(*arguments, **more)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize(
    ("module", "name"), [("push", "with_indexes"), ("selection", "open_without_codebook")]
)
def test_a_shard_that_is_replaced_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, module: str, name: str
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS, store=store)
    of_module = selection if module == "selection" else sys.modules[push.__module__]
    compact_before(monkeypatch, of_module, name, cache)
    with pytest.raises(
        CorruptCacheError, match=r"was replaced meanwhile.*run the same command again"
    ) as caught:
        push(Cache(cache.folder), str(tmp_path / "remote"))
    assert caught.value.exit_code == 1
    assert "repair" not in str(caught.value)
    assert push(Cache(cache.folder), str(tmp_path / "remote")).manifest


def test_a_shard_that_is_no_file_is_still_damaged(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    shard = next(cache.folder.glob("teachers/*/shards/*.arrow"))
    shard.unlink()
    shard.mkdir()
    with pytest.raises(CorruptCacheError, match="is damaged"):
        push(Cache(cache.folder), str(tmp_path / "remote"))
