"""A script with ordered faults in it, as a user writes one with `firstbad.agent.testing`."""

from __future__ import annotations

import datetime as dt
import math
import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from firstbad.agent.guard import Guard
from firstbad.agent.testing import Fault, FaultInjector, poison_gradient, poison_input


@dataclass(frozen=True)
class Order:
    """The faults of a run, and how its model is trained."""

    faults: tuple[Fault, ...] = ()
    wrap: str = "ddp"
    steps: int = 4
    micro_steps: int = 1
    settings: tuple[tuple[str, Any], ...] = ()


def net() -> nn.Module:
    """Three named layers, and an in-place activation behind the second."""
    torch.manual_seed(3)
    model = nn.Sequential()
    model.add_module("inlet", nn.Linear(4, 8))
    model.add_module("middle", nn.Linear(8, 8))
    model.add_module("act", nn.SiLU(inplace=True))
    model.add_module("outlet", nn.Linear(8, 2))
    return model


def wrapped(model: nn.Module, how: str) -> nn.Module:
    """The model under DDP, fully_shard or a compiler."""
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in (model.inlet, model.middle, model.outlet, model):
            fully_shard(layer)
        return model
    model = nn.parallel.DistributedDataParallel(model)
    return torch.compile(model, backend="eager") if how == "compiled" else model  # type: ignore[return-value]


def train(rank: int, order: Order, journal: str) -> dict[str, Any]:
    """Train; returns the injector's own log and the error that ended the run."""
    guard = Guard(journal=journal, **dict(order.settings))
    model = wrapped(net(), order.wrap)
    inject = FaultInjector(model, *order.faults)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    error: RuntimeError | None = None
    try:
        for step in range(order.steps):
            optimizer.zero_grad()
            for micro in range(order.micro_steps):
                batch = {"x": torch.full((2, 4), 0.1 * (rank + 1)), "ids": torch.arange(2)}
                with inject.at(step, micro):
                    model(inject.inputs(batch)["x"]).square().mean().backward()
            optimizer.step()
    except RuntimeError as stopped:
        error = stopped
    guard.__exit__(type(error) if error else None, error, None)
    return {"log": [str(fault) for fault in inject.log], "error": (type(error).__name__, str(error)) if error else None}


def hangs(rank: int, order: Order, journal: str) -> dict[str, Any]:
    """As `train`, in a process group that waits two seconds for a peer."""
    dist.destroy_process_group()
    folder = os.environ["RANKWORLD_FOLDER"]
    limit = dt.timedelta(seconds=2)
    dist.init_process_group("gloo", init_method=f"file://{folder}/short", rank=rank, world_size=2, timeout=limit)
    return train(rank, order, journal)


def misses(rank: int, order: Order, journal: str) -> list[str]:
    """Drills that put nothing in: each must say so."""
    del order, journal
    from firstbad.agent.testing import InjectionFailed, poison_parameter

    model, said = net(), []

    def attempt(function: Any) -> None:
        try:
            function()
        except InjectionFailed as error:
            said.append(str(error))

    attempt(lambda: FaultInjector(model, poison_parameter("outlet.wieght", step=0, rank=rank)))
    attempt(lambda: FaultInjector(model, poison_gradient("inlett", step=0, rank=rank)))

    def input_not_passed() -> None:
        with FaultInjector(model, poison_input(step=0, rank=rank)).at(0):
            model(torch.ones(1, 4)).sum().backward()

    def only_ids() -> None:
        inject = FaultInjector(model, poison_input(step=0, rank=rank))
        with inject.at(0):
            inject.inputs([torch.arange(3)])

    def no_backward() -> None:
        with FaultInjector(model, poison_gradient("middle", step=0, rank=rank, value=math.inf)).at(0):
            model(torch.ones(1, 4))

    for function in (input_not_passed, only_ids, no_backward):
        attempt(function)
    FaultInjector(model, poison_parameter("no.such", step=0, rank=rank + 1))  # not this rank's
    return said


def batches(rank: int, order: Order, journal: str) -> dict[str, Any]:
    """Batches of every form: the copy holds the bad element, the script's own tensors stay as they are."""
    del order, journal, rank
    from collections import OrderedDict, UserDict, namedtuple

    pair = namedtuple("pair", "ids x")  # noqa: PYI024 - as dataloaders make them
    x, ids = torch.ones(2, 3).T, torch.arange(2)
    forms = [x, {"ids": ids, "x": x}, (ids, [x]), pair(ids, x), OrderedDict(x=x), UserDict(x=x), [{"deep": (x,)}]]
    out = []
    for form in forms:
        inject = FaultInjector(net(), poison_input(step=1, rank=0), rank=0)
        with inject.at(1):
            first, second = inject.inputs(form), inject.inputs(form)
        out.append((type(first) is type(form), _bad(first), _bad(second), _bad(form)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generator = torch.random.get_rng_state()
        FaultInjector(net(), rank=0).inputs(x)
    return {"forms": out, "rng": torch.equal(generator, torch.random.get_rng_state()), "strides": x.stride()}


def _bad(item: Any) -> int:
    if isinstance(item, torch.Tensor):
        return int((~torch.isfinite(item)).sum())
    values = item.values() if hasattr(item, "values") else item
    return sum(_bad(value) for value in values)
