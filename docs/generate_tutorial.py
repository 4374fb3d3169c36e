"""Write docs/tutorial.md and its pictures from docs/tutorial.ipynb; a test holds the page to the notebook."""

from __future__ import annotations

import re
from pathlib import Path

from nbconvert import MarkdownExporter

DOCS = Path(__file__).parent
_NOTE = "\nThis page is [an executed notebook](tutorial.ipynb) to run and change.\n"


def render() -> dict[str, bytes]:
    """Return the page and its pictures: path below docs -> content."""
    names = {"unique_key": "tutorial", "output_files_dir": "pictures"}
    text, resources = MarkdownExporter().from_filename(str(DOCS / "tutorial.ipynb"), resources=names)
    # nbconvert puts several blank lines around outputs.
    page = (
        re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", text.replace("![png](", "![Figure](")).rstrip() + "\n" + _NOTE
    )
    return {"tutorial.md": page.encode(), **resources["outputs"]}


if __name__ == "__main__":
    for old in DOCS.glob("pictures/tutorial_*"):
        old.unlink()  # pictures are named by the number of their cell
    for name, content in render().items():
        (DOCS / name).write_bytes(content)
