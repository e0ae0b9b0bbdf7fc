"""The identity of the data in a micro step, as the script tells it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHARDS_IN_STEP = 16
IDS_IN_STEP = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What a script said about one micro-batch; None or empty where it said nothing."""

    shards: tuple[str, ...] = ()
    samples: tuple[str | int, ...] = ()
    dataset_version: str | None = None
    valid_tokens: int | None = None
    trainer_step: int | None = None
    global_batch_id: str | None = None
    micro_step: int | None = None


def describe(
    *,
    shard_id: object = None,
    sample_ids: object = None,
    dataset_version: object = None,
    valid_tokens: object = None,
    step: object = None,
    global_batch_id: object = None,
    micro_step: object = None,
) -> Batch:
    """
    A Batch from what users have at hand: single values or sequences of str or int, 0-d or 1-d tensors on the CPU.

    Reading a tensor on an accelerator would wait for the device, so such a value counts as not told; so does a negative
    count.
    """
    return Batch(
        shards=tuple(str(item) for item in _items(shard_id)),
        samples=tuple(item if isinstance(item, int) else str(item) for item in _items(sample_ids)),
        dataset_version=None if dataset_version is None else str(dataset_version),
        valid_tokens=_count(valid_tokens),
        trainer_step=_count(step),
        global_batch_id=None if global_batch_id is None else str(global_batch_id),
        micro_step=_count(micro_step),
    )


def _items(value: object) -> Iterable[object]:
    if value is None:
        return ()
    if isinstance(value, str | int | bytes):
        return (value,)
    if hasattr(value, "tolist"):
        if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
            return ()
        value = value.tolist()
        return value if isinstance(value, list) else (value,)
    return value if isinstance(value, Iterable) else (value,)


def _count(value: object) -> int | None:
    if value is None or getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
        return None
    count = int(value)  # type: ignore[call-overload]
    return count if count >= 0 else None


def distinct(batches: Sequence[Batch]) -> tuple[str, ...]:
    """The shards of some micro steps, each once, in order of use."""
    return tuple(dict.fromkeys(shard for batch in batches for shard in batch.shards))


def compact(samples: Sequence[str | int], limit: int) -> tuple[str, ...]:
    """
    Sample ids as at most `limit` words: three or more consecutive integers become one range `a-b`.

    What does not fit is left out; the count beside it tells how many there were.
    """
    words: list[str] = []
    index = 0
    while index < len(samples) and len(words) < limit:
        first = samples[index]
        last = index
        if isinstance(first, int):
            while last + 1 < len(samples) and samples[last + 1] == first + (last + 1 - index):
                last += 1
        if last - index >= 2:
            words.append(f"{first}-{samples[last]}")
            index = last + 1
        else:
            words.append(str(first))
            index += 1
    return tuple(words)
