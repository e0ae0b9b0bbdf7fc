"""
Examples for tests, whole scripts in two ranks: forks of one process that has imported their framework and run nothing.

Importing a framework costs 5 to 10 seconds a process, which real torchrun pays in every rank. Each rank finds the
environment that torchrun gives, and the store that torchrun's agent would hold is held by the test.
"""

from __future__ import annotations

import atexit
import importlib
import os
import runpy
import signal
import sys
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ledger
import rankworld
import torch
from torch.distributed import TCPStore

from firstbad.schema import Record

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORLD = 2
LIMIT_SECONDS = 60
"""A rank that takes longer is ended by its own alarm."""


@dataclass(frozen=True)
class Play:
    """One run of an example in a folder of its own; `launched` is the no-change door, else plain python."""

    example: str
    folder: Path
    arguments: tuple[str, ...] = ()
    launched: bool = True
    port: int = field(default=0)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def of(self, model: type[Any]) -> list[Any]:
        """The records of one type, by rank and seq."""
        return [record for record in self.records if type(record) is model]

    @property
    def records(self) -> list[Record]:
        return ledger.records(self.journal) if self.journal.exists() else []

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """Each rank's weights at the end, as the example saved them."""
        return [torch.load(self.folder / f"rank{rank}.pt") for rank in range(WORLD)]

    def output(self) -> str:
        """What the ranks have printed."""
        return "\n".join((self.folder / f"output{rank}").read_text() for rank in range(WORLD))


def perform(modules: tuple[str, ...], plays: list[Play]) -> None:
    """Run the plays one after the other; every rank of each must end well."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in plays]
    plays = [replace(play, port=store.port) for play, store in zip(plays, stores, strict=True)]
    limit = 60.0 + LIMIT_SECONDS * len(plays)
    (codes,) = rankworld.run(1, _host, modules, plays, group=False, timeout=limit)
    for play, code in zip(plays, codes, strict=True):
        assert code == [0] * WORLD, f"{play}: wait statuses {code}\n{play.output()}"


def _host(rank: int, modules: tuple[str, ...], plays: list[Play]) -> list[list[int]]:
    for module in modules:
        importlib.import_module(module)
    codes = []
    for play in plays:
        children = [os.fork() or _rank(play, number) for number in range(WORLD)]
        codes.append([os.waitpid(child, 0)[1] for child in children])
    return codes


def _rank(play: Play, rank: int) -> int:
    """In the child: what an interpreter does with a script, from its arguments to its end."""
    signal.alarm(LIMIT_SECONDS)
    # A fork inherits a thread pool without its threads; torch replaces it at the first use, which must not be a race.
    torch.set_num_threads(1)
    atexit._clear()
    output = os.open(play.folder / f"output{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(play.folder)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(play.port), TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0",
        FIRSTBAD_JOURNAL=str(play.journal), FIRSTBAD_RUN_ID="run",
    )  # fmt: skip
    script = str(EXAMPLES / play.example / "train.py")
    words = [script, *play.arguments, "--save", "."]
    code = 0
    try:
        if play.launched:
            from firstbad.agent.launcher import main

            main(words)
        else:
            sys.argv = words
            runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
