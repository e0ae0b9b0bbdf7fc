"""
Who and what a run is, found without the user's help. None, or a missing key, where it is not known.

Nothing here imports torch, starts CUDA, waits for a device or touches a random generator: it reads what is there.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import random
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firstbad.agent.git import script_commit

if TYPE_CHECKING:
    import torch

HASH_DIGITS = 32
"""Digits of the SHA-256 prefixes in the ledger: 128 bits."""
_SHAPING = (
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "datasets",
    "tokenizers",
    "torchao",
    "triton",
    "flash_attn",
    "xformers",
    "apex",
    "bitsandbytes",
)
"""Libraries that shape the numbers, as import names."""
_MAX_DEPTH = 8


@functools.cache
def agent_version() -> str:
    """The version of firstbad; "unknown" when it runs from a folder that was never installed."""
    try:
        return importlib.metadata.version("firstbad")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname() or "localhost"


def new_incarnation() -> str:
    """
    A new 128-bit id as 32 hexadecimal digits, laid out as UUID version 7: later ones sort after earlier ones.

    Ids of one millisecond sort at random. Uses the system's randomness, never the script's generators.
    """
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return f"{value:032x}"


def resolve_run_id(setting: str | None, environ: Mapping[str, str] | None = None) -> str | None:
    """
    The name of the run: the setting, else Slurm's job, else torchrun's run id; None when rank 0 must make one.

    torchrun says "none" when its rendezvous is static; that is no name.
    """
    environ = os.environ if environ is None else environ
    torchrun = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    found = setting or environ.get("SLURM_JOB_ID", "").strip() or (torchrun if torchrun.lower() != "none" else "")
    return found[:200] or None


def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape the numbers, of those that this process has imported."""
    found: dict[str, str] = {}
    for name in _SHAPING:
        if name in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                version = getattr(sys.modules[name], "__version__", None)
                if isinstance(version, str):
                    found[name] = version
    return found | _accelerator_versions()


def _accelerator_versions() -> dict[str, str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, str] = {}
    for name in ("cuda", "hip"):
        version = getattr(torch.version, name, None)
        if version:
            found[name] = str(version)
    try:
        # Asking for these loads their libraries, which a process that does not use the GPU should be spared.
        if torch.cuda.is_initialized():
            found["cudnn"] = str(torch.backends.cudnn.version())
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
            found["gpu"] = str(torch.cuda.get_device_name())
    except (RuntimeError, AttributeError, ImportError, AssertionError, TypeError):
        pass
    return found


def device_uuid(device: torch.device) -> str | None:
    """The UUID of a CUDA device as nvidia-smi prints it; None on other devices, or when CUDA was not started."""
    torch = sys.modules.get("torch")
    if torch is None or device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    except (RuntimeError, AttributeError, AssertionError):
        return None
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def rng_state_hash() -> str | None:
    """
    A hash of the states of the generators that a script draws from: Python's, NumPy's global one, torch's CPU one and,
    when CUDA runs, that of the current device. Reads only: no state moves. None when a state cannot be read.
    """
    digest = hashlib.sha256(repr(random.getstate()).encode())
    try:
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            name, keys, *rest = numpy_random.get_state()
            digest.update(b"numpy" + repr((name, rest)).encode() + keys.tobytes())
        torch = sys.modules.get("torch")
        if torch is not None:
            digest.update(b"torch" + bytes(torch.get_rng_state().tolist()))
            if torch.cuda.is_initialized():
                digest.update(b"cuda" + bytes(torch.cuda.get_rng_state().tolist()))
    except Exception:
        # While a CUDA graph is captured, say: unknown is the truth then, and a drill on a bad step must go on.
        return None
    return digest.hexdigest()[:HASH_DIGITS]


def config_hash(argv: Sequence[str], groups: Iterable[Mapping[str, Any]], structure: Iterable[str]) -> str:
    """
    A hash over what the run was told to be; the same on every rank and over restarts of the same job.

    Args:
        argv: the script's sys.argv; a --local-rank that old launchers add is left out.
        groups: options of the optimizers' parameter groups, without their parameters.
        structure: the models' modules, one line each.
    """
    digest = hashlib.sha256()
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in ("--local-rank", "--local_rank"):
            if not equals:
                next(words, None)
            continue
        digest.update(b"argument\0" + word.encode("utf-8", "surrogatepass") + b"\0")
    for group in groups:
        digest.update(b"group\0" + _canonical(group).encode() + b"\0")
    for line in structure:
        digest.update(b"module\0" + line.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:HASH_DIGITS]


def _canonical(value: object, depth: int = 0) -> str:
    """A value as text that is the same in every process: no addresses, no order of sets, no value on an accelerator."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            pairs = sorted(f"{_canonical(k, depth + 1)}:{_canonical(v, depth + 1)}" for k, v in value.items())
            return "{" + ",".join(pairs) + "}"
        if isinstance(value, list | tuple):
            return "[" + ",".join(_canonical(each, depth + 1) for each in value) + "]"
        if isinstance(value, set | frozenset):
            return "{" + ",".join(sorted(_canonical(each, depth + 1) for each in value)) + "}"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # Reading a value on an accelerator would wait for it.
        small = value.device.type == "cpu" and value.numel() <= 16
        return f"tensor{value.tolist() if small else [*value.shape]}"
    named = value if isinstance(value, type) or callable(value) else type(value)
    return f"<{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', type(value).__qualname__)}>"


__all__ = [
    "agent_version",
    "config_hash",
    "device_uuid",
    "host_name",
    "library_versions",
    "new_incarnation",
    "resolve_run_id",
    "rng_state_hash",
    "script_commit",
]
