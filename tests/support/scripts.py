"""Small training scripts that are not drills of one injected fault: `script(rank, drill, journal)`."""

from __future__ import annotations

import copy
import io
import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from drills import Drill, bits
from torch import nn

from firstbad.agent.guard import Guard


def lopsided(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1's guard has decided one step fewer than rank 0's when they meet."""
    guard = Guard(journal=journal)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if rank == 0:
        guard.fixedpoint.life.step += 1  # as if rank 1's loop had left one decision out
    dist.barrier()
    try:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None, ""


def leave_early(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1 dies without a word before the third decision."""
    Guard(journal=journal)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        if rank == 1 and step == 2:
            os.kill(os.getpid(), 9)
        try:
            optimizer.step()
        except RuntimeError as error:
            return type(error).__name__, str(error)
    return None, ""


def masked(rank: int, drill: Drill, journal: str | None) -> dict[str, Any]:
    """Supervised fine-tuning in small: rank 1's micro-batch of step 1 has no label;
    `drill.optimizer` names the form."""
    torch.manual_seed(0)
    guard = Guard(journal=journal) if drill.guard else None
    net: Any = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        if step in drill.leave_out:
            continue
        tokens = torch.arange(6).reshape(1, 6) + rank
        mask = torch.zeros(1, 6) if (rank, step) == (1, 1) else torch.tensor([[0.0, 0, 0, 1, 1, 1]])
        if guard is not None:
            guard.batch(sample_ids=[f"{step}/{rank}"], valid_tokens=int(mask.sum()))
        optimizer.zero_grad()
        logits = model(tokens).flatten(0, 1)
        if drill.optimizer == "ignore_index":
            labels = torch.where(mask > 0, tokens, -100).flatten()
            loss = nn.functional.cross_entropy(logits, labels, ignore_index=-100)
        else:
            token_loss = nn.functional.cross_entropy(logits, tokens.flatten(), reduction="none")
            loss = (token_loss * mask.flatten()).sum() / mask.sum()
        loss.backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return {"params": bits(net.parameters()), "finite": all(bool(torch.isfinite(p).all()) for p in net.parameters())}


def _net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def _report(model: nn.Module, error: BaseException | None = None) -> dict[str, Any]:
    return {
        "params": bits(model.parameters()),
        "finite": all(bool(torch.isfinite(p).all()) for p in model.parameters()),
        "error": None if error is None else (type(error).__name__, str(error)),
    }


def disagree(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1 was started with another policy."""
    del drill
    try:
        Guard(journal=journal, policy="observe" if rank == 1 else "skip")
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


def refuse(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 2 is given a setting that cannot be."""
    del drill
    try:
        Guard(journal=journal, policy="sikp" if rank == 2 else "skip")
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


def broken_observer(rank: int, drill: Drill, journal: str) -> Any:
    """An observer of rank 1 fails from its second call on; `drill.faults` decides whether there is a fault too."""
    guard = Guard(journal=journal)
    if rank == 1:
        guard.panel.losses._unscaled = _explode  # type: ignore[method-assign]
    return _loop(guard, rank, bad_step=2 if drill.faults else None)


def broken_guard(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1's ballot cannot be made at step 1, while rank 0's loss is bad there."""
    del drill
    guard = Guard(journal=journal)
    if rank == 1:
        original = guard.panel.gradients.watch

        def watch(function: Any) -> Any:
            if guard.fixedpoint.life.step == 1:
                raise RuntimeError("a bug of the agent's own")
            return original(function)

        guard.panel.gradients.watch = watch  # type: ignore[method-assign]
    return _loop(guard, rank, bad_step=1, bad_rank=0)


def _explode(*_: Any) -> Any:
    raise ZeroDivisionError("an observer's own fault")


def _loop(guard: Guard, rank: int, bad_step: int | None, bad_rank: int = 0) -> dict[str, Any]:
    model = nn.parallel.DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), float(rank))).sum()
        (loss * float("nan") if (step, rank) == (bad_step, bad_rank) else loss).backward()
        optimizer.step()
    guard.__exit__(None, None, None)
    return _report(model)


def script_error(rank: int, drill: Drill, journal: str) -> Any:
    """The script fails in its second micro step's forward on rank 0; the other rank ends."""
    del drill
    guard = Guard(journal=journal)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    try:
        guard.batch(sample_ids=["first"], valid_tokens=1)
        model(torch.ones(1, 4)).sum().backward()
        guard.batch(sample_ids=["second"], shard_id="s", valid_tokens=2)
        if rank == 0:
            raise ValueError("boom")
    except ValueError as error:
        guard.__exit__(type(error), error, None)
    else:
        guard.__exit__(None, None, None)
    return None


def scaler(rank: int, drill: Drill, journal: str) -> Any:
    """An FP16-style loop with a GradScaler whose scale overflows the gradients of step 1 on every rank."""
    guard = Guard(journal=journal) if drill.guard else None
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    del rank
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        grad_scaler.scale(loss * 1.0).backward()
        if step == 1:
            next(model.parameters()).grad.view(-1)[0] = float("inf")  # type: ignore[union-attr]
        grad_scaler.step(optimizer)
        grad_scaler.update()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model) | {"scale": grad_scaler.get_scale()}


def adversaries(rank: int, drill: Drill, journal: str) -> Any:
    """Two models, two optimizers, one backward for both; a bad gradient reaches only the second model."""
    guard = Guard(journal=journal) if drill.guard else None
    del rank
    one, two = _net(), _net()
    first, second = torch.optim.Adam(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
    for step in range(3):
        if step in drill.leave_out:
            continue
        first.zero_grad()
        second.zero_grad()
        (one(torch.ones(1, 4)).sum() + two(torch.ones(1, 4)).sum()).backward()
        if drill.guard and step == 1:
            next(two.parameters()).grad.view(-1)[0] = float("nan")  # type: ignore[union-attr]
        first.step()
        second.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(one) | {"second": bits(two.parameters())}


def closures(rank: int, drill: Drill, journal: str) -> Any:
    """Steps with closures, one of them bad; LBFGS passes through; a step without a backward is no step."""
    guard = Guard(journal=journal)
    del rank, drill
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    optimizer.step()  # as a checkpoint loader does to make the state
    returned = []
    for step in range(3):

        def closure(step: int = step) -> torch.Tensor:
            calls.append(step)
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(1, 4)).sum()
            (loss * float("nan") if step == 1 else loss).backward()
            return loss

        returned.append(optimizer.step(closure) is not None)
    other = _net()
    lbfgs = torch.optim.LBFGS(other.parameters(), max_iter=2)

    def many() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = other(torch.ones(1, 4)).square().sum()
        loss.backward()
        return loss

    lbfgs.step(many)
    guard.__exit__(None, None, None)
    return _report(model) | {"calls": calls, "returned": returned}


def masks_by_design(rank: int, drill: Drill, journal: str) -> Any:
    """A model that takes NaN inputs and gives -inf outputs by design, and holds a -inf buffer; nothing is wrong."""
    del drill, rank

    class Masking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")] * 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.nan_to_num(x)) + self.mask

    guard = Guard(journal=journal)
    model = Masking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        torch.softmax(model(torch.tensor([[1.0, float("nan"), 2.0, 3.0]])), -1).square().sum().backward()
        optimizer.step()
    guard.__exit__(None, None, None)
    return _report(model)


def late_group(rank: int, drill: Drill, journal: str) -> Any:
    """The guard is made before the process group, as the launcher does."""
    import rankworld

    guard = Guard(journal=journal, run_id="late")
    rankworld.join(rank, int(os.environ["WORLD_SIZE"]), os.environ["RANKWORLD_FOLDER"])
    return _loop(guard, rank, bad_step=1 if drill.faults else None)


def no_folder(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1's journal folder is a file."""
    del drill
    path = os.path.join(journal, f"rank{rank}")
    if rank == 1:
        os.makedirs(journal, exist_ok=True)
        open(path, "w").close()
        path = os.path.join(path, "below")
    try:
        Guard(journal=path)
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None


BAD_EVERY = 4
"""`until_killed` has a bad loss in every step that this divides, but the first."""


def until_killed(rank: int, journal: str, run_id: str, truth: str) -> None:
    """
    Train until killed, or until a peer is. One line to `truth`<rank> for every optimizer step that returned: step,
    monotonic nanoseconds, and what the machine took from a thread that sleeps as the journal's writer does, at worst.
    """
    guard = Guard(journal=journal, run_id=run_id, max_consecutive_skips=10**6, max_skip_ratio=1.0)
    model = nn.parallel.DistributedDataParallel(_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    worst = 0

    def watch() -> None:
        nonlocal worst
        while True:
            begun = time.monotonic_ns()
            time.sleep(0.005)
            worst = max(worst, time.monotonic_ns() - begun - 5_000_000)

    threading.Thread(target=watch, daemon=True).start()
    out = os.open(f"{truth}{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = 0
    try:
        while True:
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), float(rank))).square().mean()
            bad = step and step % BAD_EVERY == 0 and rank == (step // BAD_EVERY) % 2
            (loss * float("nan") if bad else loss).backward()
            optimizer.step()
            os.write(out, f"{step} {time.monotonic_ns()} {worst}\n".encode())
            step += 1
    except RuntimeError as error:
        guard.__exit__(type(error), error, None)


def resumes(rank: int, drill: Drill, journal: str) -> Any:
    """Loads a checkpoint whose weights hold a NaN after two good steps, as a resume in the middle of a run does."""
    guard = Guard(journal=journal)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = os.path.join(journal, f"bad{rank}.pt")
    states = []
    del drill
    for step in range(4):
        if step == 2:
            bad = {name: value.clone() for name, value in model.state_dict().items()}
            bad["2.weight"][0, 0] = float("nan")
            torch.save(bad, path)
            model.load_state_dict(torch.load(path))
        optimizer.zero_grad()
        generator = torch.random.get_rng_state()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        states.append(torch.equal(generator, torch.random.get_rng_state()))
    guard.__exit__(None, None, None)
    return {"path": path, "rng_untouched": all(states)}


def profiled(rank: int, drill: Drill, journal: str) -> Any:
    """How often each operator ran in one optimizer step of a script that clips, with a guard or without."""
    guard = Guard(journal=journal) if drill.guard else None
    del rank
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        with torch.profiler.profile() as profile:
            if drill.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), drill.clip)
            optimizer.step()
        counts = {event.key: event.count for event in profile.key_averages() if step == 3}
    if guard is not None:
        guard.__exit__(None, None, None)
    return {name: count for name, count in counts.items() if "norm" in name}


def saves(rank: int, drill: Drill, journal: str) -> Any:
    """Pickles the whole model and optimizer, copies the model, and trains the copy too."""
    del drill, rank
    guard = Guard(journal=journal)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(module: nn.Module, by: torch.optim.Optimizer) -> None:
        by.zero_grad()
        module(torch.ones(1, 4)).sum().backward()
        by.step()

    step(model, optimizer)
    buffer = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer, "parameters": list(model.parameters())}, buffer)
    twin = copy.deepcopy(model)
    twin_optimizer = torch.optim.Adam(twin.parameters(), lr=0.1)
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(twin, twin_optimizer)
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)["model"]
    loaded(torch.ones(1, 4)).sum().backward()
    guard.__exit__(None, None, None)
    return {
        "mentions": b"firstbad" in buffer.getvalue(),
        "equal": bits(model.parameters()) == bits(twin.parameters()),
    }


