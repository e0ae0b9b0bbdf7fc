"""One training: real torchrun, real ranks, watched through the script's own logs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from firstbad.cli.demo.errors import TrainingFailed
from firstbad.cli.demo.ranklogs import RankLogs

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Training:
    """What to run in `folder`; `agent` are the words between torchrun's and the script, none for a bare training."""

    folder: Path
    name: str
    world: int
    agent: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """torchrun's arguments."""
        launch = ("--standalone", "--nproc-per-node", str(self.world))
        return (*launch, *self.agent, "train.py", "--data", "data.npz", "--out", f"logs/{self.name}")

    @property
    def output(self) -> Path:
        """What torchrun and the ranks print."""
        return self.folder / "logs" / f"{self.name}.txt"

    def run(self, watch: Callable[[RankLogs], None]) -> RankLogs:
        """
        Train to the end, calling `watch` whenever the ranks have logged something.

        Ctrl-C, and anything else that `watch` raises, ends torchrun and its ranks before it leaves here.

        Raises:
            TrainingFailed: torchrun gave another exit code than 0.
        """
        logs = RankLogs(self.folder / "logs" / self.name, self.world)
        self.output.parent.mkdir(exist_ok=True)
        with self.output.open("w") as output, contextlib.closing(logs):
            process = self._start(output)
            try:
                while process.poll() is None:
                    if logs.read_new():
                        watch(logs)
                    time.sleep(_POLL_SECONDS)
            except BaseException:
                end(process, list(logs.pids.values()))
                raise
            logs.read_new()
            watch(logs)
        if process.returncode:
            raise TrainingFailed(
                f"the training {self.name!r} ended with code {process.returncode}. Its output is in {self.output}; the "
                f"last lines:\n{tail(self.output)}"
            )
        return logs

    def _start(self, output: IO[str]) -> subprocess.Popen[bytes]:
        # Settings of the user's own runs are none of the demo's; one thread a rank, as the script has it anyway.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTBAD_")}
        environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *self.arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            # Ctrl-C must reach torchrun once, from here, and not also from the terminal.
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], ranks: Sequence[int]) -> None:
    """
    End torchrun, which ends its ranks; kill what is left after a while.

    A second Ctrl-C meanwhile kills at once. `ranks` are the process ids of the ranks, which are in sessions of their
    own; they are used only while torchrun, their parent, has not been waited for.
    """
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines that the ranks printed; torchrun's own report about them, which follows, is left out."""
    printed = path.read_text(errors="replace").splitlines()
    report = next((number for number, line in enumerate(printed) if "failed (exitcode:" in line), 0)
    return "\n".join((printed[:report] or printed)[-lines:])
