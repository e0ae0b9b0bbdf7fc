"""Data identity as users hand it over."""

from __future__ import annotations

import pytest

from firstbad.agent.batches import Batch, compact, describe, distinct


@pytest.mark.parametrize(
    ("samples", "limit", "expected"),
    [
        ((), 4, ()),
        ((1, 2, 3, 4, 9), 4, ("1-4", "9")),
        ((1, 2), 4, ("1", "2")),
        ((5, 4, 3), 4, ("5", "4", "3")),
        (("a", "b", 7, 8, 9), 4, ("a", "b", "7-9")),
        (tuple("abcdef"), 3, ("a", "b", "c")),
    ],
)
def test_consecutive_integers_become_ranges_and_the_rest_is_cut(samples: tuple, limit: int, expected: tuple) -> None:
    """At most `limit` words, in order of use."""
    assert compact(samples, limit) == expected


def test_single_values_sequences_and_arrays_are_taken() -> None:
    """What users have at hand."""

    class Array:
        def tolist(self) -> list[int]:
            return [3, 4]

    batch = describe(shard_id="s", sample_ids=Array(), valid_tokens=7, step=2)

    assert batch == Batch(shards=("s",), samples=(3, 4), valid_tokens=7, trainer_step=2)


def test_a_tensor_on_an_accelerator_counts_as_not_told() -> None:
    """Reading it would wait for the device."""

    class Device:
        type = "cuda"

    class Tensor:
        device = Device()

        def tolist(self) -> list[int]:
            raise AssertionError("read from the device")

    batch = describe(sample_ids=Tensor(), valid_tokens=Tensor())

    assert batch == Batch()


def test_shards_are_distinct_in_order_of_use() -> None:
    """Over micro steps."""
    assert distinct([Batch(shards=("b", "a")), Batch(shards=("a", "c"))]) == ("b", "a", "c")


def test_the_door_batch_is_a_function_also_when_everything_is_imported() -> None:
    """A submodule of the same name would take its place on import."""
    import firstbad.agent
    import firstbad.agent.guard

    assert firstbad.agent.batch(sample_ids=[1]) is None
