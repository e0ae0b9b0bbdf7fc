"""Expert parallel: dense weights are replicated by DDP, each rank holds one expert, tokens travel by all-to-all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from tests.drills import optimizers
from tests.drills.model import WIDTH, Block, Mlp, Transformer
from tests.drills.script import Script
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class _AllToAll(torch.autograd.Function):
    """Rows to and from other ranks, by how many go to each; the backward sends the gradients home."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        out = grad.new_empty(sum(ctx.sent), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return out, None, None, None


class Experts(nn.Module):
    """A layer of experts, one a rank of `group`; the gate chooses one for each token."""

    def __init__(self, linear: type[nn.Linear], group: Any, *, starved: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, dist.get_world_size(group))
        self.expert = Mlp(linear)
        self._group, self._starved = group, starved

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        shares = torch.softmax(self.gate(rows), -1)
        count = shares.shape[-1]
        # The last expert of a starved layer is chosen by no token.
        choice = (shares[:, : count - 1] if self._starved else shares).argmax(-1)
        if not self._starved:
            choice = (choice + torch.arange(len(rows))) % count  # so that each expert has some
        order = choice.argsort(stable=True)
        sent = torch.bincount(choice, minlength=count)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        there = _AllToAll.apply(rows[order], sent.tolist(), received.tolist(), self._group)
        if len(there):
            there = self.expert(there)
        back = _AllToAll.apply(there, received.tolist(), sent.tolist(), self._group)
        out = torch.zeros_like(rows).index_copy(0, order, back)
        return (out * shares.gather(1, choice[:, None])).view_as(x)


class ExpertParallel(Script):
    """
    Experts over pairs of ranks; where there are more, an expert's gradient is averaged over the ranks that hold it.
    Dense weights and experts have an optimizer each.
    """

    reduces = True
    starved = False

    def make_net(self) -> Any:
        pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
        columns = [dist.new_group(list(range(place, dist.get_world_size(), 2))) for place in range(2)]
        self._pair, self._column = pairs[self.rank // 2], columns[self.rank % 2]
        net = Transformer(linear=self.precision.linear)
        block: Any = net.blocks["1"]
        block.mlp = Experts(self.precision.linear, self._pair, starved=self.starved)
        return net.to(self.precision.dtype)

    def wrap(self, net: Any) -> Any:
        names = [name for name, _ in net.named_parameters() if ".expert." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, names)
        return DistributedDataParallel(net)

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        expert = list(self._expert())
        inside = {id(parameter) for parameter in expert}
        dense = [p for p in self.net.parameters() if id(p) not in inside]
        return list(itertools.starmap(optimizers.make, [(self.cell.optimizer, dense), ("sgd", expert)]))

    def mlp(self, block: Block) -> tuple[Mlp, str]:
        layer: Any = block.mlp
        return layer.expert, "mlp.expert"

    def weight(self, block: Block) -> tuple[str, nn.Parameter]:
        return "attention.wo.weight", block.attention.wo.weight

    def accumulate(self, step: int) -> None:
        super().accumulate(step)
        copies = dist.get_world_size(self._column)
        if copies == 1:
            return
        for parameter in self._expert():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self._column)
            parameter.grad /= copies

    def _expert(self) -> Iterable[nn.Parameter]:
        return self.net.blocks["1"].mlp.expert.parameters()  # type: ignore[no-any-return]


class Starved(ExpertParallel):
    """Ranks whose expert gets no tokens, and has no gradient."""

    starved = True


SCRIPTS: dict[str, type[Script]] = {"experts": ExpertParallel, "experts_starved": Starved}
