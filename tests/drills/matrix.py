"""The table of valid combinations, and the cells that it stands for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.drills.cell import Cell
from tests.drills.faults import Fault
from tests.drills.parallelisms import REGISTRY

_F = Fault
RIVALS = (_F.NAN_FEATURE, _F.MASKED_ROW, _F.NO_LABELS, _F.OPERATOR_BACKWARD)
"""Faults that two ranks can have, each on its own, in different micro steps."""
COMMON = (_F.LOADED_WEIGHT, _F.NAN_FEATURE, _F.MASKED_ROW, _F.NO_LABELS, _F.BACKWARD_FUNCTION, _F.DIVISION, _F.RATE)
"""One fault of each stage."""
ALL = tuple(fault for fault in Fault if fault not in (_F.FLOAT8_SCALE, _F.SCALE))
"""Every fault that needs no special precision."""
ORIGINS = (_F.NAN_FEATURE, _F.MASKED_ROW, _F.NO_LABELS, _F.OPERATOR_BACKWARD, _F.OWN_GRADIENT)
"""Faults that recur in each micro step."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: the product of its columns. `ranks` None stands for each rank of the world."""

    parallelism: str
    worlds: tuple[int, ...]
    faults: tuple[Fault, ...]
    precisions: tuple[str, ...] = ("fp32",)
    optimizers: tuple[str, ...] = ("adamw",)
    ranks: tuple[int | None, ...] | None = None
    steps: tuple[int, ...] = (1,)
    micro_steps: tuple[int, ...] = (0,)
    rival: int | None = None

    def cells(self) -> Iterator[Cell]:
        """The cells of this line, in the order of the columns."""
        for world, precision, optimizer, fault, step, micro_step in itertools.product(
            self.worlds, self.precisions, self.optimizers, self.faults, self.steps, self.micro_steps
        ):
            last = REGISTRY[self.parallelism].micro_steps - 1
            if fault.stage.label in ("param", "update") and micro_step:
                continue  # they are there before the first micro step
            if fault is Fault.DIVISION and micro_step != last:
                continue  # it happens once, after all of them
            ranks = (None,) if fault is Fault.SCALE else self.ranks or tuple(range(world))
            for rank in ranks:
                yield Cell(self.parallelism, precision, optimizer, fault, rank, step, micro_step, world, self.rival)


_HOOKS = ("ddp_bucket_view", "ddp_static_graph", "ddp_fp16_hook", "ddp_builtin_hook", "ddp_powersgd")

