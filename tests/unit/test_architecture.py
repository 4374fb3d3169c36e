"""The shape of the code, read from its imports: one direction, no circles, small files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import distill
import embedcache

ROOTS = {package.__name__: Path(str(package.__file__)).parent for package in (embedcache, distill)}
LONGEST = 400

# From the ground up; a module imports from its own floor and from those below it.
FLOORS = [
    ["errors"],
    ["lazy", "keys", "pairs", "fsio", "arrow_file", "sizes", "progress"],
    ["folders", "codecs", "contract"],
    ["store", "corpus", "teacher", "views"],
    ["scan", "cache_documents"],
    ["cache"],
    [
        "inventory",
        "missing",
        "projection",
        "querying",
        "reuse",
    ],
    [
        "copying",
        "doctor",
        "explain",
        "exporting",
        "gc",
        "info",
        "live",
        "repair",
        "testing",
        "verify",
    ],
    ["share"],
    ["building", "parallel"],
    ["cli", "__main__"],
]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path, root): path for root in ROOTS.values() for path in sorted(root.rglob("*.py"))}


class Imports(ast.NodeVisitor):
    """Imports of a module, inside functions too; those for type checkers on request."""

    def __init__(self, typing: bool) -> None:
        self.found: set[str] = set()
        self.typing = typing

    def visit_If(self, node: ast.If) -> None:
        if not self.typing and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "relative import"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self.found.add(whole if whole in MODULES else str(node.module))


def imports_of(path: Path, *, typing: bool = False) -> set[str]:
    visitor = Imports(typing)
    visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
    return visitor.found


IMPORTS = {name: imports_of(path) for name, path in MODULES.items()}
WITH_TYPES = {name: imports_of(path, typing=True) for name, path in MODULES.items()}


def test_the_modules_are_read() -> None:
    # Otherwise everything below holds of nothing.
    assert {"embedcache.building.build", "embedcache.store.store", "distill.training.trainer"} <= set(MODULES)
    assert "embedcache.store" in IMPORTS["embedcache.cache"]
    assert "embedcache.building.build" in IMPORTS["embedcache.cli.build"]
    assert "embedcache.building.build" not in IMPORTS["embedcache.cache"]


def test_embedcache_never_imports_distill() -> None:
    guilty = {
        name
        for name, imported in IMPORTS.items()
        if name.startswith("embedcache") and any(one.split(".")[0] == "distill" for one in imported)
    }
    assert guilty == set()


def test_only_command_lines_know_click() -> None:
    guilty = {
        name
        for name, imported in IMPORTS.items()
        if "cli" not in name.split(".") and any(one.split(".")[0] == "click" for one in imported)
    }
    assert guilty == set()


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
        elif name not in done:
            path.append(name)
            for below in sorted(graph[name] & graph.keys()):
                yield from visit(below)
            path.pop()
            done.add(name)

    for name in sorted(graph):
        yield from visit(name)


def test_there_are_no_circles() -> None:
    assert list(cycles(IMPORTS)) == []


def test_types_close_no_new_circle() -> None:
    assert list(cycles(WITH_TYPES)) == []


def test_a_circle_would_be_found() -> None:
    assert list(cycles({"a": {"b"}, "b": {"c", "x"}, "c": {"a"}, "d": {"a"}})) == [["a", "b", "c", "a"]]
    assert list(cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()})) == []


def floor_of(module: str) -> int:
    name = module.removeprefix("embedcache.")
    (floor,) = [
        number
        for number, names in enumerate(FLOORS)
        if any(f"{name}.".startswith(f"{one}.") for one in names)
    ]
    return floor


def test_every_import_of_embedcache_points_downwards() -> None:
    upwards = [
        (name, one)
        for name, imported in IMPORTS.items()
        for one in imported & MODULES.keys()
        if name.startswith("embedcache.") and one.startswith("embedcache.") and floor_of(one) > floor_of(name)
    ]
    assert upwards == []


def test_teachers_stores_and_corpora_do_not_know_each_other() -> None:
    rooms = ("embedcache.store", "embedcache.corpus", "embedcache.teacher")
    across = [
        (name, one)
        for name, imported in IMPORTS.items()
        for one in imported
        for here in rooms
        for there in rooms
        if here != there and name.startswith(here) and one.startswith(there)
    ]
    assert across == []


@pytest.mark.parametrize("name", MODULES)
def test_no_file_is_long(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize(
    "name", [n for n, path in MODULES.items() if path.name == "__init__.py" and "." in n]
)
def test_the_init_of_a_folder_only_passes_on(name: str) -> None:
    for node in ast.parse(MODULES[name].read_text(encoding="utf-8")).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        # What is passed on may be loaded when it is first used.
        is_names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "__getattr__")
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        assert is_docstring or is_names or is_typing or is_import, ast.unparse(node)
