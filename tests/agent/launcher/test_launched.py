"""Real training scripts under the launcher and the real guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import ledger
import pytest

from firstbad.schema import Outcome, RunEnd, RunStart, Step

TRAIN = """
import os, signal, sys
os.environ["OMP_NUM_THREADS"] = "1"
if __name__ == "__main__" and "guard-first" in sys.argv:
    import firstbad.agent.guard
import torch
from firstbad.agent import batch

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return Sample(index)

class Sample:
    def __init__(self, index):
        self.index, self.x = index, torch.full((4,), float(index)) ** 2

def collate(samples):
    return samples

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    workers = {} if "killed" in sys.argv else {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=2, collate_fn=collate, **workers
    )
    for samples in loader:
        assert all(type(sample) is Sample for sample in samples)
        batch(sample_ids=[sample.index for sample in samples])
        loss = model(torch.stack([sample.x for sample in samples])).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print([p.tolist() for p in model.parameters()], torch.get_num_threads(), torch.initial_seed())
    print([getattr(signal.getsignal(s), "__qualname__", signal.getsignal(s)) for s in signal.valid_signals()])
    print(sys.excepthook is sys.__excepthook__, torch.__spec__.loader.__class__.__name__)
    if "killed" in sys.argv:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    main()
"""


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a python process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTBAD_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_training_with_spawned_workers_is_the_same_and_is_recorded(tmp_path: Path) -> None:
    """Same bits, threads, signal handlers and exit as plain python; steps, data identity and the end are recorded."""
    (tmp_path / "train.py").write_text(TRAIN)
    plain = run(tmp_path, "train.py", "guard-first")
    launched = run(tmp_path, "-m", "firstbad.agent", "--journal", "j", "--run-id", "r", "train.py", "guard-first")
    assert launched[:2] == plain[:2], launched[2]
    assert plain[0] == 0, plain[2]
    records = ledger.records(tmp_path / "j")
    assert [record.seq for record in records] == list(range(len(records)))
    (start,) = [record for record in records if isinstance(record, RunStart)]
    assert (start.run_id, start.argv) == ("r", ("train.py", "guard-first"))
    steps = [record for record in records if isinstance(record, Step)]
    assert [step.sample_ids for step in steps] == [("0", "1"), ("2", "3"), ("4", "5")]
    ends = [record for record in records if isinstance(record, RunEnd)]
    assert [(end.outcome, end.exit_code, end.steps) for end in ends] == [(Outcome.FINISHED, 0, 3)]


def test_sigterm_ends_a_guarded_process_as_it_ends_any(tmp_path: Path) -> None:
    """No handler of ours: the process dies by the signal at once, and a killed run has no run end."""
    (tmp_path / "train.py").write_text(TRAIN)
    code, output, errors = run(tmp_path, "-m", "firstbad.agent", "--journal", "j", "train.py", "killed")
    assert code == -signal.SIGTERM, errors
    assert output
    assert not [record for record in ledger.records(tmp_path / "j") if isinstance(record, RunEnd)]


@pytest.mark.torchrun
def test_bad_setting_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """Every rank tells the value and what is right, and none runs a line of the script."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    code, _, errors = run(
        tmp_path,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "firstbad.agent"),
        *("--policy", "skpi", "train.py"),
    )
    assert code != 0
    assert errors.count("--policy is 'skpi'; right would be one of observe, skip, stop") >= 1
    assert "exitcode  : 2" in errors
    assert not (tmp_path / "ran").exists()
