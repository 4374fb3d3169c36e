"""Commands that turn a student into something to ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from distill.export import ExportResult


@click.command("export")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(["onnx", "openvino"]), help="Form to export to.")
@click.option(
    "--int8", is_flag=True, help="Also write a dynamically quantised graph, a quarter to a third of the size."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write; default: NAME-onnx or NAME-openvino beside the model or run.",
)
@click.option(
    "--opset",
    type=click.IntRange(min=18),
    help="Version of the ONNX operators.  [default: 18]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-4,
    show_default=True,
    help="Largest difference allowed between a component of an exported vector and the model's own.",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier export in the same folder.")
@click.option(
    "--push-to-hub",
    metavar="OWNER/NAME",
    help="Upload the export, or without --to the model itself, to the Hugging Face Hub; replaces the "
    "repository's files.",
)
@click.option("--public", is_flag=True, help="Make a new repository public.")
def export_command(
    model: Path,
    form: str | None,
    int8: bool,
    out: Path | None,
    opset: int | None,
    tolerance: float,
    overwrite: bool,
    push_to_hub: str | None,
    public: bool,
) -> None:
    """Export MODEL, a run folder or a sentence-transformers folder, and check that it gives the same vectors.

    The folder written opens with sentence-transformers as before. The graph in onnx/ runs without torch; with
    openvino/ in it, the folder opens with backend="openvino", too.
    """
    from rich.console import Console

    from distill.export import model_folder

    if form is None and push_to_hub is None:
        raise click.UsageError("give --to onnx or --to openvino, --push-to-hub, or both")
    if form != "onnx" and (int8 or opset is not None):
        raise click.UsageError("--int8 and --opset go with --to onnx")
    if public and push_to_hub is None:
        raise click.UsageError("--public goes with --push-to-hub")
    console, folder = Console(), model_folder(model)
    if form is not None:
        result = _export(model, form, out or _beside(model, form), int8, opset, tolerance, overwrite)
        folder = result.folder
        console.print(_table(result))
        console.print(f"written to {folder}", soft_wrap=True, markup=False, highlight=False)
    if push_to_hub is not None:
        from distill.hub import push_to_hub as upload

        url = upload(folder, push_to_hub, public=public)
        console.print(f"pushed to {url}", soft_wrap=True, markup=False, highlight=False)


def _export(
    model: Path, form: str, out: Path, int8: bool, opset: int | None, tolerance: float, overwrite: bool
) -> ExportResult:
    from distill.export import DEFAULT_OPSET, export_onnx, export_openvino

    if form == "openvino":
        return export_openvino(model, out, tolerance=tolerance, overwrite=overwrite)
    return export_onnx(
        model, out, int8=int8, opset=opset or DEFAULT_OPSET, tolerance=tolerance, overwrite=overwrite
    )


def _beside(model: Path, form: str) -> Path:
    """Return the default folder of an export, never inside a run's, which the next run would replace."""
    from distill.export import model_folder
    from distill.record import run_folder

    source = model_folder(model)
    beside = source if source == model.expanduser().resolve() else source.parent
    beside = run_folder(source) or beside
    return beside.with_name(f"{beside.name}-{form}")


def _table(result: ExportResult) -> Table:
    from rich.table import Table

    table = Table("file", "MB", "check")
    table.add_row(
        result.model.name,
        f"{result.model_bytes / 1e6:.1f}",
        f"largest difference {result.max_difference:.1e}",
    )
    if result.model_int8 is not None and result.model_int8_bytes is not None:
        table.add_row(
            result.model_int8.name,
            f"{result.model_int8_bytes / 1e6:.1f}",
            f"mean cosine {result.mean_cosine_int8:.4f} ({result.int8_setting})",
        )
    return table
