"""Pipeline parallel: each rank holds some blocks, the schedule runs the micro batches, the loss is on the last rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tests.drills.batch import SAMPLES, Batch, mean_loss
from tests.drills.model import LENGTH, VOCABULARY, WIDTH, Transformer
from tests.drills.script import Script
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle


class _Pipeline(Script):
    """One stage a rank, two blocks a stage, the batch cut into micro batches along its first dimension."""

    schedule_class: type[PipelineScheduleSingle]
    micro_steps = 4
    warm = False
    """The stage runs once by itself before the schedule is made."""

    def make_net(self) -> Transformer:
        world, rank = dist.get_world_size(), self.rank
        net = Transformer(depth=2 * world, linear=self.precision.linear).to(self.precision.dtype)
        net.keep((2 * rank, 2 * rank + 1), first=rank == 0, last=rank == world - 1)
        self.block = str(2 * rank + 1)
        return net

    def wrap(self, net: Any) -> Any:
        first, last = self.rank == 0, self.rank == dist.get_world_size() - 1
        hidden = torch.zeros(SAMPLES, LENGTH, WIDTH, dtype=self.precision.dtype, requires_grad=True)
        logits = torch.zeros(SAMPLES, LENGTH, VOCABULARY, dtype=self.precision.dtype, requires_grad=True)
        batch = Batch.make(0, 0, 0, self.precision.dtype)
        inputs = (batch.tokens, batch.features) if first else (hidden,)
        if self.warm:
            net(*inputs)
        stage = PipelineStage(
            net,
            self.rank,
            dist.get_world_size(),
            torch.device("cpu"),
            input_args=inputs,
            output_args=(logits if last else hidden,),
        )
        return self.schedule_class(stage, n_microbatches=self.micro_steps, loss_fn=_loss)

    def parameters(self) -> Any:
        return self.net.parameters()

    def reader(self) -> int:
        return 0

    def readers(self) -> frozenset[int]:
        """Features are used by the first stage, labels by the last; each rank sees what it uses."""
        return frozenset({self.rank})

    def accumulate(self, step: int) -> None:
        batches = [self.batch(step, micro_step) for micro_step in range(self.micro_steps)]
        tokens, features, targets, weights = (
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("tokens", "features", "targets", "weights")
        )
        labels = torch.stack([targets.float(), weights], -1)
        with self.injector.operators(self, step, None), self.precision.context():
            if self.rank == 0:
                self.model.step(tokens, features)
            elif self.rank == dist.get_world_size() - 1:
                self.model.step(target=labels)
            else:
                self.model.step()


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return mean_loss(logits, labels[..., 0].long(), labels[..., 1])


class GPipe(_Pipeline):
    """All forwards, then all backwards."""

    schedule_class = ScheduleGPipe


class OneForwardOneBackward(_Pipeline):
    """1F1B: a backward as soon as there can be one."""

    schedule_class = Schedule1F1B


class WarmPipeline(OneForwardOneBackward):
    """1F1B with stages that have run before."""

    warm = True


SCRIPTS: dict[str, type[Script]] = {"pp_gpipe": GPipe, "pp_1f1b": OneForwardOneBackward, "pp_warm": WarmPipeline}
