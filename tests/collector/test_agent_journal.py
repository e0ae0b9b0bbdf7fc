"""The agent's own journal, loaded by the collector: the two ends of the contract meet."""

from __future__ import annotations

from pathlib import Path

from tests.collector.records import INCARNATION

from firstbad.agent.journal import Journal
from firstbad.collector import Store
from firstbad.collector.collect import collect
from firstbad.schema import Action, Outcome, RunEnd, Step


def test_what_an_agent_writes_is_loaded_while_it_writes_and_gone_when_it_closed(tmp_path: Path) -> None:
    """Dense sequence, nothing damaged, allocated room no damage, sealed segments deleted, NaN a NaN."""
    journal, db = tmp_path / "journal", tmp_path / "db"
    agent = Journal(journal, run_id="exp/7 a", incarnation=INCARNATION, rank=2, host="node3")
    body = {"micro_steps": 1, "action": Action.APPLY, "skip_count": 0, "degraded": False, "loss_finite": False}
    for number in range(300):
        agent.append(Step, {**body, "step": number, "applied_step": number + 1, "loss": float("nan")})
    assert agent.flush(10)
    running = collect(journal, db, once=True)
    end = {
        "outcome": Outcome.FINISHED,
        "steps": 300,
        "applied_steps": 300,
        "records_written": 300,
        "records_dropped": 0,
        "event_waits_timed_out": 0,
    }
    assert agent.close([(RunEnd, end)])
    closed = collect(journal, db, once=True)

    assert (running.records, closed.records) == ({"step": 300}, {"run_end": 1})
    assert not running.dead_letters
    assert not closed.dead_letters
    with Store.open(db, purpose="test") as store:
        rows = store.query("SELECT run_id, rank, count(), countIf(isNaN(loss)) FROM steps GROUP BY run_id, rank").rows
        assert rows == [("exp/7 a", 2, 300, 300)]
        assert store.query("SELECT count() FROM gaps").rows == [(0,)]
    assert list(journal.rglob("*.fbj")) == []
