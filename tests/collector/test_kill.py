"""Kill -9 of a running collector, at times drawn beforehand, while ranks go on writing: the ledger ends the same."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from firstbad.collector import Store

HERE = Path(__file__).parent
RANKS = 3
DRAW = random.Random(20_261_130)
# Seconds from the start of the process (while it imports, opens, migrates), or from the first rows it loaded.
KILLS = [("start", DRAW.uniform(0.3, 2.0)) for _ in range(6)] + [("load", DRAW.uniform(0.0, 0.6)) for _ in range(14)]
DRAW.shuffle(KILLS)


def _collector(journal: Path, db: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, HERE / "run_collector.py", journal, db, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_twenty_kills_of_the_collector_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    """Every row that the ranks wrote is in the ledger once, no dead letter is made, and the journal is emptied."""
    journal, db = tmp_path / "journal", tmp_path / "db"
    writer = subprocess.Popen(
        [sys.executable, HERE / "writer.py", journal, str(RANKS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for since, seconds in KILLS:
        collector = _collector(journal, db)
        assert collector.stdout is not None
        if since == "load":
            assert collector.stdout.readline(), collector.communicate()[1]
        time.sleep(seconds)  # the drawn time of the kill
        collector.send_signal(signal.SIGKILL)
        _, errors = collector.communicate()
        assert errors == ""
    written, _ = writer.communicate()
    last = _collector(journal, db, "once")
    _, errors = last.communicate(timeout=60)
    assert (last.returncode, errors) == (0, "")

    count = int(written)
    with Store.open(db, purpose="test") as store:
        per_rank = store.query(
            "SELECT rank, count(), uniqExact(step), max(step) FROM steps GROUP BY rank ORDER BY rank"
        )
        losses = store.query("SELECT countIf(loss != 1 / (step + 1)) FROM steps")
        letters = store.query("SELECT count() FROM dead_letters")
    assert per_rank.rows == [(rank, count, count, count - 1) for rank in range(RANKS)]
    assert (losses.rows, letters.rows) == ([(0,)], [(0,)])
    assert list(journal.glob("*/*.fbj")) == []


def test_a_stop_signal_ends_a_collector_cleanly(tmp_path: Path) -> None:
    """SIGTERM: the batch in hand is finished, the counts are said, the ledger is free for the next."""
    journal, db = tmp_path / "journal", tmp_path / "db"
    writer = subprocess.Popen(
        [sys.executable, HERE / "writer.py", journal, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    collector = _collector(journal, db)
    assert collector.stdout is not None
    collector.stdout.readline()  # something is loaded
    collector.send_signal(signal.SIGTERM)
    output, errors = collector.communicate(timeout=30)
    writer.communicate()

    assert (collector.returncode, errors) == (0, "")
    loaded = json.loads(output.splitlines()[-1])["records"]["step"]
    with Store.open(db, purpose="test") as store:
        assert store.query("SELECT count() FROM steps").rows == [(loaded,)]


def test_a_second_collector_is_told_who_holds_the_ledger(tmp_path: Path) -> None:
    """The error names the first one's process and command."""
    journal, db = tmp_path / "journal", tmp_path / "db"
    writer = subprocess.Popen(
        [sys.executable, HERE / "writer.py", journal, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first = _collector(journal, db)
    assert first.stdout is not None
    first.stdout.readline()
    second = _collector(journal, db, "once")
    _, errors = second.communicate(timeout=30)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    writer.communicate()

    assert second.returncode == 1
    assert errors.startswith("StoreLocked: ")
    assert f"process {first.pid}" in errors
    assert "run_collector.py" in errors
