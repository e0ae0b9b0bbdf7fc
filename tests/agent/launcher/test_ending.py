"""When the launcher makes the guard, and what it tells the guard about the program's end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DRIVER = """
import sys
from firstbad.agent.launcher import main

class Recording:
    def __init__(self, settings):
        print("guard", settings.policy.value, flush=True)

    def finish(self, outcome, exit_code=None, error=None):
        print("finish", outcome.value, exit_code, repr(error), flush=True)

main(sys.argv[1:], make_guard=Recording)
"""
# Stands for torch, which takes seconds to import: it shows what torch would find in the environment.
TORCH = """
import os
print("torch", os.environ.get("OMP_NUM_THREADS"), flush=True)
if os.environ.pop("TORCH_IS_BROKEN", None):
    raise ImportError("broken")
"""
BEGUN = ["torch None", "guard skip"]

LATE = """
atexit.register(print, "exit", flush=True)
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread", flush=True))).start()
"""

ENDINGS: dict[str, tuple[str, list[str], int]] = {
    "end": ("", [*BEGUN, "finish finished 0 None"], 0),
    "exit with nothing": ("sys.exit()", [*BEGUN, "finish finished 0 None"], 0),
    "exit with 256, which a process cannot return": ("sys.exit(256)", [*BEGUN, "finish finished 0 None"], 0),
    "exit with a code": ("sys.exit(3)", [*BEGUN, "finish failed 3 SystemExit(3)"], 3),
    "exit with a text": ("sys.exit('no data')", [*BEGUN, "finish failed 1 SystemExit('no data')"], 1),
    "exception": ("raise ValueError('nan')", [*BEGUN, "finish failed 1 ValueError('nan')"], 1),
    "interrupt": ("os.kill(os.getpid(), 2)", [*BEGUN, "finish failed 130 KeyboardInterrupt()"], -2),
    "stop by policy": ("raise STOP", [*BEGUN, "finish stopped 1 RunStopped('budget used up')"], 1),
    "stop by policy, raised on by a trainer": (
        "try: raise STOP\nexcept RuntimeError as error: raise ValueError('epoch 1') from error",
        [*BEGUN, "finish stopped 1 RunStopped('budget used up')"],
        1,
    ),
    "stop by policy, answered with an exit": (
        "try: raise STOP\nexcept RuntimeError: sys.exit(7)",
        [*BEGUN, "finish stopped 7 RunStopped('budget used up')"],
        7,
    ),
    "stop by policy, answered with an error of another kind": (
        "try: raise STOP\nexcept RuntimeError: raise ValueError('cannot save')",
        [*BEGUN, "finish failed 1 ValueError('cannot save')"],
        1,
    ),
    "good end is told after threads and before atexit callbacks": (
        LATE,
        [*BEGUN, "thread", "finish finished 0 None", "exit"],
        0,
    ),
    "failure is told before threads are joined": (
        LATE + "raise ValueError('nan')",
        [*BEGUN, "finish failed 1 ValueError('nan')", "thread", "exit"],
        1,
    ),
    "a callback that ends the process comes after the good end is told": (
        "atexit.register(os._exit, 4)",
        [*BEGUN, "finish finished 0 None"],
        4,
    ),
    "os._exit ends without a word": ("os._exit(5)", BEGUN, 5),
    "SIGTERM ends without a word": ("os.kill(os.getpid(), 15)", BEGUN, -15),
    "a fork has no end of its own": (
        "child = os.fork()\nif child == 0: sys.exit(3)\nprint(os.waitpid(child, 0)[1], flush=True)",
        [*BEGUN, "768", "finish finished 0 None"],
        0,
    ),
}


def launch(folder: Path, source: str, *options: str, **environ: str) -> tuple[list[str], int, str]:
    """Lines of standard output, exit code and standard error of a launched program."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(TORCH)
    (folder / "driver.py").write_text(DRIVER)
    (folder / "train.py").write_text(textwrap.dedent(source))
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTBAD_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "driver.py", *options, "train.py"],
        cwd=folder,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode, done.stderr


@pytest.mark.parametrize("name", ENDINGS)
def test_guard_hears_how_the_program_ended(name: str, tmp_path: Path) -> None:
    """The outcome, the code that the process then returns, and the error; at the right time, once."""
    source, lines, code = ENDINGS[name]
    header = (
        "import atexit, os, sys, threading, torch\n"
        "from firstbad.agent import RunStopped\n"
        "STOP = RunStopped('budget used up', step=3, event_id='0' * 32, last_good_step=2)\n"
    )
    seen, returned, _ = launch(tmp_path, header + source)
    assert (seen, returned) == (lines, code)


def test_torch_sees_what_the_script_set_before_importing_it(tmp_path: Path) -> None:
    """The launcher does not import torch before the script does; the guard is there when the import returns."""
    seen, _, _ = launch(
        tmp_path,
        """
        import os, sys
        assert "torch" not in sys.modules
        os.environ["OMP_NUM_THREADS"] = "5"
        import torch
        print("script", type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
        """,
    )
    assert seen == ["torch 5", "guard skip", "script SourceFileLoader SourceFileLoader", "finish finished 0 None"]


def test_asking_whether_torch_is_there_imports_nothing(tmp_path: Path) -> None:
    """Libraries look for torch's spec to learn what is installed."""
    seen, _, _ = launch(tmp_path, "import importlib.util; print(importlib.util.find_spec('torch').name)")
    assert seen == ["torch"]


def test_guard_is_made_when_a_second_import_of_torch_succeeds(tmp_path: Path) -> None:
    """A script may catch a failing import and try again."""
    seen, code, _ = launch(
        tmp_path,
        """
        try:
            import torch
        except ImportError:
            import torch
        """,
        TORCH_IS_BROKEN="1",
    )
    assert (seen, code) == (["torch None", "torch None", "guard skip", "finish finished 0 None"], 0)


def test_import_in_a_fork_attaches_nothing(tmp_path: Path) -> None:
    """A child that was forked before torch is no rank of this launcher; the parent still gets its guard."""
    seen, _, _ = launch(
        tmp_path,
        """
        import os
        child = os.fork()
        if child == 0:
            import torch
            os._exit(0)
        os.waitpid(child, 0)
        import torch
        """,
    )
    assert seen == ["torch None", "torch None", "guard skip", "finish finished 0 None"]


def test_a_guard_that_cannot_be_made_ends_the_program(tmp_path: Path) -> None:
    """A rank without a guard must not train beside ranks that wait for its word."""
    (tmp_path / "broken.py").write_text(
        "import sys\nfrom firstbad.agent.launcher import main\n"
        "def make(settings): raise RuntimeError('cannot attach')\n"
        "main(['train.py'], make_guard=make)\n"
    )
    launch(tmp_path, "import torch\nprint('trained without a guard')")
    done = subprocess.run(
        [sys.executable, "broken.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "torch None\n"
    assert done.stderr.endswith("RuntimeError: cannot attach\n")


def test_settings_reach_the_guard(tmp_path: Path) -> None:
    """From the command line over the environment."""
    seen, _, _ = launch(tmp_path, "import torch", "--policy=observe", FIRSTBAD_POLICY="stop")
    assert seen[1] == "guard observe"


def test_nothing_runs_with_a_bad_setting(tmp_path: Path) -> None:
    """Exit code 2 before the script's first line, every problem named."""
    seen, code, errors = launch(tmp_path, "print('ran')", "--policy", "skpi", FIRSTBAD_MAX_SKIP_RATIO="2")
    assert (seen, code) == ([], 2)
    assert "'skpi'" in errors
    assert "'2'" in errors