def group_after_steps(rank: int, drill: Drill, journal: str) -> Any:
    """Takes a step alone, as a warm-up does, before the process group is made; then rank 1 has a bad step."""
    import rankworld

    guard = Guard(journal=journal, run_id="late")
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    del drill
    rankworld.join(rank, int(os.environ["WORLD_SIZE"]), os.environ["RANKWORLD_FOLDER"])
    return _loop(guard, rank, bad_step=1, bad_rank=1)


def clips_then_goes_on(rank: int, drill: Drill, journal: str) -> Any:
    """Clips after the first micro step; the second one makes a bad gradient."""
    guard = Guard(journal=journal)
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del rank, drill
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            model(torch.ones(1, 4)).sum().backward()
            if (step, micro) == (1, 1):
                next(model.parameters()).grad.view(-1)[0] = float("nan")  # type: ignore[union-attr]
            if micro == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    guard.__exit__(None, None, None)
    return _report(model)


def guard_comes_late(rank: int, drill: Drill, journal: str) -> Any:
    """The guard is made after two optimizers and a scheduler; one backward for both, bad for the second model."""
    del rank, drill
    one, two = _net(), _net()
    first, second = torch.optim.AdamW(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(first, 1)
    guard = Guard(journal=journal)
    for step in range(2):
        first.zero_grad()
        second.zero_grad()
        (one(torch.ones(1, 4)).sum() + two(torch.ones(1, 4)).sum()).backward()
        if step == 0:
            next(two.parameters()).grad.view(-1)[0] = float("nan")  # type: ignore[union-attr]
        first.step()
        second.step()
        scheduler.step()
    guard.__exit__(None, None, None)
    return _report(two) | {"one_finite": _report(one)["finite"]}


def batch_norm(rank: int, drill: Drill, journal: str) -> Any:
    """A NaN input in step 2 passes a BatchNorm, whose running statistics are bad then; a uint8 parameter beside."""
    del rank, drill
    guard = Guard(journal=journal)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model.register_parameter("frozen", nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(3):
        x = torch.randn(4, 4)
        if step == 2:
            x[0, 0] = float("nan")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    guard.__exit__(None, None, None)
    return None
