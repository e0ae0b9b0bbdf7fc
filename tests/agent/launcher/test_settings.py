"""Where settings come from, which source wins, and how a bad one is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from firstbad.agent.settings import OPTIONS, Settings, SettingsError
from firstbad.schema import Policy


def project(folder: Path, text: str) -> Path:
    """Write [tool.firstbad] of a pyproject.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f"[tool.firstbad]\n{text}\n")
    return folder


def problems(arguments: dict[str, object], environ: dict[str, str], folder: Path) -> tuple[str, ...]:
    """What a resolution complains about."""
    with pytest.raises(SettingsError) as refusal:
        Settings.resolve(arguments, environ, folder)
    assert all(problem in str(refusal.value) for problem in refusal.value.problems)
    return refusal.value.problems


def test_defaults_are_the_published_ones(tmp_path: Path) -> None:
    """With no source: skip, 10 in a row, 10 of 200; the journal is absolute, as scripts change their folder."""
    settings = Settings.resolve({}, {"PATH": "/bin"}, tmp_path)
    assert settings == Settings(journal=tmp_path / "firstbad-ledger/journal")
    assert (settings.policy, settings.max_consecutive_skips, settings.max_skip_ratio) == (Policy.SKIP, 10, 0.05)
    assert settings.run_id is None


def test_every_field_has_one_option() -> None:
    """No setting can be given in code only, and none is only an option."""
    assert [option.field for option in OPTIONS] == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("argument", "environment", "project"), "argument"),
        (("environment", "project"), "environment"),
        (("project",), "project"),
        (("argument", "project"), "argument"),
        ((), None),
    ],
)
def test_command_line_wins_over_environment_over_project(given: set[str], expected: str | None, tmp_path: Path) -> None:
    """Each setting by itself: one source may give one and another source the next."""
    if "project" in given:
        project(tmp_path, 'run-id = "project"')
    arguments = {"run_id": "argument"} if "argument" in given else {"run_id": None}
    environ = {"FIRSTBAD_RUN_ID": "environment"} if "environment" in given else {}
    settings = Settings.resolve({**arguments, "max_skip_ratio": "0.5"}, environ, tmp_path)
    assert (settings.run_id, settings.max_skip_ratio) == (expected, 0.5)


def test_text_and_typed_values_mean_the_same(tmp_path: Path) -> None:
    """Text from command line and environment, TOML's types from the project, Python's from code."""
    expected = Settings(
        journal=tmp_path / "j", run_id="a", policy=Policy.STOP, max_consecutive_skips=0, max_skip_ratio=1.0
    )
    text = {"journal": "j", "run_id": "a", "policy": "stop", "max_consecutive_skips": "0", "max_skip_ratio": "1"}
    code = {"journal": Path("j"), "policy": Policy.STOP, "max_consecutive_skips": 0, "max_skip_ratio": 1}
    assert Settings.resolve(text, {}, tmp_path) == expected
    assert Settings.resolve({**code, "run_id": "a"}, {}, tmp_path) == expected
    assert Settings.resolve({}, {f"FIRSTBAD_{key.upper()}": value for key, value in text.items()}, tmp_path) == expected
    project(tmp_path, 'journal="j"\nrun-id="a"\npolicy="stop"\nmax_consecutive_skips=0\nmax-skip-ratio=1')
    assert Settings.resolve({}, {}, tmp_path) == expected


def test_nearest_project_counts_and_its_journal_lies_beside_it(tmp_path: Path) -> None:
    """Search goes from the folder upwards and ends at the first pyproject.toml, even one without our table."""
    project(tmp_path, 'journal = "ledger"\npolicy = "stop"')
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert Settings.resolve({}, {}, deep) == Settings(journal=tmp_path / "ledger", policy=Policy.STOP)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert Settings.resolve({}, {}, deep).policy is Policy.SKIP


BAD: list[tuple[str, str, str]] = [
    ("policy", "Skip", "did you mean skip?"),
    ("policy", "", "observe, skip, stop"),
    ("max_consecutive_skips", "-1", "a whole number from 0"),
    ("max_consecutive_skips", "1.5", "a whole number from 0"),
    ("max_consecutive_skips", "4294967296", "to 4294967295"),
    ("max_consecutive_skips", "ten", "a whole number from 0"),
    ("max_skip_ratio", "1.01", "a number from 0 to 1"),
    ("max_skip_ratio", "-0.1", "a number from 0 to 1"),
    ("max_skip_ratio", "nan", "a number from 0 to 1"),
    ("min_loss_scale", "0", "a number above 0"),
    ("min_loss_scale", "nan", "a number above 0"),
    ("min_loss_scale", "-1", "a number above 0"),
    ("lr_on_skip", "holt", "one of advance, hold (did you mean hold?)"),
    ("max_skip_ratio", "inf", "a number from 0 to 1"),
    ("max_skip_ratio", "5%", "0.05 is 10 of the last 200 steps"),
    ("run_id", "", "1 to 200 printable characters"),
    ("run_id", "  ", "1 to 200 printable characters"),
    ("run_id", "a" * 201, "1 to 200 printable characters"),
    ("run_id", "a\nb", "1 to 200 printable characters"),
    ("journal", "", "a folder"),
]


