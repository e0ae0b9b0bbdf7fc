"""
Fifty kills -9, at times drawn beforehand: of a training rank, of the collector before it, of both at once.

The truth is what each rank said, before it died, about the steps that had returned. The ledger must hold every bad step
whose step() returned on any rank, and every row older than 50 ms; and nothing twice.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import rankworld
import scripts

KILLS = 50
_DRAW = random.Random(50)


@dataclass(frozen=True)
class Kill:
    """What is killed, and when after both ranks' first returned step."""

    target: str
    delay: float
    rank: int


PLAN = [
    Kill(target, round(_DRAW.uniform(0.05, 0.5), 3), _DRAW.randrange(2))
    for target in ["rank"] * 20 + ["collector"] * 15 + ["both"] * 15
]
_DRAW.shuffle(PLAN)


class Collector:
    """A real `firstbad collect` that tails the journal."""

    def __init__(self, journal: Path, db: Path) -> None:
        self._command = [sys.executable, "-m", "firstbad.cli", "collect", "--journal", str(journal), "--db", str(db)]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def again(self) -> None:
        """Start it anew after a kill."""
        self.process = self._start()

    def drain(self) -> None:
        """A last kill, then load what is left."""
        self.kill()
        done = subprocess.run([*self._command, "--once"], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr


def said(path: Path) -> list[tuple[int, int, int]]:
    """Whole lines of a rank's truth: step, monotonic ns, worst oversleep ns."""
    if not path.exists():
        return []
    text = path.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [tuple(int(word) for word in line.split()) for line in lines]  # type: ignore[misc]


def until(condition: object, seconds: float = 60.0) -> None:
    """Poll until a callable is true."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the ranks did not get going"
        time.sleep(0.005)


@pytest.mark.timeout(600)
def test_fifty_kills_lose_no_event_that_returned_no_row_older_than_50_ms_and_count_nothing_twice(
    tmp_path: Path,
) -> None:
    """One ledger over all fifty runs, each with its own truth."""
    journal, db = tmp_path / "journal", tmp_path / "db"
    journal.mkdir()
    collector = Collector(journal, db)
    killed_at: dict[int, int] = {}
    for number, kill in enumerate(PLAN):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        truth = [folder / "rank0", folder / "rank1"]
        pipes, processes = rankworld.start(
            2, str(folder), scripts.until_killed, str(journal), f"kill{number}", str(folder / "rank")
        )
        until(lambda truth=truth: all(said(path) for path in truth))
        time.sleep(kill.delay)
        if kill.target != "rank":
            collector.kill()
        if kill.target == "collector":
            time.sleep(kill.delay)  # training goes on without a collector
        killed_at[number] = time.monotonic_ns()
        processes[kill.rank].kill()
        for process in processes:
            process.join(60)
            assert not process.is_alive()
        for pipe in pipes:
            pipe.close()
        if kill.target != "rank":
            collector.again()
    collector.drain()
    assert len(killed_at) == KILLS
    check(tmp_path, db, killed_at)


def check(tmp_path: Path, db: Path, killed_at: dict[int, int]) -> None:
    """Compare the ledger with what the ranks said."""
    query = "SELECT run_id, rank, step, count() AS n FROM steps GROUP BY run_id, rank, step"
    rows = {(row["run_id"], int(row["rank"]), int(row["step"])): int(row["n"]) for row in ask(db, query)}
    query = "SELECT run_id, step, count() AS n FROM bad_steps GROUP BY run_id, step"
    events = {(row["run_id"], int(row["step"])): int(row["n"]) for row in ask(db, query)}
    assert set(rows.values()) == {1}
    assert set(events.values()) == {1}
    returned = 0
    for number, kill in enumerate(PLAN):
        run = f"kill{number}"
        for rank in range(2):
            lines = said(tmp_path / f"run{number}" / f"rank{rank}")
            returned += len(lines)
            bad = {step for step, _, _ in lines if step and step % scripts.BAD_EVERY == 0}
            assert {(run, step) for step in bad} <= events.keys()
            slack = 50_000_000 + 2 * max(worst for *_, worst in lines)
            due = {step for step, at, _ in lines if rank != kill.rank or at < killed_at[number] - slack}
            missing = {step for step in due if (run, rank, step) not in rows}
            assert not missing, f"kill {number} ({kill}): rank {rank} lost rows {sorted(missing)}"
    assert returned > 20 * KILLS, "the ranks had time to train"
    assert ask(db, "SELECT count() AS n FROM conflicts")[0]["n"] in (0, "0")


def ask(db: Path, sql: str) -> list[dict]:
    """Rows of a query, through the command."""
    command = [sys.executable, "-m", "firstbad.cli", "sql", sql, "--db", str(db), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer if isinstance(answer, list) else answer["rows"]
