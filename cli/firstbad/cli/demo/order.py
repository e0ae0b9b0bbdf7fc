"""
The data order, laid out before anything is trained: the same library gives the same order on every machine.

A micro-batch in which no sample has a label is bad: its loss is 0/0. A step is bad when any micro-batch of any rank is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from firstbad.cli.demo.errors import NoSuchOrder
from firstbad.cli.demo.recipe import Recipe


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One micro-batch. Places sort as firstbad elects the first offender: by step, micro step, then rank."""

    step: int
    micro_step: int
    rank: int


@dataclass(frozen=True, slots=True)
class Order:
    """`picked` are indexes of samples, one micro-batch after the other: step, micro step, rank, place in the batch."""

    seed: int
    picked: tuple[int, ...]
    empty: tuple[Place, ...]
    """Every micro-batch without a label, sorted."""

    @property
    def bad_steps(self) -> list[int]:
        """The bad steps, ascending."""
        return sorted({place.step for place in self.empty})


def lay_out(labels: Sequence[int], recipe: Recipe, seed: int) -> Order:
    """The order that a seed gives, for samples with so many labels each; data is used again when it runs out."""
    indexes: list[int] = []
    shuffler = random.Random(seed)  # noqa: S311  # a shuffle, no secret
    while len(indexes) < recipe.samples:
        epoch = list(range(len(labels)))
        shuffler.shuffle(epoch)
        indexes += epoch
    picked = tuple(indexes[: recipe.samples])
    empty = []
    for batch in range(recipe.samples // recipe.batch):
        first = batch * recipe.batch
        if not any(labels[index] for index in picked[first : first + recipe.batch]):
            rest, rank = divmod(batch, recipe.world)
            empty.append(Place(*divmod(rest, recipe.micro_steps), rank))
    return Order(seed, picked, tuple(empty))


def find_order(labels: Sequence[int], recipe: Recipe) -> Order:
    """
    The first order that obeys the recipe's rule.

    Raises:
        NoSuchOrder: no seed does; the text says how close they came.
    """
    if not labels:
        raise NoSuchOrder("found no function in this Python's standard library; is it installed as source (.py files)?")
    counts = []
    for seed in range(recipe.seeds):
        order = lay_out(labels, recipe, seed)
        bad = order.bad_steps
        counts.append(len(bad))
        enough = recipe.fewest_bad <= len(bad) <= recipe.most_bad
        if enough and recipe.first_from <= bad[0] <= recipe.first_to:
            return order
    empty = sum(not count for count in labels) / len(labels)
    raise NoSuchOrder(
        f"none of {recipe.seeds:,} seeds obeys the rule: {recipe.rule}. This Python's library has {len(labels):,} "
        f"functions, {empty:.1%} of them without a label in {recipe.context} tokens, which gave {min(counts)} to "
        f"{max(counts)} bad steps. Another Python 3.11 or newer, with its whole standard library, will do."
    )
