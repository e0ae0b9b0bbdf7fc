"""
The vector that ranks reduce once per step window, and the election key in it. Pure integers: no torch here.

Layout, int64, reduced with MIN over all ranks:

    0          election key, NOBODY when this rank saw nothing bad
    1..8       per stage: -1 when this rank saw a bad value there, else 0   ->  MIN is -1 iff any rank did
    9..16      per stage: 1 when this rank saw a bad value there, else 0    ->  MIN is 1 iff every rank did
    17, 18     step, -step                                                  ->  MIN agrees iff all ranks are in one step
    19         -1 when this rank's guard is broken (degraded), else 0
    20         -(micro step and stage of the key)   ->  MIN agrees with the elected key iff every rank nominated alike
    21         -(the key but for its rank)          ->  the same, place in causal order included
    22         -1 when this rank's forward or backward was handed values by peers, else 0: then a bad value in the same
               micro step and stage may be a peer's, and only ranks that are alike in lane 21 saw the same thing
    23         -1 when this rank's loss scale may not back off any further, else 0
    24, 25     the trainer's own step as told, and its negative; NOBODY in both when not told

MIN of the negated flag is OR, and NCCL has MIN on int64 but no bitwise reductions. Values that may be NaN are never
reduced: MIN and MAX treat NaN differently per backend and per rank.

Election key, smallest wins: micro step (14 bits), place of the stage in time (4), inexact (1), order (23), rank (20).
Stage update stands first in time: it is the work of the step before, and its peers see only what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstbad.schema import Stage

NOBODY = 1 << 62
"""Key of a rank that has nothing to report; larger than every real key."""

STAGES = len(Stage)
_ANY = 1
_ALL = _ANY + STAGES
_STEP = _ALL + STAGES
_DEGRADED = _STEP + 2
_LATEST = _DEGRADED + 1
_ORDER = _LATEST + 1
_HANDED = _ORDER + 1
_FLOOR = _HANDED + 1
_TRAINER = _FLOOR + 1
LENGTH = _TRAINER + 2
LAYOUT = "v2:key|any8|all8|step2|degraded|latest|order|handed|floor|trainer2"
"""Compared between ranks at start; change it with the layout."""

MAX_MICRO = (1 << 14) - 1
_ORDER_BITS = 23
MAX_ORDER = (1 << _ORDER_BITS) - 1
MAX_RANK = (1 << 20) - 1


_IN_TIME = (Stage.UPDATE, *(stage for stage in Stage if stage is not Stage.UPDATE))
_PLACE = {stage: place for place, stage in enumerate(_IN_TIME)}
_RANK_BITS = 20
_PREFIX = _RANK_BITS + _ORDER_BITS + 1
"""Bits below micro step and stage: rank, order, inexact."""


@dataclass(frozen=True, slots=True)
class Key:
    """
    Who saw the first bad value, and how it ranks.

    `exact` is false when no observer saw the micro step; `micro_step` is then the window's last. `order` is the place
    in causal order inside the stage, MAX_ORDER when unknown.
    """

    micro_step: int
    stage: Stage
    inexact: bool
    order: int
    rank: int

    def pack(self) -> int:
        """The key as an integer below NOBODY; micro step and order saturate at their bounds."""
        return (
            min(self.micro_step, MAX_MICRO) << _PREFIX + 4
            | _PLACE[self.stage] << _PREFIX
            | self.inexact << _PREFIX - 1
            | min(self.order, MAX_ORDER) << _RANK_BITS
            | self.rank
        )

    @property
    def moment(self) -> int:
        """Micro step, stage and exactness alone: what ranks the sightings of one rank, beside when they were made."""
        return self.pack() >> _RANK_BITS + _ORDER_BITS

    @classmethod
    def unpack(cls, packed: int) -> Key:
        """The key behind an integer made by `pack`."""
        return cls(
            micro_step=packed >> _PREFIX + 4,
            stage=_IN_TIME[packed >> _PREFIX & 0xF],
            inexact=bool(packed >> _PREFIX - 1 & 1),
            order=packed >> _RANK_BITS & MAX_ORDER,
            rank=packed & MAX_RANK,
        )


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one rank brings to the decision of a step."""

    step: int
    key: Key | None
    stages: frozenset[Stage]
    degraded: bool = False
    handed: bool = False
    """Peers' activations or their gradients flowed through this rank's forward or backward."""
    at_floor: bool = False
    """The loss scale may not back off any further."""
    trainer_step: int | None = None
    """The trainer's own step, as the script told it."""

    def lanes(self) -> list[int]:
        """The ballot as LENGTH integers."""
        lanes = [0] * LENGTH
        lanes[0] = NOBODY if self.key is None else self.key.pack()
        for stage in self.stages:
            lanes[_ANY + stage] = -1
            lanes[_ALL + stage] = 1
        lanes[_STEP] = self.step
        lanes[_STEP + 1] = -self.step
        lanes[_DEGRADED] = -int(self.degraded)
        lanes[_LATEST] = -(lanes[0] >> _PREFIX)
        lanes[_ORDER] = -(lanes[0] >> _RANK_BITS)
        lanes[_HANDED] = -int(self.handed)
        lanes[_FLOOR] = -int(self.at_floor)
        told = self.trainer_step
        lanes[_TRAINER], lanes[_TRAINER + 1] = (NOBODY, NOBODY) if told is None else (told, -told)
        return lanes


@dataclass(frozen=True, slots=True)
class Count:
    """The reduced vector: the same on every rank."""

    key: Key | None
    """The elected first offender; None when no rank saw a bad value."""
    stages_any: frozenset[Stage]
    stages_all: frozenset[Stage]
    unanimous: bool
    """Every rank nominated itself in the elected micro step and stage, and by itself."""
    lowest_step: int
    highest_step: int
    degraded: bool
    at_floor: bool = False
    """The loss scale of at least one rank may not back off any further."""
    trainer_steps_differ: bool = False
    """Ranks that told their trainer's step told different ones."""

    @property
    def bad(self) -> bool:
        """At least one rank saw a bad value."""
        return self.key is not None

    @classmethod
    def of(cls, lanes: list[int]) -> Count:
        """Read a reduced vector of LENGTH integers."""
        return cls(
            key=None if lanes[0] >= NOBODY else Key.unpack(lanes[0]),
            stages_any=frozenset(stage for stage in Stage if lanes[_ANY + stage] < 0),
            stages_all=frozenset(stage for stage in Stage if lanes[_ALL + stage] > 0),
            unanimous=lanes[0] < NOBODY
            and lanes[0] >> _PREFIX == -lanes[_LATEST]
            and (lanes[_HANDED] == 0 or lanes[0] >> _RANK_BITS == -lanes[_ORDER]),
            lowest_step=lanes[_STEP],
            highest_step=-lanes[_STEP + 1],
            degraded=lanes[_DEGRADED] < 0,
            at_floor=lanes[_FLOOR] < 0,
            trainer_steps_differ=lanes[_TRAINER] < NOBODY and lanes[_TRAINER] != -lanes[_TRAINER + 1],
        )
