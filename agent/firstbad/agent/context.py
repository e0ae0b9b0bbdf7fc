"""The static context of a rank: everything of a run start that does not change from step to step."""

from __future__ import annotations

import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from firstbad.agent import identity
from firstbad.agent.consensus import Consensus, Meeting
from firstbad.agent.models.wrappers import replicas
from firstbad.agent.observers.observer import Scene
from firstbad.agent.recorder import StaticContext
from firstbad.agent.settings import Settings

GIT_WAIT_SECONDS = 1.0


class CodeOrigin:
    """
    Commit and dirty flag of the script's repository, asked of git in a thread that starts at once: a large work tree
    takes seconds, and the first step should not wait for it. What is not known in time is null.
    """

    def __init__(self) -> None:
        self._found: tuple[str | None, bool | None] = (None, None)
        self._thread = threading.Thread(target=self._ask, name="firstbad-git", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        self._found = identity.script_commit(Path(script) if script else Path.cwd())

    def get(self) -> tuple[str | None, bool | None]:
        """(commit, dirty); waits at most a second."""
        self._thread.join(GIT_WAIT_SECONDS)
        return self._found


def describe_rank(
    settings: Settings,
    consensus: Consensus,
    meeting: Meeting,
    scene: Scene,
    optimizers: list[Optimizer],
    *,
    origin: CodeOrigin,
    autocast: bool,
    steered: bool,
) -> tuple[dict[str, Any], StaticContext]:
    """The fields of this rank's run start, and the part of them that events repeat. Does not wait for the device."""
    parameters = scene.models.parameters() or [p for o in optimizers for g in o.param_groups for p in g["params"]]
    device = parameters[0].device if parameters else torch.device("cpu")
    commit, dirty = origin.get()
    dp_rank, dp_size = _data_parallel(scene, consensus)
    groups = [
        {key: value for key, value in group.items() if key != "params"} for o in optimizers for group in o.param_groups
    ]
    static = StaticContext(
        device=str(device),
        device_uuid=identity.device_uuid(device),
        model_commit=commit,
        config_hash=identity.config_hash(tuple(sys.argv), groups, scene.models.structure()) if optimizers else None,
        precision=_precision(parameters, autocast=autocast, scaled=not steered),
        dp_rank=dp_rank,
        dp_size=dp_size,
    )
    fields = {
        "world_size": consensus.world_size,
        "local_rank": _env_int("LOCAL_RANK"),
        "dp_rank": dp_rank,
        "dp_size": dp_size,
        "pid": os.getpid(),
        "device": static.device,
        "device_uuid": static.device_uuid,
        "backend": consensus.backend,
        "argv": tuple(argument[:16_384] for argument in sys.argv[:1024]),
        "restart_count": _env_int("TORCHELASTIC_RESTART_COUNT"),
        "agent_version": identity.agent_version(),
        "torch_version": str(torch.__version__),
        "python_version": platform.python_version(),
        "libraries": identity.library_versions(),
        "policy": settings.policy,
        "max_consecutive_skips": settings.max_consecutive_skips,
        "max_skip_ratio": settings.max_skip_ratio,
        "steered": steered,
        "model_commit": commit,
        "model_dirty": dirty,
        "config_hash": static.config_hash,
        "precision": static.precision,
        "checkpoint_parent": scene.checkpoint_parent,
        "clock_offset_seconds": meeting.clock_offset_seconds,
    }
    return fields, static


def _data_parallel(scene: Scene, consensus: Consensus) -> tuple[int | None, int | None]:
    """(rank, size) in the data-parallel group: DDP's own group, or a world of one; unknown elsewhere."""
    for root in scene.models.roots():
        for model in replicas(root):
            return dist.get_rank(model.process_group), dist.get_world_size(model.process_group)
    return (0, 1) if consensus.world_size == 1 else (None, None)


def _precision(parameters: list[torch.Tensor], *, autocast: bool, scaled: bool) -> str | None:
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
    kinds = {names.get(parameter.dtype, str(parameter.dtype)) for parameter in parameters}
    if not kinds:
        return None
    return "mixed" if autocast or scaled or len(kinds) > 1 else kinds.pop()


def _env_int(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None
