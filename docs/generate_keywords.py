"""Write the keyword arguments of ``distill.run`` and ``distill.finetune`` as types that editors read.

python docs/generate_keywords.py [--check]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.signature import keywords, type_name, word_of

OUT = Path(__file__).parents[1] / "distill" / "config" / "keywords.py"
HEAD = '''"""Keyword arguments of trainings, for editors; written by ``docs/generate_keywords.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict
'''


def main() -> int:
    """Write the file, or with ``--check`` compare it."""
    text = _formatted(
        HEAD
        + "".join(
            "\n".join(_lines(name, model, own))
            for name, model, own in (
                ("RunKeywords", RunConfig, {"cache", "student", "loss", "teacher", "corpus", "out"}),
                ("FinetuneKeywords", FinetuneConfig, {"start", "triples", "sentences", "labels", "out"}),
            )
        )
    )
    if "--check" in sys.argv:
        if OUT.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{OUT.name} is not current: run `make docs`\n")
            return 1
        return 0
    OUT.write_text(text, encoding="utf-8")
    return 0


def _lines(name: str, model: type[BaseModel], own: set[str]) -> Iterator[str]:
    """Yield the lines of a class; ``own`` are arguments that the function names itself."""
    yield from (
        "",
        "",
        f"class {name}(TypedDict, total=False):",
        f'    """Settings of ``{model.__name__}``."""',
        "",
    )
    for key in keywords(model):
        if word_of(key) not in own:
            yield f"    {word_of(key)}: {type_name(key)}"
            own = own | {word_of(key)}
    for group, field in model.model_fields.items():
        if (
            isinstance(field.annotation, type)
            and issubclass(field.annotation, BaseModel)
            and group not in own
        ):
            yield f"    {group}: Mapping[str, Any]"
    yield ""


def _formatted(code: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "110", "-"]
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
