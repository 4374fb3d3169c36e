"""docs/sharing.md, command by command, with a tiny model in the place of the teacher."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from distill.cli.main import cli as distill_cli
from embedcache import EncodeOptions, build
from embedcache.cli.main import cli as embedcache_cli
from embedcache.teacher.aliases import ALIASES
from embedcache.testing import sentences

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sharing.md"
CLIS = {"embedcache": embedcache_cli, "distill": distill_cli}
TEXTS = sentences(300, seed=11)


@pytest.fixture
def minilm(tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the alias minilm-l6 stand for a tiny teacher."""
    name = str(ALIASES["minilm-l6"].module)
    package, folder = ModuleType(name), tmp_path / "package"
    package.__file__, package.__spec__ = str(folder / "__init__.py"), ModuleSpec(name, None)
    folder.mkdir()
    (folder / "model").symlink_to(tiny_teacher)
    monkeypatch.setitem(sys.modules, name, package)


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.mark.usefixtures("minilm")
def test_every_command_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMBEDCACHE_CONFIG", str(tmp_path / "remotes.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("embedcache.building.dry_run.PROBE_SECONDS", 0.01)
    Path("sentences.txt").write_text("".join(f"{text}\n" for text in TEXTS[:240]), encoding="utf-8")
    Path("more.txt").write_text("".join(f"{text}\n" for text in TEXTS[60:]), encoding="utf-8")
    build("sentences.txt", teacher="minilm-l6", cache="ann", encode=EncodeOptions(shard_rows=64))
    found = commands()
    assert len(found) > 15
    for program, *arguments in found:
        if program == "ssh-keygen":
            subprocess.run([program, *arguments], check=True)
        else:
            # The tiny teacher has fewer layers than the student of the page.
            arguments = ["layers:1" if word == "layers:3" else word for word in arguments]
            short = ["--epochs", "1"] if arguments[0] == "run" else []
            # Anything but a return, such as SystemExit for exit code 1, fails the test.
            CLIS[program].main([*arguments, *short], program, standalone_mode=False)
    assert {path.name for path in Path("ann/corpora").iterdir()} == {"sentences"}
    assert {path.name for path in Path("bob/corpora").iterdir()} == {"sentences", "more"}
    assert len(list(Path("some/corpora").iterdir())) == 1
    assert Path("run/best/model.safetensors").read_bytes() == Path("run2/best/model.safetensors").read_bytes()
