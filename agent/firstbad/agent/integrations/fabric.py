"""
Lightning Fabric.

    fabric = Fabric(..., callbacks=[FirstbadCallback()])
    fabric.launch()
    fabric.call("on_train_start")
    for batch_idx, batch in enumerate(loader):
        fabric.call("on_train_batch_start", batch, batch_idx, step=step)

Fabric has no events of its own: the loop calls them, by the Trainer's names. These two are enough.
"""

from __future__ import annotations

from typing import Any

from firstbad.agent.integrations.attaching import Teller
from firstbad.agent.integrations.fields import Describe, describe


class FirstbadCallback:
    """
    A Fabric callback: any object with methods of the called names.

    Args:
        describe: from a batch to arguments of `Guard.batch`; default: the keys `sample_ids`, `shard_id` (or
            WebDataset's `__key__`, `__url__`) and `labels` of a dict.
        **settings: for the guard, when the callback has to make it: `policy="observe"`, `run_id=...`.
    """

    def __init__(self, describe: Describe = describe, **settings: Any) -> None:
        self._describe = describe
        self._settings = settings
        self._teller: Teller | None = None

    def on_train_start(self) -> None:
        """Call it on every rank after `fabric.launch()` and before the first forward."""
        self._teller = Teller(self._describe, self._settings)

    def on_train_batch_start(self, batch: Any, batch_idx: int, step: int | None = None) -> None:
        """
        Call it before each micro step's forward.

        Args:
            batch: what the loader gave.
            batch_idx: the loop's number of the batch; not recorded.
            step: the loop's own count of updates, for `trainer_step`; null in the ledger when it is left out.
        """
        del batch_idx
        if self._teller is None:
            self.on_train_start()
        if self._teller is not None:
            self._teller.tell(batch, step=step)


__all__ = ["FirstbadCallback"]