TABLE: tuple[Line, ...] = (
    Line("single", (1,), ALL),
    Line("single", (1,), COMMON, precisions=("bf16", "bf16_autocast")),
    Line("single", (1,), (*COMMON, _F.FLOAT8_SCALE), precisions=("fp8",)),
    Line("single", (1,), (*COMMON, _F.SCALE), precisions=("fp16_scaler",), optimizers=("adamw", "adamw_fused")),
    Line(
        "single", (1,), (_F.NO_LABELS, _F.ROOT_OF_ZERO), steps=(0, 2),
        optimizers=("sgd", "sgd_momentum", "sgd_fused", "adam", "adamw", "adamw_fused", "rmsprop", "nadam", "adagrad",
                    "adafactor"),
    ),
    Line("single_accumulation", (1,), (*ORIGINS, _F.DIVISION), micro_steps=(0, 1, 2)),
    Line("single_two_optimizers", (1,), COMMON, optimizers=("adamw", "sgd_momentum")),
    Line("ddp", (2,), ALL),
    Line("ddp", (2,), (_F.NAN_FEATURE, _F.BACKWARD_FUNCTION), steps=(0, 2), optimizers=("sgd_momentum", "adamw_fused")),
    Line("ddp", (2,), COMMON, precisions=("bf16", "bf16_autocast"), ranks=(1,)),
    Line("ddp", (2,), (*COMMON, _F.FLOAT8_SCALE), precisions=("fp8",), ranks=(1,)),
    Line("ddp", (2,), (*COMMON, _F.SCALE), precisions=("fp16_scaler",), optimizers=("adamw", "adamw_fused"),
         ranks=(1,)),
    Line("ddp", (2,), (_F.NAN_FEATURE, _F.NO_LABELS), ranks=(None,)),
    Line("ddp", (3, 4), COMMON, ranks=(1, 2)),
    *(Line(hook, (2,), COMMON) for hook in _HOOKS),
    Line("ddp_synced", (2,), ORIGINS, micro_steps=(0, 1, 2)),
    Line("ddp_no_sync", (2,), ORIGINS, micro_steps=(0, 1, 2)),
    Line("ddp_no_sync", (2,), (_F.NO_LABELS, _F.OPERATOR_BACKWARD), precisions=("fp16_scaler",), micro_steps=(0, 1, 2),
         ranks=(1,)),
    Line("ddp_two_optimizers", (2,), COMMON, optimizers=("adamw", "sgd_momentum"), ranks=(1,)),
    Line("fsdp2", (2,), COMMON),
    Line("fsdp2", (2,), (_F.OPERATOR_OUTPUT, _F.OPERATOR_BACKWARD, _F.ROOT_OF_ZERO, _F.OWN_GRADIENT), ranks=(1,)),
    Line("fsdp2", (2,), COMMON, precisions=("bf16_mixed",), optimizers=("adamw_fused",), ranks=(1,)),
    Line("fsdp2", (2,), (_F.NO_LABELS, _F.BACKWARD_FUNCTION, _F.SCALE), precisions=("fp16_scaler",), ranks=(1,)),
    Line("fsdp2", (4,), COMMON, ranks=(2,)),
    Line("fsdp2_accumulation", (2,), ORIGINS, micro_steps=(0, 1, 2), ranks=(1,)),
    Line("fsdp2_quiet", (2,), ORIGINS, micro_steps=(0, 1, 2), ranks=(1,)),
    Line("hsdp", (4,), COMMON, ranks=(1, 3)),
    Line("tp", (2,), (_F.MASKED_ROW, _F.BACKWARD_FUNCTION, _F.OPERATOR_BACKWARD, _F.LOADED_WEIGHT, _F.RATE),
         optimizers=("adamw_plain",)),
    Line("tp", (2,), (_F.NAN_FEATURE, _F.NO_LABELS), optimizers=("adamw_plain", "sgd_plain"), ranks=(None,)),
    Line("fsdp2_tp", (4,), COMMON, optimizers=("sgd_plain",), ranks=(0, 3)),
    *(
        Line(name, (2,), RIVALS, ranks=(1,), micro_steps=(0, 1), rival=0)
        for name in ("ddp_synced", "ddp_no_sync", "fsdp2_accumulation", "fsdp2_quiet")
    ),
    Line("fsdp2", (2,), (_F.LOADED_EMBEDDING, _F.CONSTANT_ROW), ranks=(1,)),
    Line("fsdp2_offload", (2,), COMMON, ranks=(1,)),
    Line("single_sparse", (1,), COMMON),
    Line("ddp_sparse", (2,), COMMON, ranks=(1,)),
    *(
        line
        for name in ("pp_gpipe", "pp_1f1b")
        for line in (
            Line(name, (2,), (_F.NAN_FEATURE,), ranks=(0,), micro_steps=(0, 2, 3)),
            Line(name, (2,), (_F.NO_LABELS,), ranks=(1,), micro_steps=(0, 2, 3)),
            Line(name, (2,), (_F.MASKED_ROW, _F.OPERATOR_BACKWARD, _F.BACKWARD_FUNCTION), micro_steps=(0, 2, 3)),
            Line(name, (2,), (_F.OWN_GRADIENT, _F.LOADED_WEIGHT, _F.RATE, _F.DIVISION), micro_steps=(0, 3)),
            Line(name, (3,), (_F.MASKED_ROW, _F.OPERATOR_BACKWARD), ranks=(1,), micro_steps=(1,)),
        )
    ),
    Line("pp_warm", (2,), (_F.MASKED_ROW, _F.OPERATOR_BACKWARD), micro_steps=(2,)),
    Line("pp_warm", (2,), (_F.LOADED_WEIGHT, _F.NO_LABELS), ranks=(1,)),
    Line("experts", (2,), (*COMMON, _F.OPERATOR_OUTPUT, _F.OWN_GRADIENT)),
    Line("experts", (4,), COMMON, ranks=(3,)),
    Line("experts_starved", (2,), (_F.NAN_FEATURE, _F.MASKED_ROW, _F.NO_LABELS)),
    Line("experts_starved", (2,), (_F.OPERATOR_BACKWARD, _F.OPERATOR_OUTPUT), ranks=(0,)),
    Line("single_gan", (1,), COMMON, steps=(2, 3)),
    Line("ddp_gan", (2,), COMMON, steps=(2, 3), ranks=(1,)),
)  # fmt: skip


def cells(lines: Iterable[Line] = TABLE) -> list[Cell]:
    """Every cell once, in the order of the table."""
    return list(dict.fromkeys(cell for line in lines for cell in line.cells()))
