"""From torchrun to SQL through the front doors: launcher, journals, collector, command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = '''
"""Fine-tuning in small: rank 1 gets a micro-batch without labels in step 3, rank 0 an infinite input in step 5."""
import torch
import torch.distributed as dist
from torch import nn
from firstbad.agent import batch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(8):
    optimizer.zero_grad()
    for micro in range(2):
        x, mask = torch.randn(3, 4), torch.ones(3, 1)
        if (rank, step, micro) == (1, 3, 1):
            mask.zero_()
        if (rank, step) == (0, 5):
            x[0, 0] = float("inf")
        batch(shard_id="shard-%d" % rank, sample_ids=["%d.%d.%d" % (step, micro, rank)], valid_tokens=int(mask.sum()))
        loss = (model(x).square() * mask).sum() / mask.sum()
        if (rank, step) == (0, 5):
            loss = loss + x[0, 0]
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
assert all(torch.isfinite(p).all() for p in model.parameters())
dist.destroy_process_group()
'''


def run(*command: str, cwd: Path, expect: int = 0) -> str:
    """A command's output; it must end as expected."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ledger, made as a user makes it; the script is a module of a package."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "train.py").write_text(SCRIPT)
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(*launcher, "-m", "firstbad.agent", "--run-id", "e2e", "-m", "package.train", cwd=folder)
    run("firstbad.cli", "collect", "--once", cwd=folder)
    return folder


def ask(ledger: Path, sql: str) -> list[dict[str, Any]]:
    """Rows of a query, through the command."""
    answer = json.loads(run("firstbad.cli", "sql", sql, "--format", "json", cwd=ledger))
    return answer if isinstance(answer, list) else answer["rows"]


@pytest.mark.torchrun
def test_g1_the_incident_names_run_step_micro_step_rank_stage_samples_and_zero_labels(ledger: Path) -> None:
    """The question that nobody can answer from loss=nan."""
    rows = ask(
        ledger,
        "SELECT run_id, step, micro_step, rank, first_bad_stage, action, shard_id, sample_ids, valid_tokens, "
        "last_good_step, total_grad_norm FROM bad_steps ORDER BY step",
    )

    first, second = rows
    assert (first["run_id"], int(first["step"]), first["micro_step"], first["rank"]) == ("e2e", 3, 1, 1)
    assert (first["first_bad_stage"], first["action"], int(first["valid_tokens"])) == ("loss", "skip", 0)
    assert (first["shard_id"], first["sample_ids"], int(first["last_good_step"])) == (["shard-1"], ["3.1.1"], 2)
    assert (int(second["step"]), second["micro_step"], second["rank"], second["first_bad_stage"]) == (5, 0, 0, "input")


@pytest.mark.torchrun
def test_e4_nan_and_inf_survive_every_hop_and_match_no_filter_as_zero(ledger: Path) -> None:
    """NaN stored as 0 would match `loss < 0.1`; Inf must not become the largest float."""
    (row,) = ask(
        ledger,
        "SELECT countIf(isNaN(loss)) AS nans, countIf(isInfinite(loss)) AS infs, countIf(loss = 0) AS zeros, "
        "countIf(isNaN(loss) AND loss < 1e300) AS below, countIf(NOT loss_finite) AS flagged, "
        "countIf(loss IS NULL) AS unknown, countIf(loss > 1e300 AND NOT isInfinite(loss)) AS huge FROM steps",
    )
    assert {name: int(value) for name, value in row.items()} == {
        "nans": 1, "infs": 1, "zeros": 0, "below": 0, "flagged": 2, "unknown": 0, "huge": 0,
    }  # fmt: skip
    values = {(int(r["step"]), r["rank"]): r["loss"] for r in ask(ledger, "SELECT step, rank, loss FROM steps")}
    assert values[3, 1] == "NaN"
    assert values[5, 0] == "Infinity"


@pytest.mark.torchrun
def test_the_ledger_is_complete_and_every_rank_did_the_same(ledger: Path) -> None:
    """Verify says so with exit code 0; attempted, applied and skipped add up on both ranks."""
    assert "complete" in run("firstbad.cli", "verify", "e2e", cwd=ledger)
    rows = ask(
        ledger, "SELECT rank, max(step) AS s, max(applied_step) AS a, max(skip_count) AS k FROM steps GROUP BY rank"
    )
    assert {(int(r["s"]), int(r["a"]), int(r["k"])) for r in rows} == {(7, 6, 2)}
    norms = ask(ledger, "SELECT countIf(total_grad_norm IS NULL) AS n, countIf(NOT grad_norm_finite) AS bad FROM steps")
    assert {name: int(value) for name, value in norms[0].items()} == {"n": 0, "bad": 4}


@pytest.mark.torchrun
def test_show_tells_a_person_who_was_first_and_where(ledger: Path) -> None:
    """The words that an on-call engineer needs, without a query."""
    text = run("firstbad.cli", "show", "latest", "3", cwd=ledger)

    for word in ("rank 1", "loss", "shard-1", "3.1.1", "NaN", "skip"):
        assert word in text
