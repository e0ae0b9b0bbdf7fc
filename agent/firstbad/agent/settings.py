"""
The settings of an agent, and the four places they come from.

Precedence: the command line (or arguments in code), then `FIRSTBAD_*` variables, then `[tool.firstbad]` of the nearest
pyproject.toml from the current folder upwards, then the default. Every source is read and checked, the overruled ones
too, and every problem is reported at once: all ranks read the same sources, so all of them refuse alike.

Imports no torch: a bad setting is told before torch is loaded.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from firstbad.schema import FirstbadError, Policy

PREFIX = "FIRSTBAD_"
FOREIGN_VARIABLES = frozenset({"FIRSTBAD_DB"})
"""Variables with our prefix that belong to other parts of firstbad."""
MAX_RUN_ID = 200


class SettingsError(FirstbadError, ValueError):
    """
    Settings that cannot be used; the text lists every problem with its value, its origin and what would be right.

    Attributes: `problems`, one sentence each.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        head = "this setting cannot be used" if len(self.problems) == 1 else "these settings cannot be used"
        super().__init__("\n  - ".join((f"{head}:", *self.problems)))


def _journal(value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError("a folder")
    path = Path(os.fsdecode(value))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("a folder; the home folder of that user is not known here") from None


def _run_id(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_RUN_ID or not value.isprintable():
        raise ValueError(f"1 to {MAX_RUN_ID} printable characters")
    return value.strip()


def _policy(value: object) -> Policy:
    try:
        return Policy(str(value))
    except ValueError:
        words = [policy.value for policy in Policy]
        raise ValueError(f"one of {', '.join(words)}{_nearest(str(value).lower(), words)}") from None


def _max_consecutive_skips(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*\+?[0-9]{1,10}\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise ValueError("a whole number from 0 (stop at the first bad step) to 4294967295")
    return value


def _max_skip_ratio(value: object) -> float:
    right = "a number from 0 to 1; 0.05 is 10 of the last 200 steps"
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(right)
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(right) from None
    if not math.isfinite(number) or not 0 <= number <= 1:
        raise ValueError(right)
    return number


def _min_loss_scale(value: object) -> float:
    right = "a number above 0, such as 1"
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(right)
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(right) from None
    if not math.isfinite(number) or number <= 0:
        raise ValueError(right)
    return number


def _lr_on_skip(value: object) -> str:
    words = ["advance", "hold"]
    if value not in words:
        raise ValueError(f"one of {', '.join(words)}{_nearest(str(value).lower(), words)}")
    return str(value)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting under its names: `--name` and `name` in [tool.firstbad], FIRSTBAD_NAME, and a field of Settings."""

    name: str
    metavar: str
    help: str
    read: Callable[[object], Any]
    """From text or a typed value; ValueError says what would be right."""

    @property
    def field(self) -> str:
        """The name in Settings and in code."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return PREFIX + self.field.upper()


OPTIONS: tuple[Option, ...] = (
    Option("journal", "DIR", "folder of the journal, on the node's own disk; made when missing", _journal),
    Option("run-id", "ID", "name of the run, kept over restarts (default: Slurm's or torchrun's id)", _run_id),
    Option("policy", "observe|skip|stop", "what to do about a bad step, on every rank", _policy),
    Option("max-consecutive-skips", "N", "skips in a row that are allowed; the next one stops", _max_consecutive_skips),
    Option("max-skip-ratio", "R", "share of skips allowed among the last 200 steps, 0 to 1", _max_skip_ratio),
    Option("lr-on-skip", "advance|hold", "learning-rate schedulers after a skipped step", _lr_on_skip),
    Option("min-loss-scale", "S", "floor of a GradScaler's loss scale; overflows at it are faults", _min_loss_scale),
)
_BY_FIELD = {option.field: option for option in OPTIONS}
_BY_VARIABLE = {option.variable: option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    Where an agent writes and what it may do. The defaults are the product's; `resolve` reads the sources.

    Args:
        journal: folder of the journal; one folder a host is made in it.
        run_id: name of the run over restarts; None takes the launcher's (SLURM_JOB_ID, TORCHELASTIC_RUN_ID), else rank
            0 makes one.
        policy: observe, skip or stop.
        max_consecutive_skips: skips in a row that are allowed; the next one stops the run.
        max_skip_ratio: share of skips allowed among the last 200 steps (policy.WINDOW), 0 to 1.
        lr_on_skip: what schedulers that are stepped every step do after a skip: `advance` as they would, or `hold`: one
            step of each is left out.
        min_loss_scale: a loss scale never backs off below it (torch has no floor: the scale underflows to 0 and then
            writes NaN). Overflows above it cost no budget, overflows at it are faults.
    """

    journal: Path = Path("firstbad-ledger/journal")
    run_id: str | None = None
    policy: Policy = Policy.SKIP
    max_consecutive_skips: int = 10
    max_skip_ratio: float = 0.05
    lr_on_skip: str = "advance"
    min_loss_scale: float = 1.0

    @classmethod
    def resolve(cls, arguments: Mapping[str, object], environ: Mapping[str, str], folder: Path) -> Self:
        """
        Settings from all sources.

        Args:
            arguments: values by field name; they win. None counts as not given.
            environ: the environment; a FIRSTBAD_* variable that is no setting is a problem.
            folder: where the search for pyproject.toml begins, and what relative journals are relative to (those of a
                pyproject.toml to its own folder). The result is absolute: scripts change their folder.

        Raises:
            SettingsError: listing every problem of every source.
        """
        problems: list[str] = []
        chosen = _from_project(folder, problems)
        chosen |= _from_environment(environ, folder, problems)
        chosen |= _from_arguments(arguments, folder, problems)
        journal = chosen.setdefault("journal", folder / cls().journal)
        if (obstacle := _obstacle(journal)) is not None:
            problems.append(f"the journal cannot be written to {journal}: {obstacle}")
        if problems:
            raise SettingsError(problems)
        return cls(**chosen)

    @classmethod
    def from_environment(cls, base: Settings | None = None, **arguments: object) -> Settings:
        """
        Settings of this process, for code: `arguments` over `base`, or over environment and pyproject.toml.

        Raises:
            SettingsError: listing every problem.
        """
        if base is None:
            return cls.resolve(arguments, os.environ, Path.cwd())
        problems: list[str] = []
        chosen = _from_arguments(arguments, Path.cwd(), problems)
        if problems:
            raise SettingsError(problems)
        return replace(base, **chosen)


def _from_arguments(arguments: Mapping[str, object], folder: Path, problems: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in arguments.items():
        option = _BY_FIELD.get(name)
        if option is None:
            problems.append(f"{name} is no setting{_nearest(name, _BY_FIELD)}; there are {', '.join(_BY_FIELD)}")
        elif value is not None:
            _read(option, value, f"--{option.name}", folder, chosen, problems)
    return chosen


def _from_environment(environ: Mapping[str, str], folder: Path, problems: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in FOREIGN_VARIABLES:
            continue
        option = _BY_VARIABLE.get(name)
        if option is None:
            problems.append(
                f"{name} in the environment (value {environ[name]!r}) is no setting{_nearest(name, _BY_VARIABLE)}; "
                f"there are {', '.join(_BY_VARIABLE)}"
            )
        else:
            _read(option, environ[name], f"{name} in the environment", folder, chosen, problems)
    return chosen


def _from_project(folder: Path, problems: list[str]) -> dict[str, Any]:
    file = next((each / "pyproject.toml" for each in (folder, *folder.parents) if _is_file(each)), None)
    if file is None:
        return {}
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("firstbad", {})
        if not isinstance(table, dict):
            raise TypeError("[tool.firstbad] is no table")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        problems.append(f"{file} cannot be read for [tool.firstbad]: {error}")
        return {}
    chosen: dict[str, Any] = {}
    for key, value in table.items():
        option = _BY_FIELD.get(key.replace("-", "_"))
        origin = f"{key} in [tool.firstbad] of {file}"
        if option is None:
            names = [option.name for option in OPTIONS]
            problems.append(
                f"{origin} (value {value!r}) is no setting{_nearest(key, names)}; there are {', '.join(names)}"
            )
        elif option.field in chosen:
            problems.append(f"{origin} is there twice, with - and with _; keep {option.name}")
        else:
            _read(option, value, origin, file.parent, chosen, problems)
    return chosen


def _read(
    option: Option, value: object, origin: str, folder: Path, chosen: dict[str, Any], problems: list[str]
) -> None:
    try:
        result = option.read(value)
    except ValueError as error:
        shown = str(value) if isinstance(value, os.PathLike) else repr(value)
        problems.append(f"{origin} is {shown}; right would be {error}")
        return
    chosen[option.field] = folder / result if isinstance(result, Path) else result


def _obstacle(journal: Path) -> str | None:
    """Why a folder cannot be made or written; None when it can. Makes nothing."""
    try:
        for place in (journal, *journal.parents):
            if place.is_dir():
                return None if os.access(place, os.W_OK | os.X_OK) else f"{place} is not writable for this user"
            if place.exists():
                return f"{place} is no folder"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _is_file(folder: Path) -> bool:
    try:
        return (folder / "pyproject.toml").is_file()
    except OSError:
        return False


def _nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the name that was probably meant; empty when none is near."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
