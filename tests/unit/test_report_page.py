"""The page: its figures are those of the JSON, and a browser opens it without anything from outside."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_helpers import keep_latency, make_run, some_runs

from distill.errors import MissingExtraError
from distill.report import Report, collect_report
from distill.report.charts.fronts import front
from distill.report.charts.style import spread
from distill.report.data import Examples, Neighbour, Query
from distill.report.page import render_page

pytest.importorskip("matplotlib", reason="charts need the extra 'plot'")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """Tables by id, ids, and whatever would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self._rows: list[list[str]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [str(values["id"])] if "id" in values else []
        self.references += [str(values[key]) for key in ("href", "src", "xlink:href") if key in values]
        if tag == "table":
            self._rows = self.tables.setdefault(str(values["id"]), [])
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows is not None:
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if self._rows and self._rows[-1]:
            self._rows[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    from dataclasses import replace

    folder = tmp_path_factory.mktemp("page")
    some_runs(folder)
    nearest = [Neighbour("<script>alert(1)</script>", 0.9123, True), Neighbour("A dog & a cat", 0.5, False)]
    examples = Examples(100, "sentences", [Query("A <b>bold</b> one", {"T": nearest, "A": nearest})])
    return replace(collect_report(folder, queries=0), examples=examples)


@pytest.fixture(scope="module")
def text(found: Report) -> str:
    return render_page(found)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_summary_has_the_figures_of_the_json(page, found):
    value = found.to_json()
    head, *rows = page.tables["summary"]
    models = [*value["teachers"], *value["students"]]
    assert [row[0] for row in rows] == [model["key"] for model in models]
    for row, model in zip(rows, models, strict=True):
        cells = dict(zip(head, row, strict=True))
        figures = model["suites"].get("sts")
        assert cells["parameters"] == f"{model['parameters'] / 1e6:.1f} M"
        assert cells["MB"] == f"{model['megabytes']:.1f}"
        assert cells["sts"].split(" ± ")[0] == (f"{figures['headline']['mean']:.2f}" if figures else "–")  # noqa: RUF001
        if figures and figures["retention"]:
            assert cells["retention"].startswith(f"{figures['retention']['mean']:.2f}")
        if (paper := model.get("paper")) and paper["suite"] == "sts" and not paper["relative"]:
            assert cells["paper"] == f"{paper['figure']:.2f}"


def test_sets_have_the_figures_and_intervals_of_the_json(page, found):
    value = found.to_json()
    head, *rows = page.tables["table-suite-sts-1"]
    sets = ["STS12 (spearman)", "STS-B (spearman)", "SICK-R (spearman)"]
    assert head[2:] == [*sets, "average", "retention"]
    for row in rows:
        (model,) = [one for one in [*value["teachers"], *value["students"]] if one["key"] == row[0]]
        for cell, one in zip(row[2:], model["suites"]["sts"]["sets"].values(), strict=False):
            low, high = one["interval"]
            assert f"{one['score']['mean']:.2f}" in cell
            assert f"[{low:.2f}, {high:.2f}]" in cell
        low, high = model["suites"]["sts"]["interval"]
        assert row[5].endswith(f"[{low:.2f}, {high:.2f}]")
        if ends := model["suites"]["sts"]["retention_interval"]:
            assert row[6].endswith(f"%\n[{ends[0]:.2f}, {ends[1]:.2f}]")


def test_further_measures_are_folded_and_have_the_figures_of_the_json(text, page, found):
    value = found.to_json()
    head, *rows = page.tables["folded-suite-sts-1"]
    assert head == ["", "model", "measure", "STS12", "STS-B", "SICK-R"]
    models = {one["key"]: one for one in [*value["teachers"], *value["students"]]}
    assert [row[0] for row in rows] == [key for key, one in models.items() if "sts" in one["suites"]]
    for row in rows:
        assert row[2] == "pearson"
        for cell, one in zip(row[3:], models[row[0]]["suites"]["sts"]["sets"].values(), strict=True):
            low, high = one["intervals"]["pearson"]
            assert cell.startswith(f"{one['others']['pearson']['mean']:.2f}")
            assert cell.endswith(f"[{low:.2f}, {high:.2f}]")
    assert re.search(r'<details><summary>Further measures</summary>\s*<figure class="table">', text)
    assert "folded-suite-geometry-1" not in page.tables
    (_, *rows) = page.tables["table-suite-geometry-1"]
    assert all("[" in row[2] for row in rows)


def test_charts_carry_the_figures_as_text(text, found):
    (svg,) = re.findall(r'<figure id="chart-bars-sts-stsb">.*?</figure>', text, re.DOTALL)
    for model in found.models[:3]:
        assert f">{model.suites['sts'].sets['stsb'].score.mean:.1f}<" in svg
    for name, axes in {
        "size": ["parameters, millions", "average of sts"],
        "speed": ["sentences a second", "average of sts"],
        "plane": ["uniformity", "alignment"],
        "scatter-A": ["score that people gave", "cosine"],
        "dev0": ["step", "dev spearman"],
    }.items():
        (svg,) = re.findall(rf'<figure id="chart-{name}">.*?</figure>', text, re.DOTALL)
        assert all(axis in svg for axis in axes), name
        assert "<text" in svg


def test_the_chart_of_speeds_says_what_they_are(found, text, tmp_path):
    assert "one at a time on a CPU" not in text
    assert "while the model was evaluated." in text
    for loss, seconds in (("l2", 2.0), ("ckd", 4.0)):
        keep_latency(make_run(tmp_path / loss, loss=loss, sets={"stsb": 60.0}), seconds)
    timed = render_page(collect_report(tmp_path, queries=0))
    assert "sentences a second, one at a time (logarithmic)" in timed
    assert "while the model was evaluated" not in timed


def test_every_pair_is_a_dot(text, found):
    (svg,) = re.findall(r'<figure id="chart-scatter-A">.*?</figure>', text, re.DOTALL)
    dots = max((path.count("M ") for path in re.findall(r'<path d="([^"]*)"', svg)), default=0)
    assert dots == len(found.pairs.gold)


def test_nothing_comes_from_outside(page, text):
    assert page.tags.isdisjoint({"script", "img", "iframe", "object", "embed", "audio", "video"})
    assert [one for one in page.references if not one.startswith(("#", "data:,"))] == []
    assert re.findall(r"(?:https?:)?//[a-z]", text) == []
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]{1,2})", text)) <= {"#d", "#s", "#l", "#b", "#p"}


