"""How charts look, and how a matplotlib figure becomes an SVG for the inside of a page.

Colours are placeholders while matplotlib draws and variables of the page afterwards, so that one SVG serves
light, dark and print. Nothing depends on them: every series has a marker and a dash of its own, and is named
where it ends.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distill.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.8
"""Inches; 365 pixels of CSS, so that letters keep their size on a telephone."""

INK, MUTED, GRID, PAPER = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0200{place:02x}" for place in range(8))
"""Colours of series; more series than colours begin again, with other markers and dashes."""

_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    colour: f"--s{place}" for place, colour in enumerate(SERIES)
}
_MARKERS = "osD^vPXph<>"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
TEACHER_MARKER = "*"


@dataclass(frozen=True)
class Chart:
    """A chart for a page.

    Attributes:
        name: what its elements' ids begin with.
        title: what it shows.
        caption: how to read it.
        svg: the drawing.
    """

    name: str
    title: str
    caption: str
    svg: str


def require_matplotlib() -> None:
    """Raise :class:`MissingExtraError` where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            "the page's charts need matplotlib, which is not installed: pip install 'embedcache[plot]', or "
            "give --format md"
        )


def colour(place: int) -> str:
    """Return the colour of the series at ``place``."""
    return SERIES[place % len(SERIES)]


def marker(place: int) -> str:
    """Return the marker of the series at ``place``."""
    return _MARKERS[place % len(_MARKERS)]


def dash(place: int) -> str | tuple[float, tuple[float, ...]]:
    """Return the dash of the series at ``place``."""
    return _DASHES[place % len(_DASHES)]


@contextmanager
def drawing(height: float, name: str) -> Iterator[tuple[Figure, Axes]]:
    """Give a figure of one panel; arguments are those of :func:`canvas`."""
    with canvas(height, name) as figure:
        yield figure, figure.add_subplot()


@contextmanager
def canvas(height: float, name: str) -> Iterator[Figure]:
    """Give an empty figure; to be handed to :func:`to_svg` inside the block.

    Args:
        height: in inches.
        name: the chart's name.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "path.simplify": False,
        "font.size": 9,
        "axes.labelsize": 9,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
    }
    with mpl.rc_context(settings):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Return ``figure`` as an SVG element whose ids begin with ``name`` and whose colours are variables."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"#0[12]0[01][0-9a-f]{2}", _variable, svg)
    # The page's letters, at the chart's size.
    svg = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]+", r"font-size: \1", svg)
    return re.sub(r"<svg [^>]*>", lambda head: _head(head.group(), title), svg, count=1)


def _variable(found: re.Match[str]) -> str:
    variable = _VARIABLES.get(found.group())
    return found.group() if variable is None else f"var({variable})"


def _head(head: str, title: str) -> str:
    (box,) = re.findall(r'viewBox="[^"]+"', head)
    label = html.escape(title, quote=True)
    return f'<svg {box} role="img" aria-label="{label}" class="chart">'


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return ``places`` moved apart, so that labels at them do not overlap, each as near as it may be.

    Args:
        places: where labels should stand.
        gap: the least distance between two of them.
    """
    order = sorted(range(len(places)), key=lambda one: places[one])
    # Blocks of labels that touch; each is centred on the mean of where its labels should stand.
    blocks: list[list[int]] = []
    for one in order:
        blocks.append([one])
        while len(blocks) > 1 and _start(blocks[-1], places, gap) < _end(blocks[-2], places, gap) + gap:
            last = blocks.pop()
            blocks[-1] += last
    moved = list(places)
    for block in blocks:
        start = _start(block, places, gap)
        for row, one in enumerate(block):
            moved[one] = start + row * gap
    return moved


def _start(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return sum(places[one] for one in block) / len(block) - gap * (len(block) - 1) / 2


def _end(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return _start(block, places, gap) + gap * (len(block) - 1)
