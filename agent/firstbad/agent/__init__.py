"""
The agent: lives in every rank of a training run, decides each step together with the other ranks, keeps the ledger.

Two doors, one mechanism:

    torchrun ... -m firstbad.agent train.py args...     # no change to the script

    from firstbad.agent import Guard                    # or in code, in every rank
    guard = Guard()

With the first door, one line a micro-batch gives the ledger the identity of the data; without an agent in the process
it does nothing:

    from firstbad.agent import batch
    batch(shard_id=..., sample_ids=..., valid_tokens=...)

Importing this package imports neither torch nor anything that changes the process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from firstbad.agent.errors import AgentError, ConsensusFailed, RunStopped, SettingsMismatch, StepMismatch
from firstbad.agent.settings import Settings, SettingsError

if TYPE_CHECKING:
    from firstbad.agent.guard import Guard


def batch(
    *,
    shard_id: object = None,
    sample_ids: object = None,
    dataset_version: object = None,
    valid_tokens: object = None,
    step: object = None,
    global_batch_id: object = None,
    micro_step: object = None,
) -> None:
    """
    Say which data the coming micro step uses; see `Guard.batch`. Does nothing when this process has no guard.

    Cheap, never raises, never waits for a device.
    """
    module = sys.modules.get("firstbad.agent.guard")
    guard = module.active() if module is not None else None
    if guard is not None:
        guard.batch(
            shard_id=shard_id,
            sample_ids=sample_ids,
            dataset_version=dataset_version,
            valid_tokens=valid_tokens,
            step=step,
            global_batch_id=global_batch_id,
            micro_step=micro_step,
        )


def __getattr__(name: str) -> Any:
    # Guard needs torch; the other names must be had without it (settings are checked before torch is imported).
    if name == "Guard":
        from firstbad.agent.guard import Guard

        return Guard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AgentError",
    "ConsensusFailed",
    "Guard",
    "RunStopped",
    "Settings",
    "SettingsError",
    "SettingsMismatch",
    "StepMismatch",
    "batch",
]
