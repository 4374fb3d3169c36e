"""The website builds strictly, and its navigation, llms.txt and API reference leave nothing out."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distill
import embedcache

pytest.importorskip("zensical", reason="the [docs] extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of the pages in ``folder/docs`` with the project's settings."""
    shutil.copy(ROOT / "zensical.toml", folder)
    for package in ("embedcache", "distill"):
        (folder / package).symlink_to(ROOT / package)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_site_is_whole(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # A parameter that a docstring names and the function lacks is a warning only.
    assert "griffe:" not in done.stdout + done.stderr
    site = tmp_path / "site"

    index = (site / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\(<(.+)>\)(: .+)?$", index, re.MULTILINE)
    assert all((site / page).is_file() for page, _ in listed)
    assert sorted(page.removesuffix(".md") for page, _ in listed) == sorted(PAGES - {"index"})
    assert [page for page, line in listed if not line and not page.startswith("design/")] == []

    start = (site / "index.html").read_text(encoding="utf-8")
    assert sorted(page for page in PAGES if f'href="./{page}.html"' not in start) == ["index"]
    # Nothing is loaded from elsewhere, and everything can be searched.
    assert not re.findall(r'<(?:script|link rel="stylesheet")[^>]+(?:src|href)="https?:', start)
    search = (site / "search.json").read_text(encoding="utf-8")
    assert [page for page in PAGES if f'"location":"{page}.html"' not in search] == []
    # Docstrings are Markdown: Sphinx's roles would be shown as they are written.
    assert re.findall(r":(?:func|class|meth|mod|attr|data):", search) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[page](missing.md) [anchor](#missing)", ["page does not exist", "anchor does not exist"]),
        ("::: distill.missing", ["distill.missing could not be found"]),
    ],
    ids=["links", "names"],
)
def test_missing_links_and_names_are_an_error(text: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    done = build(tmp_path)
    assert done.returncode != 0
    assert [each for each in found if each not in done.stdout + done.stderr] == []


def test_the_tutorial_page_is_its_notebook() -> None:
    files = runpy.run_path(str(DOCS / "generate_tutorial.py"))["render"]()
    assert [name for name, content in files.items() if (DOCS / name).read_bytes() != content] == [], (
        "make docs"
    )


def test_the_reference_has_every_public_name() -> None:
    for module in (embedcache, distill):
        page = DOCS / "api" / f"{module.__name__}.md"
        text = page.read_text(encoding="utf-8")
        written = set(re.findall(rf"^::: {module.__name__}\.(\w+)$", text, re.MULTILINE))
        # One class under two names; the errors are listed with their module.
        alike = {"__version__", "open", "EmbedCacheError", "DistillError"}
        assert sorted(set(module.__all__) - alike - written) == [], f"add ::: lines to {page}"
