"""Execute docs/tutorial.ipynb in place; ``make tutorial`` does."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")
_SECONDS = 900


def execute(folder: str | Path, **parameters: object) -> nbformat.NotebookNode:
    """Return the tutorial with the outputs of running its cells from top to bottom.

    Standard error is left out: progress bars, and warnings of other packages.

    Args:
        folder: working directory of the first cell.
        parameters: name -> value, in the place of those in the cell tagged ``parameters``.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    for name, value in parameters.items():
        cell.source, found = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value!r}", cell.source)
        if found != 1:
            raise KeyError(f"{NOTEBOOK.name}: no parameter {name}")
    client = NotebookClient(
        notebook,
        timeout=_SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    # Without the versions of the machine that executed it.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    nbformat.write(execute(NOTEBOOK.parent), NOTEBOOK)
