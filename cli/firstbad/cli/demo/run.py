"""
`firstbad demo`: lay out the data, train bare, train guarded, collect, tell the incident, hold it against the log.

Exit codes: 0 the ledger names what the script's own log names and training survived; 1 it does not; 2 the demo could
not be carried out; 130 and 143 interrupted by SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from firstbad.cli.demo.compare import compare_with_log, compare_with_order, expected_offenders
from firstbad.cli.demo.corpus import Sample, read_corpus
from firstbad.cli.demo.errors import DemoError
from firstbad.cli.demo.folder import demo_folder, note, shown
from firstbad.cli.demo.order import Order, find_order
from firstbad.cli.demo.ranklogs import RankLogs
from firstbad.cli.demo.recipe import Recipe
from firstbad.cli.demo.screen import BARE, GUARDED, Screen
from firstbad.cli.demo.story import INCIDENT_SQL, RUN_ID, Story, tell
from firstbad.cli.demo.torchrun import Training
from firstbad.cli.demo.verdict import Check, judge
from firstbad.cli.encoding import json_text
from firstbad.schema import FirstbadError

_PLAIN_WIDTH = 100
AGENT = (
    "-m", "firstbad.agent", "--journal", "journal", "--run-id", RUN_ID, "--policy", "skip",
)  # fmt: skip
"""What makes the second training a guarded one; nothing else differs."""


def main(argv: Sequence[str], recipe: Recipe | None = None, screen: Screen | None = None) -> int:
    """Run the demo; see the module for the exit codes. `recipe` makes it smaller, `screen` shows it elsewhere."""
    options = _parser().parse_args(argv)
    screen = screen or Screen(_console(sys.stderr if options.json else sys.stdout), recipe or Recipe())
    started = time.monotonic()
    try:
        with _sigterm_interrupts():
            _require("torch", "numpy", "chdb", "clickhouse_connect", "pyarrow")
            with demo_folder(options.dir) as folder:
                result = _demonstrate(screen, folder)
    except _Terminated:
        screen.console.print("\nfirstbad: terminated; the ranks have ended", style="bold")
        return 143
    except KeyboardInterrupt:
        screen.console.print("\nfirstbad: interrupted; the ranks have ended", style="bold")
        return 130
    except FirstbadError as error:
        if options.json:
            print(json_text({"ok": False, "error": str(error)}))
        print(f"firstbad: {error}", file=sys.stderr)
        return 2
    seconds = round(time.monotonic() - started, 1)
    screen.say(f"{'All of it holds' if result['ok'] else 'NOT all of it holds'}, in {seconds:.0f} seconds.", "bold")
    if options.json:
        print(json_text({**result, "seconds": seconds}))
    return 0 if result["ok"] else 1


def _demonstrate(screen: Screen, folder: Path) -> dict[str, Any]:
    recipe = screen.recipe
    screen.title(
        "firstbad demo: who broke the training?",
        f"A small GPT learns to write function bodies, on {recipe.world} ranks, twice from the same seed: bare, then "
        "under firstbad. Nothing is injected.",
    )
    samples, order = _data(screen, folder)

    bare = Training(folder, "bare", recipe.world)
    guarded = Training(folder, "guarded", recipe.world, agent=AGENT)
    screen.section("Training as it is")
    bare_logs = _train(screen, bare, BARE)
    screen.section("The same training under firstbad: -m firstbad.agent before the script")
    guarded_logs = _train(screen, guarded, GUARDED)

    screen.section("What each left behind")
    screen.curves(bare_logs.curve(), guarded_logs.curve(), guarded_logs.left_out())

    screen.section("Who was first? The ledger answers in SQL")
    with screen.busy("Loading the journals of all ranks into the ledger"):
        story = tell(folder / "journal", folder / "db")
    screen.say(f"{story.loaded:,} records are in {shown(folder / 'db')}.")
    if story.incident is not None:
        screen.incident(story.incident, INCIDENT_SQL)
    return conclude(screen, folder, samples, order, (bare_logs, guarded_logs), story)


def _data(screen: Screen, folder: Path) -> tuple[list[Sample], Order]:
    from firstbad.cli.demo.dataset import save

    recipe = screen.recipe
    screen.section("The data")
    with screen.busy("Reading the functions of this Python's standard library"):
        samples = read_corpus()
        labels = [sample.labels(recipe.context) for sample in samples]
        order = find_order(labels, recipe)
        save(folder / "data.npz", samples, order, recipe)
    note(folder, seed=order.seed, rule=recipe.rule, bad_steps=order.bad_steps)
    without = sum(not count for count in labels)
    screen.say(
        f"{len(samples):,} functions of Python {sys.version.split()[0]}. Signature and docstring are the prompt, "
        f"masked in the loss; the body is the answer; all cut at {recipe.context} tokens. In {without:,} of them the "
        f"prompt fills the window: no label is left. When all {recipe.batch} samples of a micro-batch are such, "
        "(token_loss * mask).sum() / mask.sum() is 0/0."
    )
    screen.say(f"Seed {order.seed}: {recipe.rule}. Same library, same order.", "dim")
    return samples, order


def _train(screen: Screen, training: Training, colour: str) -> RankLogs:
    screen.code(shlex.join(["torchrun", *training.arguments]))
    with screen.training(colour) as watch:
        return training.run(watch)


def conclude(
    screen: Screen,
    folder: Path,
    samples: Sequence[Sample],
    order: Order,
    logs: tuple[RankLogs, RankLogs],
    story: Story,
) -> dict[str, Any]:
    """Compare, check, say what to try next; the result, whose `ok` decides the exit code. `logs`: bare, guarded."""
    bare, guarded = logs
    shards = {sample.id: sample.shard for sample in samples}
    expected = list(expected_offenders(guarded.empty).values())
    wrong = compare_with_log(guarded.empty, story.bad_steps, shards)
    unlike = compare_with_order(order.empty, bare.empty, "bare") + compare_with_order(
        order.empty, guarded.empty, "under firstbad"
    )
    screen.section("Is it right? The training script kept a log of its own")
    screen.comparison(expected, wrong)
    screen.console.print()
    checks = [
        Check(
            not wrong and bool(expected),
            f"the ledger names micro step, rank, stage and samples of all {len(expected)} bad steps, and no other",
        ),
        *judge(bare, guarded, order, screen.recipe, story.step_rows, unlike),
    ]
    for check in checks:
        screen.check(check.ok, check.text)
        for difference in [*map(str, wrong)] if check is checks[0] else check.differences:
            screen.difference(difference)
    ok = all(check.ok for check in checks)
    _say_next(screen, folder, expected[0].step if expected else 0)
    return {
        "ok": ok,
        "seed": order.seed,
        "rule": screen.recipe.rule,
        "bare": {"ruined_from_step": bare.ruined_from, "last_loss": _last(bare)},
        "guarded": {"skipped_steps": guarded.left_out(), "last_loss": _last(guarded)},
        "incident": story.incident,
        "bad_steps": story.bad_steps,
        "expected": [
            {"step": it.step, "micro_step": it.micro_step, "rank": it.rank, "sample_ids": list(it.sample_ids)}
            for it in expected
        ],
        "checks": [{"ok": check.ok, "text": check.text} for check in checks],
        "differences": [*map(str, wrong), *(text for check in checks for text in check.differences)],
        "folder": str(folder),
        "db": str(folder / "db"),
    }


def _say_next(screen: Screen, folder: Path, step: int) -> None:
    firstbad, db = _command(), shlex.quote(shown(folder / "db"))
    screen.section("Try next")
    screen.code(f"{firstbad} show {RUN_ID} {step} --db {db}")
    screen.code(f"{firstbad} incidents --db {db}")
    screen.code(f"{firstbad} verify {RUN_ID} --db {db}")
    query = f"SELECT step, rank, loss, valid_tokens FROM steps WHERE step = {step}"  # noqa: S608  # a number
    screen.code(f'{firstbad} sql --db {db} "{query}"')
    screen.say("and in a training of your own:", "dim")
    screen.code("torchrun --nproc-per-node 8 -m firstbad.agent your_train.py --its --own --arguments")
    screen.console.print()


def _last(logs: RankLogs) -> float:
    curve = logs.curve()
    return curve[-1] if curve else math.nan


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firstbad demo",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Trains a small GPT twice on this machine, bare and under firstbad, and tells the incident from "
        "SQL.\nReal torchrun, 4 ranks, nothing injected; two to three minutes on two cores.",
        epilog="exit codes: 0 the ledger names exactly what the training script's own log names, and training survived;"
        "\n1 it does not; 2 the demo could not be carried out; 130, 143 interrupted",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("firstbad-demo"),
        metavar="DIR",
        help="folder for data, logs and ledger (default: %(default)s); the folder of an earlier demo is replaced",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to standard error")
    return parser


def _console(stream: Any) -> Console:
    # A pipe has no width; long ids should not be folded at 80.
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False)


def _require(*names: str) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"the demo needs {', '.join(missing)}, which this Python does not have; "
            "pip install 'firstbad[collector]' torch numpy"
        )


def _command() -> str:
    if shutil.which("firstbad"):
        return "firstbad"
    beside = Path(sys.executable).with_name("firstbad")
    return shlex.quote(shown(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m firstbad.cli"


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def raise_terminated(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise _Terminated

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
