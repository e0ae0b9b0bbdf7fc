"""The repository layout that packaging and type checkers rely on."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
ROOTS = ("schema", "agent", "collector", "cli")
FOREIGN = {
    "schema": {
        "torch",
        "kafka",
        "clickhouse_connect",
        "chdb",
        "pyarrow",
        "firstbad.agent",
        "firstbad.collector",
        "firstbad.cli",
    },
    "agent": {"kafka", "clickhouse_connect", "chdb", "pyarrow", "firstbad.collector", "firstbad.cli"},
    "collector": {"torch", "firstbad.agent", "firstbad.cli"},
    "cli": set(),
}


@pytest.mark.parametrize("root", ROOTS)
def test_each_root_holds_exactly_one_import_package(root: str) -> None:
    """Editable installs put each root on sys.path, so nothing but firstbad/ may be importable from it."""
    importable = {path.name for path in (REPO / root).iterdir() if path.is_dir() or path.suffix == ".py"}

    assert {"firstbad"} == importable - {"__pycache__"}
    assert not (REPO / root / "firstbad" / "__init__.py").exists()
    assert {path.name for path in (REPO / root / "firstbad").iterdir()} - {"__pycache__"} == {root}


@pytest.mark.parametrize("root", ROOTS)
def test_every_module_of_the_part_imports(root: str) -> None:
    """All parts of the namespace are visible at once."""
    package = importlib.import_module(f"firstbad.{root}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith(("__main__", ".train")):
            importlib.import_module(module.name)


@pytest.mark.parametrize("name", ROOTS)
def test_no_generic_top_level_name_reaches_a_users_environment(name: str) -> None:
    """Training jobs never see a top-level agent, collector, schema or cli package."""
    spec = importlib.util.find_spec(name)

    assert spec is None or spec.origin is None


@pytest.mark.parametrize("root", ROOTS)
def test_imports_point_one_way(root: str) -> None:
    """agent -> schema <- collector; cli imports a part only inside functions."""
    for path in (REPO / root).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = _imported(node)
            assert not {n for n in names if any(n == f or n.startswith(f + ".") for f in FOREIGN[root])}, path
        if root == "cli" and "demo" not in path.parts:
            top = {name for node in tree.body for name in _imported(node)}
            parts = {
                n for n in top if n.startswith(("firstbad.agent", "firstbad.collector", "torch", "pyarrow", "chdb"))
            }
            assert not parts, f"{path} imports {parts} at its top; the command must start without them"


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module}
    return set()


@pytest.mark.parametrize("root", ROOTS)
def test_the_doors_export_what_they_name(root: str) -> None:
    """`__all__` of each part is real."""
    package = importlib.import_module(f"firstbad.{root}")

    assert [name for name in package.__all__ if not hasattr(package, name)] == []
