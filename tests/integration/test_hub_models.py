"""Models of a hub: code comes only with trust, adapters with their base, all at commits that are recorded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_emulator import hub_server
from teacher_folders import adapter, decoder, edit, own_code

USER = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from embedcache.errors import EmbedCacheError
from embedcache.teacher.load import load_teacher
from embedcache.teacher.resolve import origin_of

for line in sys.stdin:
    spec, trust = json.loads(line)
    try:
        teacher = load_teacher(spec, device="cpu", trust_remote_code=trust)
        folder = teacher.folder
        found = {"id": teacher.contract.id, "code": teacher.contract.code}
        found["origin"] = origin_of(teacher.source)
        found["files"] = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    except EmbedCacheError as error:
        found = {"error": str(error)}
    print("RESULT", json.dumps(found), flush=True)
"""


class User:
    """Process that loads teachers, with a hub cache of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", USER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def load(self, spec: str, *, trust: bool = False) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([spec, trust]), file=self._process.stdin, flush=True)
        line = next(line for line in self._process.stdout if line.startswith("RESULT"))
        found: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
        return found

    def end(self) -> None:
        self._process.communicate()


@pytest.mark.integration
def test_a_user_loads_models_of_a_hub(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models" / "org"
    hub.mkdir(parents=True)
    own_code(tmp_path / "made" / "code")
    shutil.copytree(tmp_path / "made" / "code", hub / "code")
    (hub / "code" / "README.md").write_text("# A model")
    (hub / "code" / "table.csv").write_text("1,2")
    shutil.copytree(decoder(tmp_path / "made" / "base"), hub / "base")
    shutil.copytree(adapter(tmp_path / "made" / "adapter", "org/base"), hub / "adapter")
    # The tokenizer's class is in another repository.
    shutil.copytree(hub / "base", hub / "elsewhere")
    edit(hub / "elsewhere" / "config.json", auto_map={"AutoModel": "org/library--model.Model"})
    (hub / "library").mkdir()
    (hub / "library" / "model.py").write_text(
        "from transformers import Qwen3Model\n\n\nclass Model(Qwen3Model):\n    pass\n"
    )
    with hub_server(tmp_path / "hub") as environment:
        user = User({**environment, "HF_HOME": str(tmp_path / "home")})
        refused = user.load("org/code")
        assert "trust_remote_code" in refused["error"]
        fetched = sorted(path.name for path in (tmp_path / "home").rglob("*") if not path.is_dir())
        assert "config.json" in fetched
        assert not [name for name in fetched if name.endswith((".py", ".csv", ".md"))]

        trusted = user.load("org/code", trust=True)
        assert trusted["code"]
        assert {"steps.py", "table.csv"} <= set(trusted["files"])
        assert "README.md" not in trusted["files"]
        commit = trusted["origin"]["revision"]
        assert len(commit) == 40
        assert user.load(f"org/code@{commit}", trust=True)["id"] == trusted["id"]

        tuned = user.load("org/adapter")
        assert re.fullmatch("org/base@[0-9a-f]{40}", tuned["origin"]["base"])

        plain, run = user.load("org/elsewhere"), user.load("org/elsewhere", trust=True)
        assert plain["code"] is None
        assert run["origin"]["code"].startswith("org/library@")

        # The hub moves on.
        (hub / "code" / "steps.py").write_text((hub / "code" / "steps.py").read_text().replace("100", "7"))
        library = hub / "library" / "model.py"
        library.write_text(library.read_text() + "    new = 1\n")
        other = decoder(tmp_path / "made" / "other", seed=4)
        shutil.copyfile(other / "model.safetensors", hub / "base" / "model.safetensors")
        user.end()
        user = User({**environment, "HF_HOME": str(tmp_path / "home")})
        for spec, before in (("org/code", trusted), ("org/adapter", tuned), ("org/elsewhere", run)):
            assert user.load(spec, trust=spec != "org/adapter")["id"] != before["id"]
        user.end()
