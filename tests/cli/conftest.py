"""The command line on a sample ledger: in one shared process for most tests, in one of its own where that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Answer:
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, read by a strict JSON parser."""

        def refuse(name: str) -> None:
            raise ValueError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


class Console:
    """Runs command lines in the process that holds the sample ledger open."""

    def __init__(self, process: subprocess.Popen[str], db: Path) -> None:
        self._process = process
        self.db = db

    def __call__(self, *argv: str, stdin: str = "", columns: int | None = None) -> Answer:
        """`firstbad ARGV...`, with FIRSTBAD_DB set."""
        assert self._process.stdin is not None and self._process.stdout is not None
        question = {"argv": argv, "stdin": stdin, "columns": columns}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the console process ended with {self._process.poll()}"
        return Answer(**json.loads(line))


def run_firstbad(*argv: str, cwd: Path, stdin: str = "") -> Answer:
    """`firstbad ARGV...` in a process of its own, without FIRSTBAD_ variables, in the folder `cwd`."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FIRSTBAD_")}
    command = [sys.executable, "-m", "firstbad.cli", *argv]
    done = subprocess.run(
        command, cwd=cwd, input=stdin, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def _sample_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of the sample, loaded by `firstbad collect --once`."""
    folder = tmp_path_factory.mktemp("ledger")
    sys.path.insert(0, str(HERE))
    try:
        import sample
    finally:
        sys.path.remove(str(HERE))
    sample.write_all(folder / "journal")
    loaded = run_firstbad("collect", "--once", "--journal", "journal", "--db", "db", cwd=folder)
    assert loaded.code == 0, loaded.err
    return folder / "db"


@pytest.fixture(scope="session")
def console(_sample_ledger: Path) -> Iterator[Console]:
    """Command lines on the sample ledger."""
    command = [sys.executable, str(HERE / "console.py"), str(_sample_ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Console(process, _sample_ledger)
        assert process.stdin is not None
        process.stdin.close()
