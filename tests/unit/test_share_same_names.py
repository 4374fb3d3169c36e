"""Names that differ in case alone, where the file system of the cache takes them for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from share_helpers import TEXTS, content, make_cache

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.share import PullChoice, preview_pull, pull, push
from embedcache.share.pulling import same_names
from embedcache.share.pulling.same_names import ignores_case


@pytest.fixture
def case_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_names, "ignores_case", lambda _: True)


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """Return a remote with the corpora ``News`` and ``news``."""
    make_cache(tmp_path / "cache", TEXTS[:80], name="News")
    push(make_cache(tmp_path / "cache", TEXTS[80:], name="news"), str(tmp_path / "remote"))
    return str(tmp_path / "remote")


@pytest.mark.usefixtures("case_is_ignored")
def test_two_corpora_that_would_share_a_folder_are_refused(tmp_path: Path, remote: str) -> None:
    there = tmp_path / "there"
    for act in (pull, preview_pull):
        with pytest.raises(InputError, match=r"'news' and 'News' cannot both.*--corpus NAME --as OTHER"):
            act(there, remote)
    assert not there.exists()
    # The way out that it names is one.
    pull(there, remote, PullChoice(corpora=["News"]))
    pull(there, remote, PullChoice(corpora=["news"], alias="other"))
    assert Cache(there).corpus("News").texts() == TEXTS[:80]
    assert Cache(there).corpus("other").texts() == TEXTS[80:]


@pytest.mark.usefixtures("case_is_ignored")
def test_a_corpus_that_would_come_into_the_folder_of_one_that_is_here_is_refused(
    tmp_path: Path, remote: str
) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:40], name="NEWS")
    before = content(mine.folder)
    with pytest.raises(InputError, match=r"'news' and 'NEWS' cannot both"):
        pull(mine, remote, PullChoice(corpora=["news"]))
    with pytest.raises(InputError, match=r"'News' and 'NEWS' cannot both"):
        pull(mine, remote, PullChoice(corpora=["news"], rows=10, alias="News"))
    assert content(mine.folder) == before
    pull(mine, remote, PullChoice(corpora=["news"], rows=10, alias="part"))
    assert Cache(mine.folder).corpus("part").texts() == TEXTS[80:90]


@pytest.mark.usefixtures("case_is_ignored")
def test_two_names_of_a_teacher_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"), PullChoice(text=False))
    with pytest.raises(InputError, match=r"'FAKE.json' and 'fake.json'.*--teacher NAME --as OTHER"):
        pull(
            tmp_path / "there",
            str(tmp_path / "remote"),
            PullChoice(teachers=["fake"], alias="FAKE", text=False),
        )


def test_where_case_is_told_apart_both_are_pulled(tmp_path: Path, remote: str) -> None:
    if ignores_case(tmp_path):
        pytest.skip("the file system does not tell upper from lower case")
    pull(tmp_path / "there", remote)
    assert Cache(tmp_path / "there").corpus("News").texts() == TEXTS[:80]
    assert Cache(tmp_path / "there").corpus("news").texts() == TEXTS[80:]


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    ignores_case(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []
