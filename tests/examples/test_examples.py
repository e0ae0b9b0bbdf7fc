"""Every example: clean, bad, bare, by its callback; what the ledger says of each, and what is left of the weights."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import exampleworld
import pytest
import torch
from exampleworld import EXAMPLES, Play
from played import dense

from firstbad.schema import Action, Outcome, RunEnd, Step, Testimony, Verdict

STEPS, BAD_STEP, BAD_RANK = 6, 3, 1
BAD = ("--bad-step", str(BAD_STEP), "--bad-rank", str(BAD_RANK))


@dataclass(frozen=True)
class Example:
    """What a test has to know of an example."""

    name: str
    framework: str = ""
    """Imported once, before the ranks are made."""
    callback: bool = False
    bad_micro_step: int = 0
    bad_samples: tuple[str, ...] = ()
    """The first bad micro-batch as the ledger writes it."""

    @property
    def installed(self) -> bool:
        return not self.framework or importlib.util.find_spec(self.framework.partition(".")[0]) is not None


CASES = [
    Example("plain_pytorch", bad_micro_step=1, bad_samples=("1-3-1-0", "1-3-1-1", "1-3-1-2", "1-3-1-3")),
    Example("torchtitan_style", bad_samples=("12", "13")),
    Example("accelerate_loop", "accelerate", bad_samples=("52-55",)),
    Example("hf_trainer", "transformers.trainer", True, bad_samples=("26", "27")),
    Example("lightning_trainer", "lightning.pytorch", True, bad_samples=("49", "51", "53", "55")),
    Example("lightning_fabric", "lightning.fabric", True, bad_samples=("49", "51", "53", "55")),
]
LAUNCHED = [case for case in CASES if case.name in ("torchtitan_style", "hf_trainer", "lightning_trainer")]
"""One of each kind of loop; torchrun pays each framework's import in every rank."""


@dataclass(frozen=True)
class Performance:
    """One example, run in every way."""

    example: Example
    plays: dict[str, Play]

    def __getitem__(self, name: str) -> Play:
        return self.plays[name]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def performed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Performance:
    """The runs of one example."""
    example: Example = request.param
    if not example.installed:
        pytest.skip(f"{example.framework} is not installed")
    told = ("--callback",) if example.callback else ()
    ways = {
        "bare": ((), False),
        "bare, bad": (BAD, False),
        "clean": (told, True),
        "bad": (BAD, True),
    }
    # By plain python a callback is the only agent; where there is none, the script tells its data by itself.
    ways["told, bad"] = ((*BAD, *told), not example.callback)
    plays = {
        name: Play(example.name, tmp_path_factory.mktemp("play"), arguments, launched)
        for name, (arguments, launched) in ways.items()
    }
    exampleworld.perform((example.framework,) if example.framework else (), list(plays.values()))
    return Performance(example, plays)


def assert_complete(play: Play) -> None:
    """Both ranks have every step, every sequence number, and a run end that says so."""
    assert [(row.rank, row.step) for row in play.of(Step)] == [(r, s) for r in (0, 1) for s in range(STEPS)]
    assert [(end.rank, end.outcome, end.steps) for end in play.of(RunEnd)] == [
        (rank, Outcome.FINISHED, STEPS) for rank in (0, 1)
    ]
    assert dense(play.records)
    assert not any(end.observers_off for end in play.of(RunEnd))


def assert_named(play: Play, example: Example) -> None:
    """One bad step, the true one; everything else was applied on both ranks."""
    (event,) = {verdict.event_id for verdict in play.of(Verdict)}
    for verdict in play.of(Verdict):
        place = (verdict.step, verdict.micro_step, verdict.offender_rank, verdict.first_bad_stage, verdict.action)
        assert place == (BAD_STEP, example.bad_micro_step, BAD_RANK, "loss", Action.SKIP)
    (testimony,) = play.of(Testimony)
    assert (testimony.event_id, testimony.rank) == (event, BAD_RANK)
    skipped = {(row.rank, row.step) for row in play.of(Step) if row.skipped_step}
    assert skipped == {(0, BAD_STEP), (1, BAD_STEP)}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def finite(weights: dict[str, torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_a_clean_run_is_complete_and_the_same_as_without_the_agent(performed: Performance) -> None:
    """The agent takes no part in the weights, and no step is bad."""
    clean = performed["clean"]
    assert_complete(clean)
    assert not clean.of(Verdict)
    assert not performed["bare"].records
    first, second = clean.weights()
    assert equal(first, second)
    assert equal(first, performed["bare"].weights()[0])


def test_the_fault_ruins_a_bare_run(performed: Performance) -> None:
    """Else the other tests would prove nothing: without the agent the weights of both ranks end as NaN."""
    assert not any(finite(weights) for weights in performed["bare, bad"].weights())


def test_the_no_change_door_names_rank_and_step_and_saves_the_weights(performed: Performance) -> None:
    """Both ranks skip the one bad step and go on with the same finite weights."""
    bad = performed["bad"]
    assert_complete(bad)
    assert_named(bad, performed.example)
    first, second = bad.weights()
    assert finite(first)
    assert equal(first, second)


def test_trainer_step_and_samples_are_in_the_ledger(performed: Performance) -> None:
    """
    Every row has the trainer's step and ids of its own; the testimony names the micro-batch without a label. Where the
    framework has callbacks, its callback has made the guard.
    """
    example, bad = performed.example, performed["told, bad"]
    assert_complete(bad)
    assert_named(bad, example)
    assert equal(bad.weights()[0], performed["bad"].weights()[0])
    for play in (bad, performed["clean"]):
        assert all(row.trainer_step == row.step for row in play.of(Step))
        assert len({row.sample_count for row in play.of(Step)}) == 1
        assert len({(row.rank, row.sample_ids) for row in play.of(Step)}) == 2 * STEPS
        assert all(row.valid_tokens is not None for row in play.of(Step))
    (testimony,) = bad.of(Testimony)
    assert (testimony.sample_ids, testimony.valid_tokens) == (example.bad_samples, 0)
    assert testimony.trainer_step == BAD_STEP


def test_micro_steps_are_the_frameworks_own(performed: Performance) -> None:
    """Two backwards make one step, however the framework accumulates; its learning rate schedule is in the rows."""
    assert {row.micro_steps for row in performed["clean"].of(Step)} == {2}
    rates = [row.learning_rate for row in performed["clean"].of(Step) if row.rank == 0]
    scheduled = performed.example.name not in ("torchtitan_style", "lightning_fabric")
    assert (len(set(rates)) == STEPS) is scheduled


@pytest.mark.torchrun
@pytest.mark.parametrize("example", LAUNCHED, ids=lambda case: case.name)
def test_by_a_real_torchrun(example: Example, tmp_path: Path) -> None:
    """The command of examples/README.md, without a callback: exit code 0, the true name, the same finite weights."""
    if not example.installed:
        pytest.skip(f"{example.framework} is not installed")
    script = str(EXAMPLES / example.name / "train.py")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "firstbad.agent")
    done = subprocess.run(
        [sys.executable, *launcher, "--journal", "journal", script, *BAD, "--save", "."],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("FIRSTBAD_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    bad = Play(example.name, tmp_path)
    assert_complete(bad)
    assert_named(bad, example)
    first, second = bad.weights()
    assert finite(first)
    assert equal(first, second)


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.parent.name)
def test_every_example_parses_and_is_listed(script: Path) -> None:
    """Examples that are not run here, too; each has its line in examples/README.md."""
    ast.parse(script.read_text())
    assert f"{script.parent.name}/" in (EXAMPLES / "README.md").read_text()


def test_the_readme_about_a_local_branch_quotes_the_lines_of_its_script() -> None:
    """The watchdog's words come with line numbers: the step of one side, the backward of the other."""
    folder = EXAMPLES / "local_nan_branch"
    script = (folder / "train.py").read_text().splitlines()
    readme = (folder / "README.md").read_text()

    quoted = re.findall(r"(waiting in the decision of step 3|rank 1 is in step 3) at train\.py:(\d+)", readme)
    assert {side: script[int(line) - 1].strip() for side, line in quoted} == {
        "waiting in the decision of step 3": "optimizer.step()",
        "rank 1 is in step 3": "loss.backward()",
    }
    told = re.findall(r"Line (\d+) is `([^`]+)`; line (\d+) is the `([^`]+)`", readme)
    assert [(script[int(a) - 1].strip(), script[int(c) - 1].strip()) for a, _, c, _ in told] == [
        (b, d) for _, b, _, d in told
    ]
    assert told
