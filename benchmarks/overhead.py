"""
What the guard costs the training thread: `python -m benchmarks.overhead`.

Two gloo ranks train a small model, one thread each, in rounds that go through all variants, so that noise of the
machine hits them alike. Reported per variant: median wall time of a step, median CPU time of the training thread a
step, and their ratios to bare training, paired by round. For the guard also its own account (`decision_seconds` in the
ledger: host time on the training thread), and how much of it is the collective, where it waits for the other rank.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import rankworld

VARIANTS = ("bare", "clip_error_if_nonfinite", "guard", "guard_and_clip")
WARM_UP = 10


def train(_rank: int, variant: str, width: int, layers: int, batch: int, steps: int, journal: str) -> dict[str, Any]:
    """One rank of one variant: step times after the warm-up."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from firstbad.agent import Guard
    from firstbad.schema import Outcome

    torch.manual_seed(0)
    guard = Guard(journal=journal) if variant.startswith("guard") else None
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(batch, width), torch.randn(batch, 1)
    walls, cpus, waits = [], [], _timed_collective(guard)
    for step in range(WARM_UP + steps):
        wall, cpu = time.perf_counter(), time.thread_time()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if variant == "clip_error_if_nonfinite":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        elif variant == "guard_and_clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= WARM_UP:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.thread_time() - cpu)
    if guard is not None:
        guard.finish(Outcome.FINISHED)
    parameters = sum(p.numel() for p in model.parameters())
    wait = statistics.median(waits[WARM_UP:]) if waits else 0.0
    return {"wall": statistics.median(walls), "cpu": statistics.median(cpus), "wait": wait, "parameters": parameters}


def _timed_collective(guard: Any) -> list[float]:
    """Seconds that each decision's all_reduce took, filled as the training goes on."""
    waits: list[float] = []
    if guard is not None:
        consensus = guard.fixedpoint.life.consensus
        decide = consensus.decide

        def timed(*args: Any) -> Any:
            begun = time.perf_counter()
            reduced = decide(*args)
            waits.append(time.perf_counter() - begun)
            return reduced

        consensus.decide = timed
    return waits


def decision_seconds(journal: Path) -> float:
    """The guard's own account of a step, median over ranks and steps after the warm-up."""
    import ledger

    from firstbad.schema import Step

    rows = ledger.of_type(journal, Step)
    return statistics.median(r.decision_seconds for r in rows if r.step >= WARM_UP and r.decision_seconds is not None)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()

    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    own: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    parameters = 0
    for round_number in range(options.rounds):
        for variant in VARIANTS:
            print(f"round {round_number + 1} of {options.rounds}: {variant}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                ranks = rankworld.run(
                    2, train, variant, options.width, options.layers, options.batch, options.steps, folder
                )  # fmt: skip
                if variant.startswith("guard"):
                    own[variant].append(decision_seconds(Path(folder)))
            parameters = ranks[0]["parameters"]
            results[variant].append(
                {key: statistics.mean(rank[key] for rank in ranks) for key in ("wall", "cpu", "wait")}
            )
    _print(results, own, parameters, options)


def _print(results: Any, own: Any, parameters: int, options: argparse.Namespace) -> None:
    import torch

    print(
        f"{'variant':<26}{'wall ms':>9}{'ratio':>8}{'cpu ms':>9}{'ratio':>8}{'guard ms':>10}{'in wait':>9}"
        f"{'work ms':>9}{'% of 250 ms':>13}"
    )
    for variant in VARIANTS:
        cells = [f"{variant:<26}"]
        for key, width in (("wall", 9), ("cpu", 9)):
            values = [entry[key] for entry in results[variant]]
            pairs = zip(values, (entry[key] for entry in results["bare"]), strict=True)
            ratio = statistics.median(value / bare for value, bare in pairs)
            cells.append(f"{statistics.median(values) * 1e3:>{width}.2f}{ratio:>8.3f}")
        if own[variant]:
            guard = statistics.median(own[variant])
            wait = statistics.median(entry["wait"] for entry in results[variant])
            work = guard - wait
            cells.append(f"{guard * 1e3:>10.3f}{wait * 1e3:>9.3f}{work * 1e3:>9.3f}{work / 0.25 * 100:>13.2f}")
        print("".join(cells))
    print(
        f"\n{parameters / 1e6:.2f} M parameters, 2 gloo ranks, {options.rounds} rounds of {options.steps} steps; "
        f"medians, ratios paired by round. torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs.\n"
        f"python -m benchmarks.overhead --rounds {options.rounds} --steps {options.steps} --width {options.width} "
        f"--layers {options.layers} --batch {options.batch}"
    )


if __name__ == "__main__":
    main()
