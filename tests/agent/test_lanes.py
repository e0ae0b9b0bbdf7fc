"""The vector of a decision: packing, election and flags against a plain reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firstbad.agent.lanes import LENGTH, MAX_MICRO, MAX_ORDER, MAX_RANK, NOBODY, Ballot, Count, Key
from firstbad.schema import Stage

keys = st.builds(
    Key,
    micro_step=st.integers(0, MAX_MICRO),
    stage=st.sampled_from(Stage),
    inexact=st.booleans(),
    order=st.integers(0, MAX_ORDER),
    rank=st.integers(0, MAX_RANK),
)


@given(keys)
def test_a_key_survives_packing_and_is_below_nobody(key: Key) -> None:
    """Every key fits its bits."""
    assert Key.unpack(key.pack()) == key
    assert key.pack() < NOBODY


@given(keys, keys)
def test_packed_keys_rank_by_micro_step_then_stage_in_time_then_exactness_order_and_rank(one: Key, other: Key) -> None:
    """Stage update is the work of the step before, so it comes first in time."""
    in_time = [Stage.UPDATE, *(stage for stage in Stage if stage is not Stage.UPDATE)]

    def rank(key: Key) -> tuple:
        return key.micro_step, in_time.index(key.stage), key.inexact, key.order, key.rank

    assert (rank(one) < rank(other)) == (one.pack() < other.pack())


def test_values_beyond_their_bits_saturate_and_never_spill_into_a_neighbour() -> None:
    """A run with a million micro steps still elects the right stage and rank."""
    key = Key(10**9, Stage.GRAD, False, 10**9, 5)

    assert Key.unpack(key.pack()) == Key(MAX_MICRO, Stage.GRAD, False, MAX_ORDER, 5)


ballots = st.lists(
    st.tuples(st.none() | keys, st.frozensets(st.sampled_from(Stage)), st.booleans(), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(ballots, st.integers(0, 2**40))
def test_reducing_by_min_elects_the_smallest_key_and_counts_any_and_all(words: list, step: int) -> None:
    """The reference gathers every ballot and looks at all of them."""
    votes = [Ballot(step, key, stages, degraded, handed) for key, stages, degraded, handed in words]
    reduced = [min(lanes) for lanes in zip(*(vote.lanes() for vote in votes), strict=True)]
    count = Count.of(reduced)

    assert len(reduced) == LENGTH
    keys = [vote.key for vote in votes if vote.key is not None]
    assert count.key == min(keys, key=Key.pack, default=None)
    handed = any(vote.handed for vote in votes)
    alike = {(key.micro_step, key.stage, (key.inexact, key.order) if handed else None) for key in keys}
    assert count.unanimous == (len(keys) == len(votes) and len(alike) == 1)
    assert count.stages_any == frozenset().union(*(vote.stages for vote in votes))
    assert count.stages_all == frozenset.intersection(*(vote.stages for vote in votes))
    assert count.degraded == any(vote.degraded for vote in votes)
    assert (count.lowest_step, count.highest_step) == (step, step)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=8))
def test_ranks_in_different_steps_are_seen_with_both_ends(steps: list[int]) -> None:
    """MIN of step and of -step give lowest and highest."""
    reduced = [min(lanes) for lanes in zip(*(Ballot(s, None, frozenset()).lanes() for s in steps), strict=True)]
    count = Count.of(reduced)

    assert (count.lowest_step, count.highest_step) == (min(steps), max(steps))


@given(st.lists(st.none() | st.integers(0, 2**40), min_size=1, max_size=8))
def test_ranks_that_tell_different_trainer_steps_are_seen_and_silent_ones_do_not_count(told: list[int | None]) -> None:
    """A rank that was told nothing has no say."""
    votes = [Ballot(0, None, frozenset(), trainer_step=step) for step in told]
    count = Count.of([min(lanes) for lanes in zip(*(vote.lanes() for vote in votes), strict=True)])

    assert count.trainer_steps_differ == (len({step for step in told if step is not None}) > 1)
