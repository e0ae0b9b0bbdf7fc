"""Who a run is: ids, the script's commit, hashes; found without changing anything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from firstbad.agent import identity
from firstbad.agent.git import script_commit

COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-q")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit: code/train.py and an ignored folder."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "repository"
    (folder / "code").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "code/train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("installed/\n")
    git(folder, "add", ".")
    git(folder, *COMMIT, "-m", "first")
    return folder


def test_incarnations_are_distinct_and_sort_by_time() -> None:
    """32 hexadecimal digits in the layout of UUID version 7; the first 48 bits are milliseconds."""
    ids = [identity.new_incarnation() for _ in range(1000)]
    assert len(set(ids)) == len(ids)
    assert all(len(each) == 32 and each[12] == "7" and each[16] in "89ab" and int(each, 16) for each in ids)
    times = [each[:12] for each in ids]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("setting", "environ", "expected"),
    [
        ("mine", {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "t"}, "mine"),
        (None, {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "t"}, "7"),
        (None, {"SLURM_JOB_ID": " ", "TORCHELASTIC_RUN_ID": "t"}, "t"),
        (None, {"TORCHELASTIC_RUN_ID": "none"}, None),
        (None, {"TORCHELASTIC_RUN_ID": "None"}, None),
        (None, {"TORCHELASTIC_RUN_ID": "x" * 300}, "x" * 200),
        (None, {}, None),
    ],
)
def test_run_is_named_by_user_then_slurm_then_torchrun(
    setting: str | None, environ: dict[str, str], expected: str | None
) -> None:
    """torchrun's "none" is no name, and None asks rank 0 for one."""
    assert identity.resolve_run_id(setting, environ) == expected


def test_commit_and_dirty_flag_of_the_scripts_repository(repository: Path) -> None:
    """Clean, then dirty by a tracked change; a new file alone does not change what was committed."""
    head = git(repository, "rev-parse", "HEAD")
    script = repository / "code/train.py"
    assert script_commit(script) == (head, False)
    assert script_commit(script.parent) == (head, False)
    (repository / "notes.txt").touch()
    assert script_commit(script) == (head, False)
    script.write_text("print(2)\n")
    assert script_commit(script) == (head, True)
    git(repository, "add", ".")
    assert script_commit(script) == (head, True)


def test_no_commit_where_there_is_none(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a repository, in an ignored folder, before the first commit, in a folder that is gone, without git."""
    installed = repository / "installed/package"
    installed.mkdir(parents=True)
    (installed / "train.py").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    for script in (tmp_path / "train.py", installed / "train.py", empty / "train.py", tmp_path / "gone/train.py"):
        assert script_commit(script) == (None, None), script
    monkeypatch.setenv("PATH", str(empty))
    assert script_commit(repository / "code/train.py") == (None, None)


def test_asking_git_runs_no_program_of_the_repository_and_takes_no_lock(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system monitor and hooks stay silent; a lock held by another git does not matter; nothing is written."""
    trace = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(program))
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        (repository / ".git/hooks").mkdir(exist_ok=True)
        (repository / ".git/hooks" / hook).symlink_to(program)
    script = repository / "code/train.py"
    os.utime(script, (1, 1))  # makes a plain `git status` refresh and write the index
    (repository / ".git/index.lock").touch()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*") if path.is_file()}
    commit, dirty = script_commit(script)
    assert (len(commit or ""), dirty) == (40, False)
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*") if path.is_file()} == before
    assert not trace.exists()


def test_a_git_that_hangs_is_given_up(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git cannot say in time is unknown."""
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    assert script_commit(repository / "code/train.py", wait_seconds=0.2) == (None, None)


def test_hash_of_generators_follows_every_generator_and_moves_none() -> None:
    """Python's, NumPy's and torch's: equal states give equal hashes, any draw another one, and asking draws nothing."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    hashes = [identity.rng_state_hash(), identity.rng_state_hash()]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert hashes[0] == hashes[1]
    for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
        draw()
        hashes.append(identity.rng_state_hash())
    assert len(set(hashes)) == 4
    assert all(each is not None and len(each) == 32 for each in hashes)
    assert not torch.cuda.is_initialized()


def test_config_hash_is_the_same_in_every_process_and_follows_every_part(tmp_path: Path) -> None:
    """No address, no order of a set or hash seed enters it; argv, groups and structure do; a local rank does not."""
    text = (
        "import sys\n"
        "from firstbad.agent.identity import config_hash\n"
        "groups = [{'lr': 0.1, 'betas': (0.9, 0.99), 'f': len, 'o': object(), 's': {'a', 'b', 'c'}}]\n"
        "print(config_hash(['train.py', sys.argv[1]], groups, ['a:Linear']))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", text, f"--local-rank={seed}"],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(seen) == 1
    base = (["train.py"], [{"lr": 0.1}], ["a:Linear"])
    others = [
        (["train.py", "x"], *base[1:]),
        (["train.pyx"], *base[1:]),
        (base[0], [{"lr": 0.2}], base[2]),
        (base[0], [{"lr": 0.1}, {"lr": 0.1}], base[2]),
        (base[0], [{"lr": torch.tensor(0.1)}], base[2]),
        (*base[:2], ["a:Linear", "b:Linear"]),
        (*base[:2], ["a:Conv"]),
    ]
    assert len({identity.config_hash(*each) for each in [base, *others]}) == 1 + len(others)
    assert identity.config_hash(["train.py", "--local_rank", "3"], *base[1:]) == identity.config_hash(*base)
    identity.config_hash(["\udcff"], [{"loop": (loop := [])}], [])
    loop.append(loop)
    assert identity.config_hash([], [{"loop": loop}], [])


def test_versions_name_what_is_loaded_and_devices_what_is_used() -> None:
    """Only libraries that this process imported; no UUID for a CPU."""
    assert identity.library_versions()["numpy"] == np.__version__
    assert identity.device_uuid(torch.device("cpu")) is None
    assert identity.device_uuid(torch.device("cuda", 0)) is None  # CUDA was not started, and is not for this
    assert not torch.cuda.is_initialized()
    assert identity.agent_version()[0].isdigit()
    assert identity.host_name()
