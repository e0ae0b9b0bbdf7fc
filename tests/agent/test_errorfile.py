"""torchrun's own summary tells why a rank was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from firstbad.agent import Guard

if "guard" in sys.argv:
    guard = Guard(run_id="told")
torch.set_num_threads(1)
if "group" in sys.argv:
    dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def update(factor):
    model(torch.ones(1, 2)).sum().mul(factor).backward()
    optimizer.step()

def main():
    for step in range(4):
        update(float("nan") if step == 2 else 1.0)

try:
    main()
except RuntimeError:
    if "exit" in sys.argv:
        sys.exit(9)
    raise
"""
SENTENCE = "firstbad stopped the run before the update of step 2"


def _run(folder: Path, *words: str, error_file: str | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTBAD_")}
    environment |= {"FIRSTBAD_POLICY": "stop"} | ({"TORCHELASTIC_ERROR_FILE": error_file} if error_file else {})
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


LAUNCHED = ("-m", "firstbad.agent", "--run-id", "told", "train.py")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("train.py", "guard"), 1), (LAUNCHED, 1), ((*LAUNCHED, "exit"), 9)],
    ids=["guard", "launcher", "exit"],
)
def test_both_doors_leave_a_file_that_torchrun_reads(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    """Read by torch's own reader: the sentence, the last good step, the next command, and the script's own line."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    path = tmp_path / "error.json"
    done = _run(tmp_path, *words, error_file=str(path))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=done.returncode, error_file=str(path))

    assert done.returncode == code, done.stderr
    shown = failure.message["extraInfo"]["py_callstack"]  # type: ignore[index]
    assert shown.startswith(f"RunStopped: {SENTENCE}")
    assert "last good step 1" in shown and "firstbad show told 2" in shown
    assert "optimizer.step()" in shown and "train.py" in shown
    assert "firstbad/agent/" not in shown
    assert failure.timestamp > 1_700_000_000
    assert [file.name for file in tmp_path.glob("error.json*")] == ["error.json"]


@pytest.mark.parametrize(
    ("before", "kept"),
    [('{"message": {"message": "theirs", "extraInfo": {"timestamp": "1"}}}', True), ("", False), ("[1", False)],
    ids=["whole", "empty", "torn"],
)
def test_a_file_that_another_has_written_is_left_alone(tmp_path: Path, before: str, kept: bool) -> None:
    """A whole one; an empty or torn one, on which torchrun would fail, is replaced."""
    from firstbad.agent import RunStopped
    from firstbad.agent.errorfile import write_error_file

    path = tmp_path / "error.json"
    path.write_text(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        write_error_file(RunStopped("ours", step=1, event_id="0" * 32, last_good_step=0))

    assert ("theirs" in path.read_text()) is kept
    assert kept or json.loads(path.read_text())["message"]["message"] == "RunStopped: ours"


def test_a_place_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop is what the script must hear, not this."""
    from firstbad.agent import RunStopped
    from firstbad.agent.errorfile import write_error_file

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no" / "such" / "folder"))
    write_error_file(RunStopped("ours", step=1, event_id="0" * 32, last_good_step=0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torchrun
def test_torchruns_summary_holds_the_sentence(tmp_path: Path) -> None:
    """Root cause: the sentence, the last good step and the next command."""
    done = _run(
        tmp_path,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(*LAUNCHED, "group"),
    )

    assert done.returncode == 1, done.stderr
    summary = done.stderr.partition("Root Cause (first observed failure):")[2]
    assert SENTENCE in summary, done.stderr
    assert "last good step 1" in summary and "firstbad show told 2" in summary
