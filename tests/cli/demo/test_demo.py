"""The demo itself, smaller: two real trainings with torchrun, a real ledger, and the answer held against the log."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from firstbad.cli.demo.corpus import Sample, read_corpus
from firstbad.cli.demo.order import Order, find_order
from firstbad.cli.demo.ranklogs import RankLogs
from firstbad.cli.demo.recipe import Recipe
from firstbad.cli.demo.run import conclude
from firstbad.cli.demo.screen import Screen
from firstbad.cli.demo.story import Story

SMALL = Recipe(world=2, steps=16, batch=2, fewest_bad=2, most_bad=3, first_from=4, first_to=8)
SCRIPT = f"""
import sys
from firstbad.cli.demo.recipe import Recipe
from firstbad.cli.demo.run import main
sys.exit(main(sys.argv[1:], {SMALL!r}))
"""
pytestmark = pytest.mark.torchrun


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    # A user's own settings must not reach the demo: this policy would make every check fail.
    environ = {**os.environ, "FIRSTBAD_POLICY": "observe", "FIRSTBAD_DB": "nowhere"}
    (folder / "pyproject.toml").write_text('[tool.firstbad]\nmax-skip-ratio = "0.0"\n')
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Folder, JSON result and progress of one small demo."""
    folder = tmp_path_factory.mktemp("demo")
    process = _start(folder, "--json")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return folder / "firstbad-demo", json.loads(out), err


def test_the_ledger_names_what_the_script_logged(demo: tuple[Path, dict[str, Any], str]) -> None:
    """All bad steps, by rank, micro step, stage, samples; every update of them was skipped, and only those."""
    _, result, _ = demo

    assert result["ok"] is True
    assert result["differences"] == []
    named = [{name: row[name] for name in ("step", "micro_step", "rank", "sample_ids")} for row in result["bad_steps"]]
    assert named == result["expected"]
    assert len(named) in (2, 3)
    assert {row["first_bad_stage"] for row in result["bad_steps"]} == {"loss"}
    assert result["guarded"]["skipped_steps"] == [row["step"] for row in named]
    assert result["bare"] == {"ruined_from_step": named[0]["step"], "last_loss": "NaN"}
    assert result["incident"]["step"] == named[0]["step"]


def test_progress_is_readable_in_a_pipe(demo: tuple[Path, dict[str, Any], str]) -> None:
    """Plain lines without control characters: both commands, progress, what happened, what to try."""
    folder, result, progress = demo
    bad = result["expected"][0]["step"]

    assert "\x1b" not in progress and "\r" not in progress
    assert "$ torchrun --standalone --nproc-per-node 2 train.py" in progress
    assert "$ torchrun --standalone --nproc-per-node 2 -m firstbad.agent --journal journal --run-id demo" in progress
    assert "step  16/16  loss NaN" in progress
    assert f"step {bad:>3}  every parameter tensor (29 of 29) on every rank holds NaN from here on" in progress
    assert f"step {bad:>3}  loss is NaN, the update was skipped on every rank" in progress
    assert f"show demo {bad} --db firstbad-demo/db" in progress
    assert (folder / "train.py").is_file()


@pytest.fixture(scope="module")
def library() -> list[Sample]:
    """The running Python's functions; reading them takes seconds."""
    return read_corpus()


def _read_again(folder: Path, library: list[Sample]) -> tuple[list[Sample], Order, tuple[RankLogs, RankLogs]]:
    order = find_order([sample.labels(SMALL.context) for sample in library], SMALL)
    logs = RankLogs(folder / "logs" / "bare", 2), RankLogs(folder / "logs" / "guarded", 2)
    for log in logs:
        log.read_new()
        log.close()
    return library, order, logs


@pytest.mark.parametrize("tampered", ["rank", "samples", "missing", "invented", "rows", "nan", "forgotten"])
def test_a_wrong_ledger_or_a_hurt_training_is_not_ok(
    demo: tuple[Path, dict[str, Any], str],
    library: list[Sample],
    tampered: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One thing wrong is enough, also in a later bad step; the screen says which. `ok` is the exit code."""
    folder, result, _ = demo
    samples, order, logs = _read_again(folder, library)
    rows = copy.deepcopy(result["bad_steps"])
    story = Story(result["incident"], rows, 2 * SMALL.steps, 1)
    match tampered:
        case "rank":
            rows[-1]["rank"] = 1 - rows[-1]["rank"]
        case "samples":
            rows[-1]["sample_ids"] = rows[-1]["sample_ids"][:1]
        case "missing":
            rows.pop()
        case "invented":
            rows.append({**rows[0], "step": rows[-1]["step"] + 1})
        case "rows":
            story = Story(result["incident"], rows, 2 * SMALL.steps - 1, 1)
        case "nan":
            logs[1].ends[1]["nan_tensors"] = 1
        case "forgotten":
            logs[1].empty.pop()
    console = Console(width=100)

    assert conclude(Screen(console, SMALL), folder, samples, order, logs, story)["ok"] is False
    assert "✘" in capsys.readouterr().out


def test_an_untouched_answer_is_ok(demo: tuple[Path, dict[str, Any], str], library: list[Sample]) -> None:
    """The control of the test above."""
    folder, result, _ = demo
    samples, order, logs = _read_again(folder, library)
    story = Story(result["incident"], result["bad_steps"], 2 * SMALL.steps, 1)

    assert conclude(Screen(Console(width=60), SMALL), folder, samples, order, logs, story)["ok"] is True


def test_an_interrupt_ends_every_rank(tmp_path: Path) -> None:
    """When the demo has ended, so have the ranks that it had started."""
    process = _start(tmp_path)
    logs = RankLogs(tmp_path / "firstbad-demo" / "logs" / "bare", 2)
    deadline = time.monotonic() + 120
    while len(logs.pids) < 2 or not logs.steps_done:
        assert process.poll() is None and time.monotonic() < deadline
        logs.read_new()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    logs.close()

    assert process.returncode == 130, out + err
    assert "the ranks have ended" in out
    assert not any(Path(f"/proc/{pid}").exists() for pid in logs.pids.values())


def test_a_folder_that_is_no_demo_is_refused(tmp_path: Path) -> None:
    """Nothing in it is touched; the message says what to do."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("mine", "file"):
        process = _start(tmp_path, "--dir", name)
        _, err = process.communicate()
        assert process.returncode == 2
        assert "give another" in err
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_a_failing_training_shows_the_end_of_its_output(tmp_path: Path) -> None:
    """With the path of the whole of it."""
    from firstbad.cli.demo.errors import TrainingFailed
    from firstbad.cli.demo.torchrun import Training

    (tmp_path / "train.py").write_text("raise SystemExit('no such luck')")
    with pytest.raises(TrainingFailed, match=r"(?s)ended with code 1. Its output is in .*bare.txt; .*no such luck"):
        Training(tmp_path, "bare", 1).run(lambda logs: None)
