"""
A question to all ranks through the job's store: where are you?

Keys carry the incarnation, so that none is mistaken for one of another start. Before the first question there is none.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Self

from torch.distributed import distributed_c10d

from firstbad.agent.whereabouts import Standing

_TIMEOUT = timedelta(seconds=5)
_QUESTION = "question"
"""Holds the name of the latest question."""


class StoreGone(RuntimeError):
    """The process that hosts the store has left."""


class Enquiry:
    """
    One rank's side of the questions. For one thread: a store's client serves one caller at a time.

    No method waits for a key. All of them raise RuntimeError when the store fails.

    Args:
        store: the store, under a prefix of the incarnation.
        rank, world_size: of the job.
        line: a connection to the store's host that says when the host leaves; None where the store has none.
    """

    def __init__(self, store: Any, rank: int, world_size: int, line: socket.socket | None = None) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._line = line
        self._answered: set[str] = set()

    @classmethod
    def open(cls, incarnation: str, rank: int, world_size: int) -> Self:
        """On the store of the job's process group, with a client of its own where torch can make one."""
        store = distributed_c10d._get_default_store()
        line = _line_to(store)
        if hasattr(store, "clone"):
            store = store.clone()
            store.set_timeout(_TIMEOUT)
        return cls(distributed_c10d.PrefixStore(f"firstbad/{incarnation}", store), rank, world_size, line)

    def pending(self) -> str | None:
        """The latest question, if this rank has not answered it: one look into the store."""
        self._check_line()
        if not self._store.check([_QUESTION]):
            return None
        question: str = self._store.get(_QUESTION).decode()
        return None if question in self._answered else question

    def ask(self, question: str) -> bool:
        """Raise a question; true for the rank that was the first to raise it."""
        self._check_line()
        self._store.set(_QUESTION, question)
        return int(self._store.add(f"{question}/asked", 1)) == 1

    def answer(self, question: str, standing: Standing) -> None:
        """This rank's answer, once a question."""
        if question not in self._answered:
            self._answered.add(question)
            self._store.set(f"{question}/{self._rank}", standing.encode())

    def collect(self, question: str, answers: dict[int, Standing]) -> bool:
        """Add the answers that have come since; true when every rank has answered."""
        for rank in range(self._world_size):
            key = f"{question}/{rank}"
            if rank not in answers and self._store.check([key]):
                answers[rank] = Standing.decode(self._store.get(key))
        return len(answers) == self._world_size

    def conclude(self, question: str, text: str) -> None:
        """Share what the first asker has found, so that all say the same and only one rank reads all answers."""
        self._store.set(f"{question}/conclusion", text)

    def conclusion(self, question: str) -> str | None:
        """What the first asker has found; None as long as it has found nothing."""
        key = f"{question}/conclusion"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            self._line.close()

    def _check_line(self) -> None:
        # torch prints a page of C++ frames when a request meets a closed connection, and the host of the store, rank 0
        # where no launcher is, may rightly be the first to leave.
        if self._line is None:
            return
        try:
            left = not self._line.recv(1)
        except BlockingIOError:
            return
        except OSError:
            left = True
        if left:
            raise StoreGone("the process that hosts the store has left")


def _line_to(store: Any) -> socket.socket | None:
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    if not hasattr(store, "port"):  # only a TCPStore has a host that can leave
        return None
    line = socket.create_connection((store.host, store.port), timeout=_TIMEOUT.total_seconds())
    line.setblocking(False)
    return line
