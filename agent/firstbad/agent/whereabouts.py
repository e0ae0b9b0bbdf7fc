"""Where the ranks are: what each says of itself, and the sentence that names both sides."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

_MOST = 8
"""Groups of ranks, and runs of neighbouring ranks in a group, that a sentence names."""

_PLACE_LENGTH = 80
_LIBRARY = os.path.dirname(os.__file__) + os.sep


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank is in its training."""

    step: int
    """The step that it decides next."""
    backwards: int
    """Its backward calls since its last decision."""
    waits: bool
    """It is in the decision."""
    place: str = ""
    """The script's own line that the training thread is in, as `train.py:35`; empty when not known."""

    def encode(self) -> bytes:
        """For the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What `encode` made."""
        return cls(**json.loads(data))

    def words(self) -> str:
        """What follows "rank 1 is"."""
        at = f" at {self.place}" if self.place else ""
        if self.waits:
            return f"waiting in the decision of step {self.step}{at}"
        calls = {0: "no backward call", 1: "1 backward call"}.get(self.backwards, f"{self.backwards} backward calls")
        return f"in step {self.step}{at}, {calls} since the last decision, not waiting in it"


def describe(answers: Mapping[int, Standing], earlier: Mapping[int, Standing], world_size: int) -> str:
    """
    Every rank in one sentence: groups of ranks that stand alike, then those that gave no answer.

    Args:
        answers: of the ranks that have answered.
        earlier: what ranks have answered before to a question about the same step.
        world_size: of the job.
    """
    groups: dict[tuple[bool, Standing | None], list[int]] = {}
    for rank in range(world_size):
        answered = rank in answers
        groups.setdefault((answered, answers[rank] if answered else earlier.get(rank)), []).append(rank)
    parts = []
    for (answered, standing), ranks in sorted(groups.items(), key=lambda group: (not group[0][0], group[1])):
        several = len(ranks) > 1
        if answered and standing is not None:
            parts.append(f"{name(ranks)} {'are' if several else 'is'} {standing.words()}")
            continue
        last = "" if standing is None else f", last heard {standing.words()}"
        gives = "give" if several else "gives"
        parts.append(f"{name(ranks)} {gives} no answer (dead, gone, or stuck with the interpreter held){last}")
    return _bounded(parts, "; ", "groups")


def by_step(steps: Iterable[int], missing: int | None = None) -> str:
    """
    Which ranks decide which step.

    Args:
        steps: in rank order.
        missing: what stands for a rank that did not say.
    """
    groups: dict[int, list[int]] = {}
    for rank, step in enumerate(steps):
        if step == missing:
            continue
        groups.setdefault(step, []).append(rank)
    parts = [
        f"{name(ranks)} {'decide' if len(ranks) > 1 else 'decides'} step {step}"
        for step, ranks in sorted(groups.items())
    ]
    return _bounded(parts, ", ", "groups")


def name(ranks: Iterable[int]) -> str:
    """Ranks in words, runs of neighbours as ranges: `ranks 0-2, 5`. At least one rank, ascending."""
    runs: list[list[int]] = []
    count = 0
    for rank in ranks:
        count += 1
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = _bounded([str(first) if first == last else f"{first}-{last}" for first, last in runs], ", ", "runs of ranks")
    return f"{'rank' if count == 1 else 'ranks'} {text}"


def place_of(thread: int) -> str:
    """The innermost line of the script itself that a thread of this process is in; empty when there is none."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        path = frame.f_code.co_filename
        # Installed packages lie below the standard library.
        if package not in {"torch", "firstbad"} and not path.startswith((_LIBRARY, "<")):
            return f"{os.path.basename(path)}:{frame.f_lineno}"[-_PLACE_LENGTH:]
        frame = frame.f_back
    return ""


def _bounded(parts: list[str], separator: str, what: str) -> str:
    rest = len(parts) - _MOST
    return separator.join(parts[:_MOST]) + (f" and {rest} more {what}" if rest > 0 else "")
