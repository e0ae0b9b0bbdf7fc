"""DDP under a torch without `ProcessGroup.register_pre_hook`: the attribute is hidden in this rank, for good."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from drills import Drill, bits
from drills import train as _train
from habits import has_no_data as _has_no_data
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent.guard import Guard

WIDTH = 7


def hide() -> None:
    """Make this rank's torch an older one, where it is not one already."""
    if hasattr(dist.ProcessGroup, "register_pre_hook"):
        del dist.ProcessGroup.register_pre_hook


class Hookless:
    """In place of a mutant: the right guard, on such a torch."""

    def apply(self) -> None:
        """Called in a rank before its guard is made."""
        hide()


def train(rank: int, drill: Drill, journal: str) -> dict[str, Any]:
    """A drill."""
    hide()
    return _train(rank, drill, journal)


def has_no_data(rank: int, drill: Drill, journal: str) -> Any:
    """The habit of that name."""
    hide()
    return _has_no_data(rank, drill, journal)


@dataclass(frozen=True)
class Loop:
    """A training run with DDP. `hook` is what the script registers: nothing, a hook of its own, or one in C++."""

    hook: str = ""
    late: bool = False
    """It registers after its first step."""
    guard: str = "first"
    """When the guard is made: before the DDP ("first"), after its hook is registered ("last"), never ("")."""
    detach: bool = False
    """The guard leaves after the second step."""
    view: bool = False
    keep: bool = False
    """Gradients become zero where they are, instead of None."""
    sparse: bool = False
    quiet: bool = False
    """Two micro steps, the first of which does not reduce."""
    static: bool = False
    unused: bool = False
    """Half of the model takes no part."""
    small_buckets: bool = False
    uneven: str = ""
    """`DDP.join` for the first three steps, of which rank 0 has one; divided by ranks at start or that are left."""
    bad_step: int | None = None

    def __str__(self) -> str:
        said = [f"{k}_{v}" if isinstance(v, str) else k for k, v in vars(self).items() if v and k != "guard"]
        return "_".join(said) or "plain"


class Net(nn.Module):
    """An embedding and layers of odd sizes; the gradient of `second` is made bad on demand, from a good loss."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, sparse=loop.sparse)
        self.first, self.second, self.aside = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.use_all = not loop.unused

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(self.table(rows)).tanh()).tanh()
        return (self.aside(x) if self.use_all else x).square().mean()


def loop(rank: int, run: Loop, journal: str) -> dict[str, Any]:
    """Train four steps; bits of every gradient after reduction and of the weights, and the script's own view of DDP."""
    hide()
    torch.manual_seed(3)
    guard = Guard(journal=journal) if run.guard == "first" else None
    net = Net(run)
    model = DistributedDataParallel(
        net,
        gradient_as_bucket_view=run.view,
        static_graph=run.static,
        find_unused_parameters=run.unused,
        bucket_cap_mb=0.0001 if run.small_buckets else 25,
    )
    calls: list[bool] = []
    if not run.late:
        _register(model, run.hook, calls)
    if run.guard == "last":
        guard = Guard(journal=journal)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    grads = []

    def take(step: int) -> None:
        optimizer.zero_grad(set_to_none=not run.keep)
        for micro in range(1 + run.quiet):
            rows = torch.randint(5, (6,), generator=torch.Generator().manual_seed(step * 100 + micro * 10 + rank))
            quiet = run.quiet and micro == 0
            with model.no_sync() if quiet else contextlib.nullcontext(), _bad(net, step == run.bad_step and rank == 1):
                model(rows).backward()
        grads.append(bits(p.grad.to_dense() for p in net.parameters() if p.grad is not None))
        optimizer.step()
        if run.late and step == 0:
            _register(model, run.hook, calls)
        if run.detach and step == 1 and guard is not None:
            guard.detach()

    joined = 3 if run.uneven else 0
    if joined:
        with model.join(divide_by_initial_world_size=run.uneven == "initial"):
            for step in range(joined if rank else 1):
                take(step)
    for step in range(joined, 4):
        take(step)
    own = [hook.__name__ for hook, _ in model._comm_hooks]
    said = model._get_ddp_logging_data().get("comm_hook", "")
    again = ""
    if run.hook:
        with contextlib.suppress(RuntimeError):
            again = "refused"
            _register(model, run.hook, calls)
            again = "taken"
    if guard is not None:
        guard.__exit__(None, None, None)
    told = {"own": own, "said": said, "calls": len(calls), "again": again}
    return {"grads": grads, "params": bits(net.parameters()), "told": told}


def _register(model: DistributedDataParallel, hook: str, calls: list[bool]) -> None:
    if hook == "own":

        def mine(state: list[bool], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            state.append(True)
            return default_hooks.fp16_compress_hook(None, bucket)

        mine.__annotations__.clear()  # strings here, which torch does not take
        model.register_comm_hook(calls, mine)
    elif hook:
        model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, hook))


@contextlib.contextmanager
def _bad(net: Net, on: bool) -> Any:
    handle = net.second.weight.register_hook(lambda grad: grad * math.nan) if on else None
    yield
    if handle is not None:
        handle.remove()
