"""Runs command lines: in the process that holds the sample ledger open, or each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, read by a strict JSON parser."""

        def refuse(name: str) -> None:
            raise ValueError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


class Console:
    """Runs command lines in the process that holds the sample ledger open."""

    def __init__(self, process: subprocess.Popen[str], db: Path) -> None:
        self._process = process
        self.db = db
        self._known: dict[tuple[object, ...], Answer] = {}

    def __call__(self, *argv: str, stdin: str = "", columns: int | None = None) -> Answer:
        """`firstbad ARGV...`, with FIRSTBAD_DB set. The sample never changes, so a report is made once."""
        if argv[:1] and argv[0] in ("runs", "incidents", "show", "verify") and "--db" not in argv:
            key = (argv, columns)
            if key not in self._known:
                self._known[key] = self._ask(argv, stdin, columns)
            return self._known[key]
        return self._ask(argv, stdin, columns)

    def _ask(self, argv: tuple[str, ...], stdin: str, columns: int | None) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        question = {"argv": argv, "stdin": stdin, "columns": columns}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the console process ended with {self._process.poll()}"
        return Answer(**json.loads(line))


def run_firstbad(*argv: str, cwd: Path, stdin: str = "") -> Answer:
    """`firstbad ARGV...` in a process of its own, without FIRSTBAD_ variables, in the folder `cwd`."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("FIRSTBAD_")}
    command = [sys.executable, "-m", "firstbad.cli", *argv]
    done = subprocess.run(
        command, cwd=cwd, input=stdin, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    return Answer(done.returncode, done.stdout, done.stderr)
