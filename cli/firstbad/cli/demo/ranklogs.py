"""What the training script's own logs say: one file per rank, read while they grow."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True, order=True)
class EmptyBatch:
    """A micro-batch in which a rank found no label."""

    step: int
    micro_step: int
    rank: int
    sample_ids: tuple[str, ...]


@dataclass(slots=True)
class RankLogs:
    """The logs below `folder`, as far as `read_new` has read them."""

    folder: Path
    world: int
    pids: dict[int, int] = field(default_factory=dict)
    losses: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    nan_tensors: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    seconds: dict[int, float] = field(default_factory=dict)
    """Of each step, on the slowest rank."""
    empty: list[EmptyBatch] = field(default_factory=list)
    all_nan: dict[int, int] = field(default_factory=dict)
    """By rank: the step whose update left a NaN in every parameter tensor."""
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    _files: dict[int, BinaryIO] = field(default_factory=dict)
    _rests: dict[int, bytes] = field(default_factory=dict)

    def read_new(self) -> bool:
        """Read what was written since the last call; whether there was anything."""
        news = False
        for rank in range(self.world):
            if rank not in self._files:
                try:
                    self._files[rank] = (self.folder / f"rank{rank}.jsonl").open("rb")
                except FileNotFoundError:
                    continue
            *lines, self._rests[rank] = (self._rests.get(rank, b"") + self._files[rank].read()).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            news = news or bool(lines)
        return news

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()

    def _take(self, entry: dict[str, Any]) -> None:
        rank = entry["rank"]
        match entry["event"]:
            case "start":
                self.pids[rank] = entry["pid"]
            case "step":
                step = entry["step"]
                self.losses[step][rank] = entry["loss"]
                self.nan_tensors[step][rank] = entry["nan_tensors"]
                self.seconds[step] = max(entry["seconds"], self.seconds.get(step, 0.0))
            case "empty":
                self.empty.append(EmptyBatch(entry["step"], entry["micro_step"], rank, tuple(entry["sample_ids"])))
            case "all_nan":
                self.all_nan[rank] = entry["step"]
            case "end":
                self.ends[rank] = entry

    @property
    def steps_done(self) -> int:
        """Steps that every rank has logged; ranks log them in order."""
        return min((sum(rank in found for found in self.losses.values()) for rank in range(self.world)), default=0)

    def loss(self, step: int) -> float:
        """The loss of a step, mean over the ranks; NaN when one of them is."""
        found = self.losses.get(step, {})
        return sum(found.values()) / self.world if len(found) == self.world else math.nan

    def curve(self) -> list[float]:
        """The losses of all steps so far."""
        return [self.loss(step) for step in range(self.steps_done)]

    def left_out(self) -> list[int]:
        """Steps whose loss is NaN and whose update nevertheless left no NaN in any parameter of any rank."""
        return [
            step
            for step in range(self.steps_done)
            if not math.isfinite(self.loss(step)) and not any(self.nan_tensors[step].values())
        ]

    @property
    def ruined_from(self) -> int | None:
        """The step from which every parameter tensor of every rank holds a NaN."""
        return max(self.all_nan.values()) if len(self.all_nan) == self.world else None
