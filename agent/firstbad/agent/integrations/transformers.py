"""
Hugging Face Trainer.

    trainer = Trainer(..., callbacks=[FirstbadCallback()])

Sample ids reach the ledger when rows of the dataset have a column `sample_ids` (one id per row) and the Trainer lets it
through: `remove_unused_columns=False` and `data_collator=FirstbadCollator(yours)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from firstbad.agent.integrations.attaching import Teller
from firstbad.agent.integrations.fields import IDENTITY, LABELS, describe, valid_labels


class FirstbadCollator:
    """
    Lets each batch carry the identity of its rows past a data collator that knows only what the model takes.

    The callback takes these keys out again before the model sees the batch, so both go together. Counts valid tokens
    too, on the CPU, where it costs no wait for a device.

    Args:
        collator: makes a batch from rows; it does not see the columns named here.
        sample_ids: column with the id of a row, int or str.
        shard_id: column with the file or shard of a row, where there is one.
        shifted: the model's loss shifts the labels, as causal language models do.
    """

    def __init__(
        self,
        collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
        *,
        sample_ids: str = "sample_ids",
        shard_id: str = "shard_id",
        shifted: bool = True,
    ) -> None:
        self._collator = collator
        self._columns = {"sample_ids": sample_ids, "shard_id": shard_id}
        self._shifted = shifted

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The collator's batch, with lists of ids and shards and the count of valid tokens beside the tensors."""
        named = set(self._columns.values())
        batch = dict(self._collator([{k: v for k, v in row.items() if k not in named} for row in rows]))
        for name, column in self._columns.items():
            if all(column in row for row in rows):
                batch[name] = [row[column] for row in rows]
        count = valid_labels(batch.get(LABELS), shifted=self._shifted)
        if count is not None:
            batch["valid_tokens"] = count
        return batch


class TrainerEvents:
    """
    What `FirstbadCallback` does at a Trainer's events.

    `trainer_step` in the ledger is `state.global_step` while the step runs, so it is 0 in the first one.

    Args:
        **settings: for the guard, when the callback has to make it: `policy="observe"`, `run_id=...`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._teller: Teller | None = None
        self._step: int | None = None
        self._shifted = False
        self._hook: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer is made and knows its process group: every rank is here."""
        del args, state, control, kwargs
        self._teller = Teller(self._describe, self._settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins: read the batches from here on."""
        del args, control
        if self._teller is None:  # added to the Trainer after it was made
            self._teller = Teller(self._describe, self._settings)
        self._step = state.global_step
        model = kwargs.get("model")
        if isinstance(model, nn.Module) and self._hook is None:
            config = getattr(model, "config", None)
            self._shifted = getattr(model, "loss_type", None) == "ForCausalLM" and not getattr(
                config, "is_encoder_decoder", False
            )
            self._hook = model.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first micro step of an update begins."""
        del args, control, kwargs
        self._step = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training ends; the guard stays until the process does."""
        del args, state, control, kwargs
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_forward(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Take the identity out of what the model gets, and tell it where a training step runs."""
        if model.training and self._teller is not None:
            self._teller.tell(kwargs, step=self._step)
        return args, {name: value for name, value in kwargs.items() if name not in IDENTITY}

    def _describe(self, batch: Any) -> dict[str, Any]:
        told = describe(batch)
        if "valid_tokens" not in batch:
            told["valid_tokens"] = valid_labels(batch.get(LABELS), shifted=self._shifted)
        return told


if TYPE_CHECKING:
    from transformers import TrainerCallback

    class FirstbadCallback(TrainerEvents, TrainerCallback):
        """`TrainerEvents` as a TrainerCallback."""


def __getattr__(name: str) -> Any:
    if name != "FirstbadCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    body = {"__doc__": TrainerEvents.__doc__, "__module__": __name__}
    cls = globals()[name] = type(name, (TrainerEvents, TrainerCallback), body)
    return cls


__all__ = ["FirstbadCallback", "FirstbadCollator"]
