"""
When the launcher's guard is made: right after the script has imported torch, and not before.

The launcher must not import torch itself. Scripts set variables before their own `import torch` (OMP_NUM_THREADS,
CUDA_VISIBLE_DEVICES, TORCH_LOGS) that are read while it loads, and a script that only prints its help needs no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

from firstbad.schema import Outcome

_TORCH = "torch"
_GUARD = "firstbad.agent.guard"


class Finishing(Protocol):
    """What the launcher needs of a guard."""

    def finish(self, outcome: Outcome, exit_code: int | None = None, error: BaseException | None = None) -> None:
        """Write the run end and close the journal; idempotent, never raises."""


class Attachment(MetaPathFinder):
    """
    Makes a guard once, as soon as this process has torch. A fork made before that never gets one.

    It is a finder that finds nothing itself: it lets the others find torch, and asks to be told when it is loaded. A
    script may also import the guard's module first; the guard is made when both imports have ended.

    Args:
        make: makes the guard; what it raises reaches the script's import statement, as a rank that could not attach
            must not train beside others that wait for it.
    """

    def __init__(self, make: Callable[[], Finishing]) -> None:
        self.guard: Finishing | None = None
        self._make = make
        self._pid = os.getpid()
        self._begun = False
        self._loading: set[str] = set()

    def begin(self) -> None:
        """Wait for torch; attach at once where something before the script has imported it."""
        if _TORCH in sys.modules:
            self._attach()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that tells us when it is done."""
        if fullname not in (_TORCH, _GUARD) or self._begun or os.getpid() != self._pid:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _TellingLoader(spec.loader, self)
                return spec
        return None

    def loading(self, name: str) -> None:
        """The import of a watched module begins."""
        self._loading.add(name)

    def loaded(self, name: str, *, well: bool) -> None:
        """The import of a watched module has ended, well or with an exception."""
        self._loading.discard(name)
        if well and _TORCH in sys.modules and not self._loading:
            self._attach()

    def _attach(self) -> None:
        if self._begun or os.getpid() != self._pid:
            return
        self._begun = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.guard = self._make()


class _TellingLoader(Loader):
    """A module's own loader; steps aside before the module's code runs, and tells the attachment when it has ended."""

    def __init__(self, own: Loader, attachment: Attachment) -> None:
        self._own = own
        self._attachment = attachment

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        well = False
        self._attachment.loading(name)
        try:
            self._own.exec_module(module)
            well = True
        finally:
            self._attachment.loaded(name, well=well)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
