"""
Ranks for tests: processes forked from a warm server that has imported torch but run nothing.

Importing torch costs seconds per process; a fork of a process that has imported it, and run no op yet, costs
milliseconds. Each rank gets a gloo process group over a file store and one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch._decomp",
        "torch.distributed.nn",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch.distributed.pipelining",
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
        "firstbad.agent.guard",
        "rankworld",
        "drills",
        "buffers",
        "habits",
        "hookless",
        "scaling",
        "ledger",
        "tests.drills.train",
        "frozen",
        "stuck",
    ]
)


class RankFailed(AssertionError):
    """A rank of the test raised; the text holds its traceback."""


def run(world: int, function: Callable[..., Any], *args: Any, timeout: float = 90.0, group: bool = True) -> list[Any]:
    """
    Call `function(rank, *args)` in `world` ranks; the results in rank order.

    Args:
        group: make a gloo process group before the call (the guard's own order may matter to a test: then False and
            the function calls `join`).
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        pipes, processes = start(world, folder, function, *args, group=group)
        try:
            return _collect(pipes, processes, timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def start(
    world: int, folder: str, function: Callable[..., Any], *args: Any, group: bool = True
) -> tuple[list[Connection], list[Any]]:
    """Begin `function(rank, *args)` in `world` ranks that share `folder`; their result pipes and processes."""
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_main, args=(theirs, rank, world, folder, group, function, args), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    return pipes, processes


def _collect(pipes: list[Connection], processes: list[Any], timeout: float) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    failures: dict[int, str] = {}
    waiting = dict(enumerate(pipes))
    while waiting:
        ready = wait(list(waiting.values()), timeout)
        if not ready:
            raise RankFailed(
                f"ranks {sorted(waiting)} gave no result within {timeout:.0f} s; failures so far: {failures}"
            )
        for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
            try:
                ok, value = waiting.pop(rank).recv()
            except EOFError:
                processes[rank].join(5)
                ok, value = False, f"died with exit code {processes[rank].exitcode} and no result"
            if ok:
                results[rank] = value
            else:
                failures[rank] = value
    if failures:
        raise RankFailed("\n".join(f"rank {rank}: {text}" for rank, text in sorted(failures.items())))
    return results


def join(rank: int, world: int, folder: str) -> None:
    """Make the job's own process group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)


def _main(pipe: Connection, rank: int, world: int, folder: str, group: bool, function: Any, args: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), RANKWORLD_FOLDER=folder)
    import torch

    torch.set_num_threads(1)
    try:
        if group:
            join(rank, world, folder)
        value = function(rank, *args)
        pipe.send((True, value))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        sys.stdout.flush()
        # No teardown: a rank's process group may wait for peers that a test has killed on purpose.
        os._exit(0)


def folder() -> Path:
    """The folder that the ranks of one `run` share; it goes away with it."""
    return Path(os.environ["RANKWORLD_FOLDER"])
