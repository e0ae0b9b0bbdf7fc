"""Folders and files that people really have: names the engine would misread, things that vanish or are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.collector.records import INCARNATION

from firstbad.agent.journal import Journal
from firstbad.collector import StoreError
from firstbad.collector.collect import Progress, collect
from firstbad.schema import Action, Step

BODY = {"micro_steps": 1, "action": Action.APPLY, "skip_count": 0, "degraded": False}


def write(journal: Path, host: str, rank: int, rows: int, text: str = "") -> None:
    """A closed journal of one rank."""
    agent = Journal(journal, run_id="r", incarnation=INCARNATION, rank=rank, host=host)
    for number in range(rows):
        agent.append(Step, {**BODY, "step": number, "applied_step": number + 1, "global_batch_id": text})
        if number % 1000 == 0:
            assert agent.flush(30)
    assert agent.close()


@pytest.mark.parametrize("name", ["a?b", "a*", "{1,2}"])
def test_a_ledger_whose_name_the_engine_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    """The engine takes what follows ? as options: the data would land in another folder, past its lock."""
    write(tmp_path / "journal", "h", 0, 1)

    with pytest.raises(StoreError, match="choose one without"):
        collect(tmp_path / "journal", tmp_path / name, once=True)
    assert {item.name for item in tmp_path.iterdir()} == {"journal"}


def test_once_ends_when_a_segment_vanishes_before_it_was_read(tmp_path: Path) -> None:
    """Somebody else cleaned up: what is gone cannot be waited for."""
    for rank in range(2):
        write(tmp_path / "journal", "h", rank, 30_000, "x" * 600)
    rounds = 0

    def progress(counts: Progress) -> None:
        nonlocal rounds
        rounds += 1
        assert rounds < 200, "still waiting for what is gone"
        if rounds == 1:
            for segment in (tmp_path / "journal").rglob("*-r1-*"):
                segment.unlink()

    counts = collect(tmp_path / "journal", tmp_path / "db", once=True, keep=True, progress=progress)

    assert rounds > 1, "the journal is larger than one round"
    assert counts.records["step"] >= 30_000


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop a capability; CI is root")
def test_a_hosts_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Not skipped without a word: its rows are missing in the ledger."""
    write(tmp_path / "journal", "one", 0, 3)
    write(tmp_path / "journal", "two", 1, 3)
    tmp_path.chmod(0o777)
    (tmp_path / "journal" / "two").chmod(0)
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    command = [
        sys.executable,
        "-m",
        "firstbad.cli",
        "collect",
        "--once",
        "--keep",
        "--journal",
        "journal",
        "--db",
        "db",
    ]
    done = subprocess.run([*drop, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    (tmp_path / "journal" / "two").chmod(0o755)

    assert done.returncode == 0, done.stderr
    assert "could not read two: Permission denied" in done.stdout + done.stderr
