"""How a callback comes to a guard, the one that is there or a new one, and tells it what a batch says."""

from __future__ import annotations

import logging
from typing import Any

from firstbad.agent.guard import Guard, active
from firstbad.agent.integrations.fields import Describe

logger = logging.getLogger("firstbad.agent")


class Teller:
    """
    A guard that listens to a framework's batches. Make it on every rank at the same point.

    Args:
        describe: from a batch to arguments of `Guard.batch`.
        settings: overrides as `Guard` takes them, used when this process has no guard and one must be made.

    Raises:
        SettingsError, SettingsMismatch: as `Guard`, when one is made.
    """

    def __init__(self, describe: Describe, settings: dict[str, Any]) -> None:
        guard = active()
        if guard is not None and settings:
            logger.warning(
                "firstbad: this process has a guard already, so the callback's own settings (%s) are not used",
                ", ".join(sorted(settings)),
            )
        self._guard = guard or Guard(**settings)
        self._describe: Describe | None = describe

    def tell(self, batch: object, *, step: int | None, global_batch_id: str | None = None) -> None:
        """
        Say which data the coming micro step uses, and the trainer's own step count. Never raises.

        When a batch cannot be described that is said once, and only the trainer's own words are told from then on.

        Args:
            batch: what the trainer got from its loader; None when its samples were told already.
            step: the trainer's own step count.
            global_batch_id: the trainer's name of the batch, where the batch has none of its own.
        """
        own = {"step": step, "global_batch_id": global_batch_id}
        try:
            described = self._describe(batch) if self._describe is not None and batch is not None else {}
            self._guard.batch(**{**own, **described})
        except Exception as error:
            self._describe = None
            logger.warning(
                "firstbad: a batch could not be described (%s: %s); sample ids are not recorded from here on",
                type(error).__name__,
                error,
            )
            self._guard.batch(step=step, global_batch_id=global_batch_id)
