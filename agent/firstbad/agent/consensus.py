"""
The collective side of the guard: a process group of its own, the meeting of the ranks at start, one reduce a step.

A group of its own, so that a mismatch of ours can neither reorder nor abort the job's own collectives. It is made right
after the job's group, on every rank, with the same backend and the same timeout.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from firstbad.agent.errors import ConsensusFailed, SettingsMismatch
from firstbad.agent.lanes import Count
from firstbad.agent.watchdog import Watchdog

_WORD = 1024
"""Bytes for the shared identity: 16 for the incarnation, the rest for a run id of 200 characters in UTF-8."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a rank brings to the meeting: a description of its settings, and a refusal when it cannot run."""

    description: str
    refusal: str | None = None

    def fingerprint(self) -> int:
        """63 bits over the description."""
        return int.from_bytes(hashlib.blake2b(self.description.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True, slots=True)
class Meeting:
    """What all ranks know after the meeting."""

    run_id: str
    incarnation: str
    hosts: tuple[int, ...]
    """A number per rank that is equal for ranks on one host."""
    clock_offset_seconds: float | None
    """This rank's clock minus rank 0's."""


class Consensus:
    """
    The agent's own group over all ranks of the job; without torch.distributed a world of one.

    Every rank must `form` it at the same point of the program and call its methods in the same order.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        backend: str | None,
        group: Any,
        device: torch.device,
        timeout: timedelta | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.backend = backend
        self._group = group
        self._device = device
        self.timeout = timeout
        """Of the job's own group and this one; None where it is torch's default or there is no group."""

    @property
    def alone_by_need(self) -> bool:
        """There was no process group when this was made."""
        return self.backend is None

    @classmethod
    def form(cls) -> Consensus:
        """The group over all ranks; collective where the job has a process group."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls.alone()
        rank, world_size, backend = dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
        timeout = _timeout()
        group = dist.new_group(timeout=timeout) if world_size > 1 else None
        return cls(rank, world_size, backend, group, _collective_device(), timeout)

    @classmethod
    def alone(cls) -> Consensus:
        """A world of one, for a script without a process group or one that failed before the ranks could meet."""
        in_group = dist.is_available() and dist.is_initialized()
        rank = dist.get_rank() if in_group else int(os.environ.get("RANK", "0"))
        return cls(rank, 1, None, None, torch.device("cpu"))

    def owns(self, group: Any) -> bool:
        """Whether `group` is the agent's own process group."""
        return group is not None and group is self._group

    def meet(self, terms: Terms, run_id: str, incarnation: str) -> Meeting:
        """
        Compare settings, share identity, measure clocks. Collective; waits for every rank.

        Args:
            terms: this rank's settings.
            run_id, incarnation: used from rank 0, ignored elsewhere.

        Raises:
            SettingsMismatch: on every rank when settings differ or a rank refused, naming the odd ranks.
        """
        if self._group is None:
            if terms.refusal:
                raise SettingsMismatch(terms.refusal)
            return Meeting(run_id, incarnation, (0,) * (self.rank + 1), None)
        mine = terms.fingerprint()
        lowest, negated, refused = self._reduce([mine, -mine, -int(terms.refusal is not None)])
        if lowest != -negated or refused:
            self._explain(terms)
        shared = self._broadcast(bytes.fromhex(incarnation) + run_id.encode()[: _WORD - 16])
        offset = self._clock_offset()
        host = int.from_bytes(hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest())
        return Meeting(
            run_id=shared[16:].rstrip(b"\0").decode(errors="replace"),
            incarnation=shared[:16].hex(),
            hosts=self._gather(host),
            clock_offset_seconds=offset,
        )

    def decide(self, lanes: list[int], watchdog: Watchdog) -> list[int]:
        """
        The one collective of a step window: MIN over all ranks of the lanes. Waits for every rank.

        On an accelerator the vector is copied to the host, which waits for the device.

        Args:
            lanes: this rank's ballot.
            watchdog: told of the wait; says who is where when it fails.

        Raises:
            ConsensusFailed: a peer died or did not answer within the group's timeout; names it where it can be known.
        """
        if self._group is None:
            return lanes
        with watchdog.waiting():
            try:
                return self._reduce(lanes)
            except RuntimeError as error:
                where = watchdog.after_failure() or "Which one it is, the job's store does not say"
                raise ConsensusFailed(
                    f"rank {self.rank} could not take the decision of step {Count.of(lanes).lowest_step} with its "
                    f"{self.world_size - 1} peers: {error}. A peer has died, left the loop early or hangs. {where}. "
                    "Look at the output of the ranks that do not wait in the decision first. No rank may decide alone, "
                    "so this one ends; let torchrun restart the job."
                ) from error

    def steps(self, step: int) -> tuple[int, ...] | None:
        """
        The step that each rank decides, in rank order; None when a peer is gone. Waits for every rank.

        For the ranks that have just reduced lanes of different steps, and so are all here.
        """
        if self._group is None:
            return (step,)
        try:
            return self._gather(step)
        except RuntimeError:
            return None

    def _reduce(self, values: list[int]) -> list[int]:
        tensor = torch.tensor(values, dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def _broadcast(self, payload: bytes) -> bytes:
        tensor = torch.zeros(_WORD, dtype=torch.uint8)
        if self.rank == 0:
            tensor[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        tensor = tensor.to(self._device)
        dist.broadcast(tensor, src=0, group=self._group)
        return bytes(tensor.tolist())

    def _gather(self, value: int) -> tuple[int, ...]:
        mine = torch.tensor([value], dtype=torch.int64, device=self._device)
        theirs = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(theirs, mine, group=self._group)
        return tuple(int(item.item()) for item in theirs)

    def _clock_offset(self) -> float:
        # The previous collective has just lined the ranks up, so the age of rank 0's reading is one broadcast's time.
        tensor = torch.tensor([time.time_ns() // 1_000], dtype=torch.int64, device=self._device)
        dist.broadcast(tensor, src=0, group=self._group)
        return 0.0 if self.rank == 0 else (time.time_ns() // 1_000 - int(tensor.item())) / 1e6

    def _explain(self, terms: Terms) -> None:
        words: list[Any] = [None] * self.world_size
        dist.all_gather_object(words, (terms.description, terms.refusal), group=self._group)
        refusals = [f"rank {rank}: {refusal}" for rank, (_, refusal) in enumerate(words) if refusal]
        if refusals:
            raise SettingsMismatch("firstbad was refused at start, so no rank goes on. " + "; ".join(refusals))
        usual, _ = Counter(description for description, _ in words).most_common(1)[0]
        odd = [f"rank {rank} has [{text}]" for rank, (text, _) in enumerate(words) if text != usual]
        raise SettingsMismatch(
            f"ranks were started with different firstbad settings; most have [{usual}], but {'; '.join(odd)}. "
            "Give every rank the same options, FIRSTBAD_* variables and [tool.firstbad]."
        )


def _timeout() -> timedelta | None:
    """The timeout that the job's own group was made with; None means torch's default for the backend."""
    try:
        group: Any = dist.distributed_c10d._get_default_group()
        timeout: timedelta = group._get_backend(_collective_device()).options._timeout
    except (RuntimeError, AttributeError):
        return None
    return timeout


def _collective_device() -> torch.device:
    """Where the backend of the job's group wants its tensors; never taken from parameters."""
    if "nccl" in str(dist.get_backend()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
