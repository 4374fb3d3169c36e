"""The page of a report: self-contained, safe, and fitting every window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from report_helpers import make_run, some_runs

from distill.report import Row, rows
from distill.report.page import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """Tags, ids, and addresses that would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name in ("src", "href", "xlink:href"):
                self.addresses.append(str(value))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    place = tmp_path_factory.mktemp("page") / "sweep"
    some_runs(place)
    make_run(place / "a_run-with-a-very-long-name-" / ("x" * 60), loss=EVIL, sets={"stsb": 60.0})
    make_run(place / "elsewhere" / "l2-seed0", loss="mse", seed=7)
    return rows(place)


@pytest.fixture(scope="module")
def text(found: list[Row]) -> str:
    return page(found)


def test_it_loads_and_runs_nothing_and_its_references_lead_to_one_place_each(text):
    elements = Elements(text)
    assert not elements.tags & {"script", "img", "iframe", "object", "embed"}
    assert all(address.startswith(("#", "data:,")) for address in elements.addresses)
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {"http://www.w3.org/1999/xlink"}
    assert EVIL not in text
    assert html.escape(EVIL) in text
    assert len(set(elements.ids)) == len(elements.ids)
    wanted = {one[1:] for one in elements.addresses if one.startswith("#")}
    assert wanted | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(elements.ids)


def test_charts_take_colours_from_the_page_and_differ_without_them(text):
    (first, *_) = charts = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    for chart in charts:
        used = set(re.findall(r"var\(--(\w+)\)", chart))
        assert used
        assert all(f"--{name}:" in text for name in used)
        assert not re.search(r"#[0-9a-f]{6}", chart.replace("#ffffff", ""))
    markers = re.findall(r'<path id="m[0-9a-f]{10}" d="([^"]+)"', first)
    assert len(set(markers)) >= 3


def test_every_run_is_on_it_and_it_is_the_same_each_time(text, found):
    assert text == page(found)
    for row in found:
        assert row.name in text
        # Of each run its configuration, which names its own folder.
        assert all(f"cache: {run.parent}" in text for run in row.runs)


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_opens_it_without_errors_or_requests(text, tmp_path, scheme):
    """The page is in frames, because no window is as narrow as a phone; a script added here measures it."""
    probe = """<script>
      window.addEventListener("load", () => {
        const root = document.documentElement;
        const boxes = [...document.querySelectorAll("main > *, figure, .chart, pre")];
        const far = boxes.filter((box) => box.getBoundingClientRect().right > root.clientWidth + 1);
        const loaded = performance.getEntriesByType("resource").map((one) => one.name);
        const dark = matchMedia("(prefers-color-scheme: dark)").matches;
        parent.postMessage({width: root.scrollWidth, far: far.length, loaded, dark}, "*");
      });
    </script></body>"""
    probed = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    probed = probed.replace("<details>", "<details open>").replace("</body>", probe)
    (tmp_path / "page.html").write_text(probed, encoding="utf-8")
    widths = (1280, 390)
    frames = [
        f'<iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>'
        for width in widths
    ]
    frame = tmp_path / "frame.html"
    frame.write_text(
        """<!DOCTYPE html><meta name="color-scheme" content="light dark"><title>[]</title><script>
          addEventListener("message", (one) => {
            document.title = JSON.stringify([...JSON.parse(document.title), one.data]);
          });
        </script>"""
        + "".join(frames),
        encoding="utf-8",
    )
    flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --enable-logging=stderr"
    done = subprocess.run(
        [
            *(str(BROWSER), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"),
            *("--window-size=1400,1000", "--hide-scrollbars", "--virtual-time-budget=5000", "--dump-dom"),
            *(f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    seen = sorted(json.loads(html.unescape(title)), key=lambda one: -one["width"])
    expected = {"far": 0, "loaded": [], "dark": scheme == "dark"}
    assert seen == [{"width": width, **expected} for width in widths]
