"""Puts one fault into data, weights or an operator of a running script, and logs where and when it did."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from tests.drills import faults
from tests.drills.batch import Batch
from tests.drills.cell import Cell
from tests.drills.faults import Fault
from tests.drills.state import local
from tests.drills.truth import Sighting

if TYPE_CHECKING:
    from tests.drills.script import Script


class Injector:
    """
    The faults of one rank. It touches what a user's script has in its hands, never the guard; `log` is the truth.

    An injector that is not armed does nothing: the reference run goes through the same code.
    """

    def __init__(self, cell: Cell, rank: int, *, armed: bool, micro_steps: int) -> None:
        self._cell = cell
        self._last = micro_steps - 1
        self._rank = rank
        self._armed = armed
        self.log: list[Sighting] = []

    def batch(self, batch: Batch, step: int, micro_step: int, readers: frozenset[int]) -> Batch:
        """
        The batch, bad when the fault is in the data.

        Args:
            readers: the ranks that read this same batch; the fault's rank is one of them when it is hit.
        """
        cell = self._cell
        hit = self._hit(step, micro_step, readers)
        if not (hit and cell.fault in faults.DATA):
            return batch
        batch = batch.clone()
        if cell.fault is Fault.NO_LABELS:
            batch.weights.zero_()
        elif cell.fault is Fault.INF_WEIGHT:
            batch.weights[0, 1] = math.inf
        else:
            batch.features[0, 1, 2] = math.nan if cell.fault is Fault.NAN_FEATURE else math.inf
        self._saw(step, micro_step, None)
        return batch

    @contextlib.contextmanager
    def operators(self, script: Script, step: int, micro_step: int | None) -> Iterator[None]:
        """
        Replace an operator while the context is open.

        Args:
            micro_step: the micro step inside the context; None when a schedule runs all of them there: then the calls
                of the operator count.
        """
        cell, at = self._cell, self._cell.micro_step if micro_step is None else micro_step
        if not (cell.fault in faults.OPERATORS and self._hit(step, at, frozenset({self._rank}))):
            yield
            return
        owner, name, bad, module = self._operator(script)
        usual, calls = getattr(owner, name), iter(range(1 << 30))

        def operator(*args: Any) -> Any:
            if micro_step is None and (not torch.is_grad_enabled() or next(calls) != at):
                return usual(*args)
            self._saw(step, at, module)
            return bad(*args)

        setattr(owner, name, operator)
        try:
            yield
        finally:
            setattr(owner, name, usual)

    def before_step(self, script: Script, step: int) -> None:
        """Faults that are there before the first forward: a bad checkpoint, a loss scale too large."""
        if not (self._armed and step == self._cell.step):
            return
        if self._cell.fault in (Fault.LOADED_WEIGHT, Fault.LOADED_EMBEDDING):
            self._load(script, step)
        elif self._cell.fault is Fault.SCALE and script.scaler is not None:
            script.scaler.update(2.0**40)
            self._saw(step, self._cell.micro_step, None)

    def before_update(self, script: Script, step: int) -> None:
        """Faults between backward and update."""
        if not self._here(step):
            return
        if self._cell.fault is Fault.DIVISION:
            name, owner = self._weight(script)
            assert owner.grad is not None
            local(owner.grad).div_(0.0)
            self._saw(step, script.micro_steps - 1, name.rpartition(".")[0])
        elif self._cell.fault is Fault.RATE:
            for optimizer in script.optimizers:
                for group in optimizer.param_groups:
                    group["drill_rate"], group["lr"] = group["lr"], math.inf
            self._saw(step, 0, None)

    def after_update(self, script: Script) -> None:
        """Put back what lasts for one update."""
        for optimizer in script.optimizers:
            for group in optimizer.param_groups:
                if "drill_rate" in group:
                    group["lr"] = group.pop("drill_rate")

    def _here(self, step: int) -> bool:
        return self._armed and step == self._cell.step and self._cell.rank in (None, self._rank)

    def _hit(self, step: int, micro_step: int, ranks: frozenset[int]) -> bool:
        cell = self._cell
        first = micro_step == cell.micro_step and (cell.rank is None or cell.rank in ranks)
        later = cell.rival in ranks and micro_step == self._last
        return self._armed and step == cell.step and (first or later)

    def _saw(self, step: int, micro_step: int, module: str | None) -> None:
        self.log.append(Sighting(step, micro_step, self._rank, self._cell.stage, module))

    def _operator(self, script: Script) -> tuple[Any, str, Any, str]:
        block, prefix = script.net.blocks[script.block], f"blocks.{script.block}"
        mlp, where = script.mlp(block)
        if self._cell.fault is Fault.MASKED_ROW:
            return block.attention, "softmax", faults.SOFTMAX, f"{prefix}.attention"
        if self._cell.fault is Fault.CONSTANT_ROW:
            return block.norm2, "forward", faults.constant_row(block.norm2), f"{prefix}.norm2"
        if self._cell.fault is Fault.FLOAT8_SCALE:
            return mlp.w1, "amax", lambda x: x.new_full((), math.inf), f"{prefix}.{where}.w1"
        if self._cell.fault is Fault.OWN_GRADIENT:
            return mlp.w2, "forward", faults.own_gradient(mlp.w2), f"{prefix}.{where}.w2"
        return mlp, "activation", faults.ACTIVATIONS[self._cell.fault], f"{prefix}.{where}"

    def _weight(self, script: Script) -> tuple[str, torch.nn.Parameter]:
        name, weight = script.weight(script.net.blocks[script.block])
        return f"blocks.{script.block}.{name}", weight

    def _load(self, script: Script, step: int) -> None:
        embedding = self._cell.fault is Fault.LOADED_EMBEDDING
        name = "tokens.weight" if embedding else self._weight(script)[0]
        checkpoint = {key: value.detach().clone() for key, value in script.net.state_dict().items()}
        if self._here(step):
            rows = slice(None) if embedding else slice(1)  # whatever tokens there are
            local(checkpoint[name])[rows, 0] = math.nan
            self._saw(step, 0, name.rpartition(".")[0])
        script.net.load_state_dict(checkpoint)
