"""The launcher is faithful: a program cannot tell it from plain python, and neither can who waits for the program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from probes import PROBES, Probe

PLAIN = ()
LAUNCHED = ("-m", "firstbad.agent")


def run(folder: Path, launcher: tuple[str, ...], probe: Probe) -> tuple[int, str, str]:
    """Exit code (negative: signal), standard output and standard error of one run, without addresses of objects."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTBAD_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *probe.flags, *launcher, *probe.words],
        cwd=folder,
        env=environment,
        input=probe.standard_input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output, errors = (re.sub(r" at 0x[0-9a-f]+", "", text) for text in (done.stdout, done.stderr))
    return done.returncode, output, errors.splitlines()[-1] if probe.last_line_only else errors


@pytest.mark.parametrize("name", PROBES)
def test_program_sees_and_shows_what_it_does_under_plain_python(name: str, tmp_path: Path) -> None:
    """Exit code, output, and error output with tracebacks are the same to the byte."""
    probe = PROBES[name]
    for path, text in probe.all_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    for path, target in probe.links.items():
        (tmp_path / path).symlink_to(target)
    # Twice plain: the first run leaves bytecode behind, which a program can see.
    run(tmp_path, PLAIN, probe)
    plain = run(tmp_path, PLAIN, probe)
    launched = run(tmp_path, LAUNCHED, probe)
    assert launched == plain
    assert not (tmp_path / "firstbad-ledger").exists(), "a program without torch has no ledger"
