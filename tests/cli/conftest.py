"""The command line on a sample ledger that the real collector loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commandline import Console, run_firstbad
from tests.cli.sample import write_all


@pytest.fixture(scope="session")
def sample_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of the sample, loaded by `firstbad collect --once`."""
    folder = tmp_path_factory.mktemp("ledger")
    write_all(folder / "journal")
    loaded = run_firstbad("collect", "--once", "--journal", "journal", "--db", "db", cwd=folder)
    assert loaded.code == 0, loaded.err
    return folder / "db"


@pytest.fixture(scope="session")
def console(sample_ledger: Path, sample_copy: Path) -> Iterator[Console]:
    """Command lines on the sample ledger; opened only after it was copied."""
    command = [sys.executable, str(Path(__file__).with_name("console.py")), str(sample_ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Console(process, sample_ledger)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def sample_copy(sample_ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second, unopened ledger with the same content, for tests that start processes of their own."""
    copy = tmp_path_factory.mktemp("copy") / "db"
    shutil.copytree(sample_ledger, copy, symlinks=True)
    return copy
