"""The wheel, built and installed elsewhere: what a user gets without this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
SMOKE = """
import importlib, pkgutil, sys
for part in ("schema", "agent", "collector", "cli"):
    assert importlib.util.find_spec(part) is None, part
import firstbad.schema, firstbad.agent, firstbad.cli
assert "torch" not in sys.modules and "chdb" not in sys.modules
from importlib.resources import files
assert list(files("firstbad.schema").joinpath("sql", "migrations").iterdir())
assert list(files("firstbad.schema").joinpath("examples").iterdir())
assert files("firstbad.agent").joinpath("py.typed").is_file()
print(firstbad.agent.Settings())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the wheel and its requirements: no torch, no ClickHouse."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = [sys.executable, "-m", "uv"]
    _run(*uv, "build", "-q", "--wheel", "--out-dir", str(folder / "dist"), cwd=REPO)
    _run(sys.executable, "-m", "venv", str(folder / "venv"), cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    _run(*uv, "pip", "install", "-q", "--python", str(python), str(wheel), cwd=folder)
    return folder / "venv" / "bin"


def _run(*command: str, cwd: Path, expect: int = 0) -> str:
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == expect, f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_the_wheel_works_without_the_sources_torch_or_clickhouse(environment: Path, tmp_path: Path) -> None:
    """Parts import, data files are there, the commands answer, and what is missing is said with its remedy."""
    _run(str(environment / "python"), "-c", SMOKE, cwd=tmp_path)
    assert "firstbad" in _run(str(environment / "firstbad"), "--version", cwd=tmp_path)
    assert "--policy" in _run(str(environment / "python"), "-m", "firstbad.agent", "--help", cwd=tmp_path)
    missing = _run(str(environment / "firstbad"), "runs", "--db", str(tmp_path), cwd=tmp_path, expect=2)
    assert "firstbad[collector]" in missing
