"""A diagnosis as one figure of four panels, readable without colour."""

from __future__ import annotations

import io
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache.doctor.diagnosis import Diagnosis
from embedcache.doctor.histogram import Histogram
from embedcache.errors import InputError, MissingExtraError
from embedcache.fsio import explain_os_error, write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".svg", ".png", ".pdf")

_INK, _FILL = "0.15", "0.75"


def check_plot(target: str | Path) -> Path:
    """Return ``target`` if a figure can be written there; to be called before the work.

    Raises:
        InputError: if its ending is not one of :data:`ENDINGS`, or it is a folder.
        MissingExtraError: if matplotlib is not installed.
        StorageError: if no file can be written there.
    """
    path = Path(target).expanduser()
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"cannot plot to {path}: expected a name that ends in {', '.join(ENDINGS)}")
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            "a plot needs matplotlib, which is not installed: pip install 'embedcache[plot]'"
        )
    if path.is_dir():
        raise InputError(f"cannot plot to {path}: it is a folder; name a file in it")
    # Only trying tells: permissions say nothing of read-only file systems. Missing folders are made later.
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise explain_os_error(error, path) from error
    return path


def plot(diagnosis: Diagnosis, target: str | Path) -> Path:
    """Draw ``diagnosis`` into ``target`` and return its path; the same diagnosis gives the same bytes.

    Raises:
        InputError: if nothing was measured, or the ending is not one of :data:`ENDINGS`.
        MissingExtraError: if matplotlib is not installed.
        StorageError: if the file cannot be written.
    """
    path = check_plot(target)
    geometry = diagnosis.geometry
    if geometry is None:
        raise InputError(f"nothing to plot: {diagnosis.cache} has fewer than 2 usable vectors")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "embedcache", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.5, 6.8), layout="constrained")
        norms, cosines, spectrum, lengths = figure.subplots(2, 2).flat
        figure.suptitle(f"{diagnosis.teacher}: {diagnosis.scan.vectors:,} vectors", fontweight="bold")

        sampled = f"vectors, of {geometry.rows:,} sampled"
        _bars(norms, geometry.norms, "Norms", "length of the vector", sampled)
        if diagnosis.normalize:
            _mark(norms, 1.0, "promised: 1", "--")
        norms.ticklabel_format(axis="x", useOffset=False)

        _bars(cosines, geometry.cosines, "Random pairs", "cosine of the two vectors", "pairs")
        _mark(cosines, geometry.mean_cosine, f"mean {geometry.mean_cosine:.3f}", "--")

        _bars(lengths, diagnosis.lengths, "Texts", "length in tokens", "texts")
        _mark_cut(lengths, diagnosis.max_length, longest=diagnosis.lengths.edges[-1])

        _draw_spectrum(spectrum, geometry.spectrum, geometry.effective_rank, geometry.participation_ratio)
        for axes in (norms, cosines, spectrum, lengths):
            axes.spines[["top", "right"]].set_visible(False)
        data = io.BytesIO()
        kind = path.suffix.lower().removeprefix(".")
        undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(data, format=kind, dpi=150, metadata=undated.get(kind))
    write_bytes(path, data.getvalue())
    return path


def _bars(axes: Axes, data: Histogram, title: str, x: str, y: str) -> None:
    edges = np.array(data.edges)
    axes.bar(
        edges[:-1],
        data.counts,
        width=np.diff(edges),
        align="edge",
        color=_FILL,
        edgecolor=_INK,
        linewidth=0.5,
    )
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _mark(axes: Axes, x: float, label: str, style: str) -> None:
    axes.axvline(x, color=_INK, linestyle=style, linewidth=1.2, label=label)
    axes.legend(frameon=False)


def _mark_cut(axes: Axes, max_length: int, *, longest: float) -> None:
    if not max_length:
        return
    if max_length <= 2 * longest:
        _mark(axes, max_length, f"cut at {max_length}", "--")
        return
    # Far beyond all texts the mark would squeeze the bars into a corner.
    axes.annotate(f"cut at {max_length} →", (1, 0.95), xycoords="axes fraction", ha="right", va="top")


def _draw_spectrum(axes: Axes, shares: np.ndarray[Any, Any], effective: float, participation: float) -> None:
    shown = shares[shares > 1e-8]
    axes.plot(np.arange(1, len(shown) + 1), 100 * shown, color=_INK, linewidth=1.5)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(title="PCA spectrum", xlabel="principal component", ylabel="share of the variance, %")
    _mark(axes, effective, f"effective rank {effective:.0f}", "--")
    _mark(axes, participation, f"participation ratio {participation:.0f}", ":")
