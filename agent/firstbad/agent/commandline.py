"""
The launcher's command line: options of the agent, then the script or module, then what belongs to the script.

    python -m firstbad.agent [options] train.py args...
    python -m firstbad.agent [options] -m package.train args...

Parsing stops at the first word that is no option; everything after it is the script's and is not looked at.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from firstbad.agent.identity import agent_version
from firstbad.agent.settings import OPTIONS, Settings
from firstbad.schema import FirstbadError

USAGE = "usage: torchrun ... -m firstbad.agent [options] train.py args...   or   [options] -m package.train args..."


class UsageError(FirstbadError):
    """The command line cannot be used; the text says why and what would be right. Ends the process with code 2."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line: settings by field name, the script's path or module's name, and its own arguments."""

    settings: dict[str, str]
    program: str
    is_module: bool
    arguments: tuple[str, ...]


def parse(words: Sequence[str]) -> CommandLine | str:
    """
    Read the words after `python -m firstbad.agent`; a text instead, when that is all that was asked for (--help).

    Both `--option value` and `--option=value` are taken, with - or _ in names; of a repeated option the last counts.

    Raises:
        UsageError: an unknown option, an option without value, or no script.
    """
    options = {f"--{option.name}": option for option in OPTIONS}
    settings: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word in ("-h", "--help"):
            return help_text()
        if word == "--version":
            return f"firstbad {agent_version()}"
        if word == "--":
            break
        if word.startswith("-m"):
            module = word[2:] or (rest.pop(0) if rest else "")
            if not module:
                raise UsageError("-m needs the name of a module, as in: -m package.train")
            return CommandLine(settings, module, True, tuple(rest))
        name, equals, value = word.partition("=")
        option = options.get(name.replace("_", "-"))
        if option is None:
            near = difflib.get_close_matches(name, [*options, "--help", "--version"], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"unknown option {name}{hint}. Options of firstbad are {', '.join(options)}; those of the script come "
                "after its name"
            )
        if not equals:
            if not rest:
                raise UsageError(f"{name} needs a value: {name} {option.metavar}")
            value = rest.pop(0)
        settings[option.field] = value
    if not rest:
        raise UsageError(f"no script given. {USAGE}")
    return CommandLine(settings, _existing(rest[0]), False, tuple(rest[1:]))


def _existing(path: str) -> str:
    """The path of a script, when it is a file that can be read."""
    if os.path.isdir(path):
        raise UsageError(f"{path!r} is a folder; give the script in it, or -m and a module's name")
    if not os.path.isfile(path):
        twin = path.removesuffix(".py").replace("/", ".")
        raise UsageError(
            f"there is no script {path!r} in {_here()}; give the path of a file"
            + ("" if path.endswith(".py") else f", or a module: -m {twin}")
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"the script {path!r} cannot be read by this user")
    return path


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that is gone"


def help_text() -> str:
    """The help: every option with its variable, its key in pyproject.toml and its default."""
    defaults = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    lines = [
        USAGE,
        "",
        "Runs a training script unchanged, watches its steps, and makes every rank act alike on a bad one.",
        "",
        "options (all of them before the script):",
    ]
    for option in OPTIONS:
        default = defaults[option.field]
        lines += [
            f"  --{option.name} {option.metavar}",
            f"        {option.help}" + ("" if default is None else f" (default: {default})"),
            f"        environment {option.variable}; key {option.name} in [tool.firstbad]",
        ]
    lines += [
        "  -m MODULE    run a module, as python -m does, instead of a script",
        "  --version    print the version and end",
        "  -h, --help   print this text and end",
        "",
        "The command line wins over FIRSTBAD_* variables, those over [tool.firstbad] of the nearest pyproject.toml.",
        "A setting that cannot be used ends every rank with exit code 2 before the script starts.",
        "",
        "The script may tell which data it uses, one line a micro-batch:",
        "  from firstbad.agent import batch; batch(shard_id=..., sample_ids=..., valid_tokens=...)",
    ]
    return "\n".join(lines)
