"""Ranks that wait for each other: what their watchdogs say, and what they leave in the job's store."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import rankworld
import torch
import torch.distributed as dist
from torch import nn

from firstbad.agent import watchdog
from firstbad.agent.guard import Guard
from firstbad.schema import Outcome


@dataclass(frozen=True)
class Trouble:
    """
    What goes wrong, at step 2, and how the watchdogs are set.

    Args:
        kind: `continue` (a local one), `kill`, `stop` (SIGSTOP), `late` or none.
        rank: whose trouble.
        patience, answer: seconds, see the watchdog.
        timeout: seconds, of the process group.
        relieve: kill the rank in trouble when its peers have said where it is.
        port: of a TCPStore to meet in, instead of the file.
    """

    kind: str | None = None
    rank: int = 1
    patience: float = 60.0
    answer: float = 20.0
    timeout: float = 60.0
    relieve: bool = False
    port: int | None = None


class _Said(logging.Handler):
    def __init__(self, relieved: Path | None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._relieved = relieved

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self._relieved is not None and "has waited" in self.lines[-1]:
            os.kill(int(self._relieved.read_text()), signal.SIGKILL)


def _join(rank: int, world: int, trouble: Trouble) -> Any:
    if trouble.port is None:
        store: Any = dist.FileStore(str(rankworld.folder() / "store"), world)
    else:
        store = dist.TCPStore("127.0.0.1", trouble.port, world, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=trouble.timeout)
    )
    return store


def play(rank: int, trouble: Trouble, out: str) -> None:
    """Train four steps with DDP; what was said and raised goes to `out`/RANK, a line each, keys of ours to `keys`."""
    watchdog.LOOK_SECONDS = 0.05
    watchdog.PATIENCE_SECONDS, watchdog.ANSWER_SECONDS = trouble.patience, trouble.answer
    culprit = rankworld.folder() / "culprit"
    if rank == trouble.rank:
        culprit.write_text(str(os.getpid()))
    said = _Said(culprit if trouble.relieve else None)
    logger = logging.getLogger("firstbad")
    logger.addHandler(said)
    logger.setLevel(logging.DEBUG)
    store = _join(rank, int(os.environ["WORLD_SIZE"]), trouble)
    guard = Guard(journal=str(rankworld.folder() / "journal"), at_exit=False)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(4):
            in_trouble = trouble.kind if (rank, step) == (trouble.rank, 2) else None
            model(torch.ones(1, 2)).sum().backward()
            if in_trouble == "late":
                time.sleep(0.5)
            if in_trouble == "continue":
                continue
            if in_trouble in {"kill", "stop"}:
                os.kill(os.getpid(), signal.SIGKILL if in_trouble == "kill" else signal.SIGSTOP)
            optimizer.step()
    except RuntimeError as error:
        said.lines.append(f"{type(error).__name__}: {error}".replace("\n", " "))
        if trouble.kind == "stop":
            os.kill(int(culprit.read_text()), signal.SIGKILL)
    guard.finish(Outcome.FINISHED)
    if any(thread.name == "firstbad-watchdog" for thread in threading.enumerate()):
        said.lines.append("the watchdog goes on after the end")
    (Path(out) / f"{rank}").write_text("\n".join(said.lines))
    if trouble.port is None:
        (Path(out) / f"{rank}.keys").write_text(str(Path(store.path).read_bytes().count(b"firstbad/")))


def leave_the_group(rank: int) -> bool:
    """Whether the watchdog ends, unasked, when the script has destroyed its process group."""
    watchdog.LOOK_SECONDS = 0.05
    guard = Guard(journal=str(rankworld.folder() / "journal"), at_exit=False)
    assert guard.fixedpoint.life is not None
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "firstbad-watchdog"]
    dist.destroy_process_group()
    thread.join(60)
    return not thread.is_alive()


def fork(rank: int) -> tuple[int, bool]:
    """The exit code of a child that uses the watchdog it has a copy of; whether the parent's goes on."""
    guard = Guard(journal=str(rankworld.folder() / "journal"), at_exit=False)
    life = guard.fixedpoint.life
    assert life is not None
    child = os.fork()
    if child == 0:
        with life.watchdog.waiting():
            answer = life.watchdog.after_failure()
        life.watchdog.stop()
        os._exit(0 if answer is None else 1)
    _, status = os.waitpid(child, 0)
    goes_on = any(thread.name == "firstbad-watchdog" and thread.is_alive() for thread in threading.enumerate())
    return os.waitstatus_to_exitcode(status), goes_on
