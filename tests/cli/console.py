"""
Run as a program: `console.py DB` opens the ledger once and answers command lines, one JSON object a line.

The engine opens one folder per process and takes a second for it, so the tests share this process. Asked
{"argv": [...], "stdin": "", "columns": null}, it runs firstbad.cli.main in-process and answers {"code", "out", "err"};
`columns` makes standard output a terminal of that width.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from firstbad.cli import main
from firstbad.cli.ledger import open_store
from firstbad.collector.store import Store


class Screen(io.StringIO):
    """A text stream that calls itself a terminal."""

    def isatty(self) -> bool:
        """Whether it is one."""
        return True


def answer(store: Store, question: dict[str, Any]) -> dict[str, Any]:
    """The outcome of one command line."""

    def lend(path: Path, *, purpose: str, create: bool = False) -> Any:
        if path == store.path:
            return contextlib.nullcontext(store)
        return open_store(path, purpose=purpose, create=create)

    out = Screen() if question["columns"] else io.StringIO()
    err = io.StringIO()
    before = sys.stdin, sys.stdout, sys.stderr
    os.environ["COLUMNS"] = str(question["columns"] or 80)
    try:
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(question["stdin"]), out, err
        code = main(question["argv"], opener=lend)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def serve(db: Path) -> None:
    """Answer until standard input ends."""
    os.environ["FIRSTBAD_DB"] = str(db)
    os.environ["TERM"] = "xterm"
    os.environ.pop("NO_COLOR", None)
    with Store.open(db, purpose="tests") as store:
        for line in sys.stdin:
            print(json.dumps(answer(store, json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
