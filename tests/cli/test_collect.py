"""`firstbad collect` as a program: once, as a service that a signal ends, and with nothing to collect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commandline import run_firstbad
from tests.cli.sample import clean, fine_tune


def test_once_loads_and_says_what(tmp_path: Path) -> None:
    """Counts on standard output; the loaded segments are gone, and a second call finds nothing new."""
    clean().write(tmp_path / "journal")
    argv = ("collect", "--once", "--journal", "journal", "--db", "db")

    first, second = run_firstbad(*argv, cwd=tmp_path), run_firstbad(*argv, "--json", cwd=tmp_path)

    assert first.code == 0, first.err
    assert first.out.startswith("loaded 8 steps, 4 other records from 4 segments")
    assert second.json["records"] == {}
    assert not list((tmp_path / "journal").rglob("*.fbj"))


def test_keep_leaves_the_journal(tmp_path: Path) -> None:
    """With --keep the segments stay."""
    clean().write(tmp_path / "journal")

    answer = run_firstbad("collect", "--once", "--keep", "--journal", "journal", "--db", "db", "--json", cwd=tmp_path)

    assert answer.json["records"] == {"run_start": 2, "run_end": 2, "step": 8}
    assert len(list((tmp_path / "journal").rglob("*.fbj"))) == 4


def test_a_missing_journal_is_named_and_no_ledger_is_made(tmp_path: Path) -> None:
    """--once with a wrong path ends with exit code 2."""
    answer = run_firstbad("collect", "--once", "--journal", "nowhere", "--db", "db", cwd=tmp_path)

    assert answer.code == 2
    assert "nowhere" in answer.err
    assert "FIRSTBAD_JOURNAL" in answer.err
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """It loads what comes, shows that it does, and ends with 0 and a summary; the ledger is then free."""
    fine_tune().write(tmp_path / "journal")
    command = [sys.executable, "-m", "firstbad.cli", "collect", "--journal", "journal", "--db", "db"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        progress = process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 0, err
    assert progress.startswith("loaded")
    assert out.startswith("loaded")
    assert "Traceback" not in err
    assert run_firstbad("runs", "--db", "db", cwd=tmp_path).code == 0


def test_a_service_waits_for_a_journal_that_is_not_there_yet(tmp_path: Path) -> None:
    """It says what it waits for, and loads it once it comes."""
    command = [sys.executable, "-m", "firstbad.cli", "collect", "--journal", "journal", "--db", "db", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for a journal in journal\n"
        clean().write(tmp_path / "journal")
        deadline = time.monotonic() + 30
        while list((tmp_path / "journal").rglob("*.fbj")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        out, err = process.communicate(timeout=30)

    assert process.returncode == 0, err
    assert '"step": 8' in out
