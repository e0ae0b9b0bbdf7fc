"""What a framework's batch says about itself: keys of its mapping, read as the arguments of `Guard.batch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Describe = Callable[[Any], Mapping[str, Any]]
"""From a batch to arguments of `Guard.batch`; for batches that do not follow the names below."""

IDENTITY = ("sample_ids", "shard_id", "dataset_version", "global_batch_id", "valid_tokens")
"""Keys of a batch that are taken as they are: the arguments of `Guard.batch` by their own names."""
LABELS = "labels"
IGNORED = -100
"""The label that losses leave out, by the convention of torch's cross entropy."""


def describe(batch: object) -> dict[str, Any]:
    """
    Arguments of `Guard.batch` that a mapping holds under their own names, or under WebDataset's; empty for any other.

    `valid_tokens` is counted from integer `labels` on the CPU where the batch does not tell it: every label that is not
    -100. Tensors on an accelerator are passed on unread.
    """
    if not isinstance(batch, Mapping):
        return {}
    told = {name: batch[name] for name in IDENTITY if name in batch}
    for name, key in (("sample_ids", "__key__"), ("shard_id", "__url__")):
        if key in batch:
            told.setdefault(name, batch[key])
    if "valid_tokens" not in told:
        told["valid_tokens"] = valid_labels(batch.get(LABELS))
    return told


def valid_labels(labels: object, *, shifted: bool = False) -> int | None:
    """
    How many labels count in the loss; None when `labels` are no integer tensor on the CPU.

    Args:
        labels: of one micro-batch.
        shifted: the loss compares each position with the next label, so the first label of a row never counts.
    """
    if not isinstance(labels, torch.Tensor) or labels.device.type != "cpu" or labels.dtype.is_floating_point:
        return None
    counted = labels[..., 1:] if shifted and labels.dim() else labels
    return int((counted != IGNORED).sum())
