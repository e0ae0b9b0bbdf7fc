"""
Lightning Trainer.

    trainer = Trainer(..., callbacks=[FirstbadCallback()])

A batch that is a dict tells its samples by keys `sample_ids` and `shard_id` (or WebDataset's `__key__` and `__url__`),
its valid tokens by `labels`; for any other batch hand over `describe`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from firstbad.agent.integrations.attaching import Teller
from firstbad.agent.integrations.fields import Describe, describe


class TrainerEvents:
    """
    What `FirstbadCallback` does at a Trainer's events.

    `trainer_step` in the ledger is `trainer.global_step` while the step runs, so it is 0 in the first one; with several
    optimizers Lightning counts the steps of each. `global_batch_id` is "epoch E batch B".

    Args:
        describe: from a batch to arguments of `Guard.batch`; default: the keys named above.
        **settings: for the guard, when the callback has to make it: `policy="observe"`, `run_id=...`.
    """

    def __init__(self, describe: Describe = describe, **settings: Any) -> None:
        self._describe = describe
        self._settings = settings
        self._teller: Teller | None = None
        self._batch_name = ""
        self._backwards = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The ranks have their process group, the model is not wrapped yet: every rank is here."""
        del trainer, pl_module
        if stage == "fit":
            self._teller = Teller(self._describe, self._settings)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch begins: its first backward is a micro step with its samples."""
        del pl_module
        self._batch_name = f"epoch {trainer.current_epoch} batch {batch_idx}"
        self._backwards = 0
        if self._teller is not None:
            self._teller.tell(batch, step=trainer.global_step, global_batch_id=self._batch_name)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """
        A backward begins. Manual optimization may call several for one batch: the later ones get the batch's name, by
        which their rows meet the one with the samples, and no samples, which would be counted twice.
        """
        del pl_module, loss
        self._backwards += 1
        if self._backwards > 1 and self._teller is not None:
            self._teller.tell(None, step=trainer.global_step, global_batch_id=self._batch_name)


if TYPE_CHECKING:
    from lightning.pytorch import Callback

    class FirstbadCallback(TrainerEvents, Callback):
        """`TrainerEvents` as a Callback."""


def __getattr__(name: str) -> Any:
    if name != "FirstbadCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback  # the same framework under its older name
    else:
        from lightning.pytorch import Callback

    body = {"__doc__": TrainerEvents.__doc__, "__module__": __name__}
    cls = globals()[name] = type(name, (TrainerEvents, Callback), body)
    return cls


__all__ = ["FirstbadCallback"]
