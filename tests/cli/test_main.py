"""The door itself: help, version, exit codes, and errors that a person can act on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commandline import Console, run_firstbad

from firstbad.cli.docs import PAGE, page

REPO = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from pathlib import Path
from firstbad.collector.store import Store
with Store.open(Path("db"), purpose="collect", create=True):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_the_page_about_the_command_line_is_fresh() -> None:
    """docs/cli.md is what the parser says; `make docs` renews it."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("argparse words its help differently from one Python to the next; the page is made with 3.11")

    assert (REPO / PAGE).read_text(encoding="utf-8") == page()


def test_help_and_version(console: Console) -> None:
    """Both go to standard output with exit code 0, and every command is listed."""
    version, help_text = console("--version"), console("--help")

    assert version.code == help_text.code == 0
    assert version.out.startswith("firstbad ")
    for name in ("demo", "collect", "runs", "incidents", "show", "verify", "sql", "migrate"):
        assert f"    {name} " in help_text.out
        assert console(name if name != "demo" else "runs", "--help").code == 0


@pytest.mark.parametrize(
    "argv",
    [(), ("unknown",), ("show",), ("show", "clean", "x"), ("sql",), ("runs", "--nonsense"), ("show", "clean", "--js")],
)
def test_wrong_usage_is_exit_code_2(console: Console, argv: tuple[str, ...]) -> None:
    """argparse says what is wrong on standard error."""
    answer = console(*argv)

    assert answer.code == 2
    assert answer.out == ""
    assert "usage: firstbad" in answer.err


@pytest.mark.parametrize(
    "argv", [("runs",), ("incidents",), ("show", "latest"), ("verify", "latest"), ("sql", "SELECT 1")]
)
def test_a_wrong_path_says_what_was_looked_for(tmp_path: Path, console: Console, argv: tuple[str, ...]) -> None:
    """The path, what is there instead, and which command makes a ledger; and nothing is made."""
    answer = console(*argv, "--db", str(tmp_path / "nowhere"))

    assert answer.code == 2
    assert answer.out == ""
    assert str(tmp_path / "nowhere") in answer.err
    assert "firstbad collect" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_and_a_foreign_folder_are_no_ledger(tmp_path: Path, console: Console) -> None:
    """Each is told from a missing folder."""
    (tmp_path / "notes.txt").write_text("x")

    assert "it is a file" in console("runs", "--db", str(tmp_path / "notes.txt")).err
    assert "holds no ledger" in console("runs", "--db", str(tmp_path)).err


def test_the_default_path_and_the_environment_are_named(tmp_path: Path) -> None:
    """Without --db and FIRSTBAD_DB the ledger is firstbad-ledger/db below the current folder."""
    assert "firstbad-ledger/db" in run_firstbad("runs", cwd=tmp_path).err


def test_a_locked_ledger_names_who_holds_it(tmp_path: Path) -> None:
    """The pid, the purpose, since when, and the command of the real process that holds it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        answers = [run_firstbad(*argv, "--db", "db", cwd=tmp_path) for argv in (("runs",), ("migrate",))]
        holder.stdin.close()

    for answer in answers:
        assert answer.code == 2
        assert answer.out == ""
        for word in (f"process {holder.pid}", "collect", "since 2", "command: -c"):
            assert word in answer.err
        assert "Traceback" not in answer.err


def test_an_empty_ledger_says_how_to_get_data(tmp_path: Path) -> None:
    """After migrate alone: runs and incidents are empty and say why, latest is not to be had."""
    assert run_firstbad("migrate", "--db", "db", cwd=tmp_path).code == 0
    again = run_firstbad("migrate", "--db", "db", "--json", cwd=tmp_path)
    runs = run_firstbad("runs", "--db", "db", "--json", cwd=tmp_path)
    incidents = run_firstbad("incidents", "--db", "db", cwd=tmp_path)
    verify = run_firstbad("verify", "latest", "--db", "db", cwd=tmp_path)

    assert again.json["applied"] == []
    assert again.json["present"]
    assert (runs.code, runs.json) == (0, [])
    assert (incidents.code, incidents.out) == (0, "")
    assert (verify.code, verify.out) == (2, "")
    for answer in (runs, incidents, verify):
        assert "holds no runs yet" in answer.err
        assert "firstbad collect --once" in answer.err


def test_a_ledger_without_tables_names_the_command(tmp_path: Path) -> None:
    """A folder that was made but never migrated."""
    subprocess.run([sys.executable, "-c", HOLDER], cwd=tmp_path, input="", text=True, capture_output=True, check=True)

    answer = run_firstbad("runs", "--db", "db", cwd=tmp_path)

    assert answer.code == 2
    assert "firstbad migrate --db db" in answer.err


def test_the_traceback_is_there_when_asked_for(tmp_path: Path, console: Console) -> None:
    """--traceback, before or after the command, adds the frames; without it there are none."""
    path = str(tmp_path / "nowhere")

    assert "Traceback" not in console("runs", "--db", path).err
    assert "StoreMissing" in console("runs", "--db", path, "--traceback").err
    assert "StoreMissing" in console("--traceback", "runs", "--db", path).err


def test_a_reader_that_leaves_early_is_no_error(sample_copy: Path) -> None:
    """`firstbad sql ... | head -1` ends quietly."""
    query = "SELECT number, repeat('x', 1000) AS x FROM numbers(20000)"
    command = f'{sys.executable} -m firstbad.cli sql "{query}" --db {sample_copy} | head -1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.split() == ["number", "x"]


def test_a_closed_standard_output_is_no_bug(tmp_path: Path) -> None:
    """Schedulers start commands without one; the message still comes by standard error."""
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m firstbad.cli runs --db nowhere >&-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in firstbad" not in done.stderr
