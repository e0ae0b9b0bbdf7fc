"""The launcher's command line: what is ours, what is the script's, and what is said when it is neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firstbad.agent.commandline import CommandLine, UsageError, parse
from firstbad.agent.settings import OPTIONS


@pytest.fixture(autouse=True)
def _folder_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "-odd.py").touch()
    (tmp_path / "pkg").mkdir()


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        (["train.py"], CommandLine({}, "train.py", False, ())),
        (["train.py", "--policy", "x", "-m", "--"], CommandLine({}, "train.py", False, ("--policy", "x", "-m", "--"))),
        (["--policy", "stop", "train.py"], CommandLine({"policy": "stop"}, "train.py", False, ())),
        (["--run-id=a=b", "train.py"], CommandLine({"run_id": "a=b"}, "train.py", False, ())),
        (["--run_id", "--", "train.py"], CommandLine({"run_id": "--"}, "train.py", False, ())),
        (["--policy=skip", "--policy=stop", "train.py"], CommandLine({"policy": "stop"}, "train.py", False, ())),
        (["--journal", "", "-m", "a.b", "-h"], CommandLine({"journal": ""}, "a.b", True, ("-h",))),
        (["-ma.b", "-m", "c"], CommandLine({}, "a.b", True, ("-m", "c"))),
        (["--", "-odd.py", "1"], CommandLine({}, "-odd.py", False, ("1",))),
    ],
)
def test_words_before_the_script_are_ours_and_all_after_it_are_not(words: list[str], parsed: CommandLine) -> None:
    """Parsing stops at the first word that is no option."""
    assert parse(words) == parsed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["no script given", "usage:"]),
        (["--policy", "skip"], ["no script given"]),
        (["--policy"], ["--policy needs a value", "observe|skip|stop"]),
        (["--polcy", "skip", "train.py"], ["--polcy", "did you mean --policy?", "--max-skip-ratio"]),
        (["-x", "train.py"], ["unknown option -x"]),
        (["-m"], ["-m needs the name of a module"]),
        (["tarin.py"], ["no script 'tarin.py'"]),
        (["pkg.train", "--lr", "1"], ["no script 'pkg.train'", "-m pkg.train"]),
        (["pkg"], ["'pkg' is a folder"]),
        (["-"], ["no script '-'"]),
    ],
)
def test_unusable_words_are_refused_with_what_would_be_right(words: list[str], told: list[str]) -> None:
    """The text names the word and the way out."""
    with pytest.raises(UsageError) as refusal:
        parse(words)
    assert all(each in str(refusal.value) for each in told), str(refusal.value)


def test_help_names_every_option_in_all_its_places() -> None:
    """Option, variable and key of every setting, and the defaults; -h behind an option's value is help too."""
    text = parse(["--policy", "skip", "-h"])
    assert isinstance(text, str)
    for option in OPTIONS:
        assert f"--{option.name} {option.metavar}" in text
        assert f"environment {option.variable}; key {option.name} in [tool.firstbad]" in text
    assert all(f"(default: {default})" in text for default in ("firstbad-ledger/journal", "skip", "10", "0.05"))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--polcy", "train.py"], ["no.py"], ["-m", "no.such"]])
def test_answers_without_torch(words: list[str], tmp_path: Path) -> None:
    """Help and refusals come at once, also where torch is not installed: 0 for an answer, 2 for a refusal."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "firstbad.agent", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    expected = {"--help": 0, "--version": 0, "-m": 1}.get(words[0], 2)  # a missing module ends python with 1
    assert done.returncode == expected, done.stderr
    assert bool(done.stdout) == (expected == 0)
    assert "Traceback" not in done.stderr