@pytest.mark.parametrize(("field", "value", "right"), BAD)
@pytest.mark.parametrize("source", ["argument", "environment", "project"])
def test_bad_value_is_told_with_its_origin_and_what_is_right(
    source: str, field: str, value: str, right: str, tmp_path: Path
) -> None:
    """From any source, also from one that is overruled."""
    name = field.replace("_", "-")
    good = {"policy": "stop", "max_consecutive_skips": 1, "max_skip_ratio": 0.5, "run_id": "a", "journal": "j"}
    arguments: dict[str, object] = dict(good)
    environ: dict[str, str] = {}
    if source == "argument":
        arguments[field], origin = value, f"--{name} is"
    elif source == "environment":
        environ[f"FIRSTBAD_{field.upper()}"], origin = value, f"FIRSTBAD_{field.upper()} in the environment is"
    else:
        escaped = value.replace("\n", "\\n")
        project(tmp_path, f'{name} = "{escaped}"')
        origin = f"{name} in [tool.firstbad] of {tmp_path / 'pyproject.toml'} is"
    (problem,) = problems(arguments, environ, tmp_path)
    assert problem.startswith(f"{origin} {value!r}; right would be ")
    assert right in problem


@pytest.mark.parametrize(
    "line",
    [
        "policy = true",
        "max-consecutive-skips = true",
        "max-consecutive-skips = 1.0",
        "max-skip-ratio = nan",
        "max-skip-ratio = false",
        "max-skip-ratio = [0.1]",
        "run-id = 5",
        "journal = 5",
    ],
)
def test_wrong_type_in_the_project_is_refused(line: str, tmp_path: Path) -> None:
    """TOML's true is not 1, and 1.0 is not a count."""
    (problem,) = problems({}, {}, project(tmp_path, line))
    assert problem.startswith(line.partition(" ")[0])
    assert "right would be" in problem


def test_every_problem_of_every_source_is_told_at_once(tmp_path: Path) -> None:
    """One look at the message is enough to repair all of it."""
    project(tmp_path, 'max-skip-ratio = 7\nmax-skips = 3\nrun-id = "a"\nrun_id = "b"')
    told = problems(
        {"policy": "sikp", "jurnal": "x"},
        {"FIRSTBAD_MAX_CONSECUTIVE_SKIPS": "many", "FIRSTBAD_POLICI": "stop"},
        tmp_path,
    )
    assert len(told) == 7
    assert str(told).count("did you mean") >= 4


def test_unknown_names_are_refused_with_the_nearest_one(tmp_path: Path) -> None:
    """In the environment and in the project; the collector's own variable is not ours to judge."""
    project(tmp_path, 'polcy = "skip"')
    unknown_key, unknown_variable = problems({}, {"FIRSTBAD_JOURNALS": "x", "FIRSTBAD_DB": "y"}, tmp_path)
    assert "polcy in [tool.firstbad]" in unknown_key
    assert "did you mean policy?" in unknown_key
    assert "FIRSTBAD_JOURNALS" in unknown_variable
    assert "did you mean FIRSTBAD_JOURNAL?" in unknown_variable


@pytest.mark.parametrize("text", ["[tool.firstbad\n", "tool = 5\n", "[tool]\nfirstbad = 1\n", "\udcff"])
def test_unreadable_project_is_a_problem(text: str, tmp_path: Path) -> None:
    """It may hold settings, so going on with defaults would be a guess."""
    (tmp_path / "pyproject.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    (problem,) = problems({}, {}, tmp_path)
    assert str(tmp_path / "pyproject.toml") in problem


def test_journal_that_cannot_be_a_folder_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    """At start, not when the first record is due."""
    (tmp_path / "file").touch()
    (problem,) = problems({"journal": "file/deeper/j"}, {}, tmp_path)
    assert f"{tmp_path / 'file'} is no folder" in problem
    Settings.resolve({"journal": "new/deeper/j"}, {}, tmp_path)
    assert not (tmp_path / "new").exists()


def test_code_overrides_single_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a given base the environment is not asked; without one it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRSTBAD_POLICY", "stop")
    base = Settings(max_skip_ratio=0.5)
    assert Settings.from_environment(base, run_id="a", journal=None) == dataclasses.replace(base, run_id="a")
    assert Settings.from_environment(run_id="a").policy is Policy.STOP
    with pytest.raises(SettingsError, match="--policy is 5"):
        Settings.from_environment(base, policy=5)
