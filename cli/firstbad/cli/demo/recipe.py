"""The size of the demo, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and which data order is looked for. The defaults take about a minute on two cores."""

    world: int = 4
    """Ranks."""
    steps: int = 150
    """Updates."""
    micro_steps: int = 2
    """Micro steps of an update, on each rank."""
    batch: int = 3
    """Samples of a micro-batch."""
    context: int = 256
    """Tokens of a window."""
    fewest_bad: int = 3
    most_bad: int = 8
    """How many bad steps an order must hold. More than 10 would use up firstbad's budget of skips."""
    first_from: int = 15
    first_to: int = 60
    """Where the first bad step must be."""
    seeds: int = 1_000
    """How many seeds are tried."""

    @property
    def samples(self) -> int:
        """Samples that a whole training uses."""
        return self.steps * self.micro_steps * self.world * self.batch

    @property
    def rule(self) -> str:
        """The choice of the data order, in words."""
        return (
            f"the first seed from 0 whose shuffle gives {self.fewest_bad} to {self.most_bad} steps with a micro-batch "
            f"without any label, the first of them between steps {self.first_from} and {self.first_to}"
        )