def test_ids_are_of_one_element_each_and_references_lead_to_one(page):
    assert sorted(one for one in set(page.ids) if page.ids.count(one) > 1) == []
    assert {one[1:] for one in page.references if one.startswith("#")} <= set(page.ids)


def test_texts_are_shown_and_never_run(text):
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "A &lt;b&gt;bold&lt;/b&gt; one" in text


def test_charts_take_their_colours_from_the_page(text):
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--ink)" in drawn
    assert "var(--s0)" in drawn
    assert re.findall(r"#0[12]0[01][0-9a-f]{2}", drawn) == []
    # What matplotlib itself colours is black in the light and in the dark.
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn)) == set()
    assert all(name in text for name in ("prefers-color-scheme: dark", "@media print"))


def test_series_differ_without_colour(text):
    svg = "".join(re.findall(r'<figure id="chart-(?:loss0|loss1|loss2)">.*?</figure>', text, re.DOTALL))
    assert len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", svg))) == 2
    (scores,) = re.findall(r'<figure id="chart-dev0">.*?</figure>', text, re.DOTALL)
    assert {">A<", ">B<", ">C<"} <= set(re.findall(r">[A-C]<", scores))


def test_the_same_report_gives_the_same_page(found, text):
    assert render_page(found) == text


def test_runs_that_were_not_evaluated_have_a_page_that_says_so(tmp_path):
    text = render_page(collect_report(make_run(tmp_path / "run"), queries=0))
    assert "not evaluated on sts" in text
    assert "chart-dev0" in text
    assert "chart-size" not in text


def test_without_matplotlib_the_message_says_what_to_install(found, monkeypatch):
    monkeypatch.setattr("distill.report.charts.style.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"embedcache\[plot\]"):
        render_page(found)


def test_the_template_is_beside_its_module():
    import distill.report

    assert Path(str(distill.report.__file__)).with_name("page.html.j2").is_file()


def test_labels_are_moved_apart_and_no_further_than_needed():
    assert spread([1.0, 5.0, 9.0], 1.0) == [1.0, 5.0, 9.0]
    assert spread([2.0, 2.0], 1.0) == [1.5, 2.5]
    moved = spread([0.0, 0.1, 0.2, 5.0], 1.0)
    assert moved == pytest.approx([-0.9, 0.1, 1.1, 5.0])


def test_the_front_is_what_no_other_beats():
    points = [(1.0, 50.0), (2.0, 70.0), (3.0, 60.0), (4.0, 80.0)]
    assert front(points, small=True) == [(1.0, 50.0), (2.0, 70.0), (4.0, 80.0)]
    assert front(points, small=False) == [(4.0, 80.0)]


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_opens_it_without_errors_or_requests(text, tmp_path, width, scheme):
    """The page stands in a frame, as windows cannot be so narrow, and a script added here measures it."""
    probe = """<script>
      window.addEventListener("load", () => {
        const root = document.documentElement;
        const boxes = [...document.querySelectorAll("main > *, figure, .chart, pre")];
        const far = boxes.filter((box) => box.getBoundingClientRect().right > root.clientWidth + 1);
        const loaded = performance.getEntriesByType("resource").map((one) => one.name);
        const dark = matchMedia("(prefers-color-scheme: dark)").matches;
        const ink = getComputedStyle(document.querySelector("svg text")).fill;
        parent.postMessage({scroll: root.scrollWidth, client: root.clientWidth,
          far: far.length, loaded, dark, ink}, "*");
      });
    </script></body>"""
    open_to_the_probe = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    place = tmp_path / "page.html"
    unfolded = open_to_the_probe.replace("<details>", "<details open>")
    place.write_text(unfolded.replace("</body>", probe), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<!DOCTYPE html><meta name="color-scheme" content="light dark"><title>none</title><script>
          addEventListener("message", (one) => {{ document.title = JSON.stringify(one.data); }});
        </script><iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1400,1000",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    seen = json.loads(html.unescape(title))
    assert seen["client"] == width
    assert seen["scroll"] <= seen["client"]
    assert seen["far"] == 0
    assert seen["loaded"] == []
    assert seen["dark"] == (scheme == "dark")
    assert seen["ink"] == ("rgb(232, 235, 238)" if scheme == "dark" else "rgb(27, 31, 36)")
