"""The docs are right: commands parse, links resolve, the generated page is current."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from flat_build import build

from distill.cli.main import cli as distill_cli
from embedcache.cli.main import cli as embedcache_cli
from embedcache.codecs import CODEC_NAMES
from embedcache.keys import key
from embedcache.testing import FakeEncoder, fake_teacher, sentences

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GROUPS = {"embedcache": embedcache_cli, "distill": distill_cli}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def commands(page: Path) -> list[list[str]]:
    found = []
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            # A pipe starts another command; redirections and && are not checked.
            for part in line.split(" | "):
                words = shlex.split(part, comments=True)
                if words and words[0] in GROUPS:
                    end = next((i for i, w in enumerate(words) if w in (">", "&&", "2>")), len(words))
                    found.append(words[:end])
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_documented_command_parses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # README exports it once.
    monkeypatch.setenv("EMBEDCACHE_CACHE", "demo/cache")
    for words in commands(page):
        group = GROUPS[words[0]]
        assert isinstance(group, click.Group)
        # With its parent: a command keeps the help option of the context that first asked for it.
        parent, rest = click.Context(group, **group.context_settings), words[1:]
        command: click.Command = group
        while isinstance(command, click.Group):
            name, *rest = rest
            command = command.commands[name]
            # Raises UsageError for a flag that does not exist or a value it does not take.
            parent = command.make_context(name, list(rest), parent=parent)


def test_documented_commands_are_found_at_all() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 10
    root = click.Context(embedcache_cli, **embedcache_cli.context_settings)
    with pytest.raises(click.UsageError):
        embedcache_cli.commands["build"].make_context("build", ["x", "--no-such-flag"], parent=root)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_python_blocks_use_existing_names() -> None:
    import distill
    import embedcache

    modules = {"embedcache": embedcache, "distill": distill}
    trees = [(page.name, ast.parse(block)) for page in PAGES for block in blocks(page, "python")]
    for page, node in ((page, node) for page, tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{page}: {ast.unparse(node)}"


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_reader_of_the_storage_format_reads_a_cache(tmp_path: Path, codec: str) -> None:
    (block,) = blocks(ROOT / "docs" / "storage-format.md", "python")
    reader: dict[str, Any] = {}
    exec(block, reader)  # noqa: S102 - a page of this repository
    source, lines = tmp_path / "corpus.txt", sentences(400)
    source.write_text("\n".join(lines), encoding="utf-8")
    teacher = fake_teacher(10)
    encoder = FakeEncoder(teacher)
    cache = build(
        source, teacher=teacher, encoder=encoder, cache=tmp_path / "cache", codec=codec, shard_rows=300
    )

    assert list(reader["texts"](cache.folder, "corpus")) == lines
    found = reader["vectors"](cache.folder, teacher.contract.id)
    assert len(found) == len(lines)
    assert np.array_equal([found[key(line)] for line in lines], cache.lookup(lines))

    shard = next(cache.teacher_folder(teacher.contract).glob("shards/*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-9] + b"x" + shard.read_bytes()[-8:])
    with pytest.raises(ValueError, match="is damaged"):
        reader["vectors"](cache.folder, teacher.contract.id)


@pytest.mark.parametrize("script", ["generate_cli_reference.py", "generate_keywords.py"])
def test_what_is_generated_is_current(script: str) -> None:
    # In a separate process, because a command keeps the help option of its first caller.
    command = [sys.executable, str(ROOT / "docs" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_project_speaks_of_itself_alone_and_leaves_no_placeholder() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:home|root|Users|mnt)/", text), page.name
        assert not [line for line in text.splitlines() if re.fullmatch(r"[A-Z]{4,}", line.strip())], page.name


def test_nothing_tells_to_install_another_project() -> None:
    """On PyPI ``embedcache`` is a stranger's."""
    name = re.search(r'^name = "(.+?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert name is not None
    code = [*(ROOT / "embedcache").rglob("*.py"), *(ROOT / "distill").rglob("*.py")]
    for file in [*PAGES, *code]:
        for found in re.findall(r"pip install '?(embedcache[\w-]*)", file.read_text(encoding="utf-8")):
            assert found == name[1], file.name
