"""
The user's program, run as plain python would run it: same __main__, same sys.argv, same sys.path.

The module stays in sys.modules as __main__ until the interpreter ends (runpy.run_module takes it out earlier), so that
pickle, spawned workers and atexit callbacks see the user's names.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import warnings
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from firstbad.schema import FirstbadError


class NoModule(FirstbadError):
    """There is no module of that name to run; the text says why, as python's does. Ends the process with code 1."""


class Program:
    """
    A script or a module with its arguments.

    Args:
        name: path of a script that exists, or name of a module.
        is_module: run as `python -m name` instead of `python name`.
        arguments: what the program finds in sys.argv[1:].
    """

    def __init__(self, name: str, arguments: tuple[str, ...], *, is_module: bool) -> None:
        self.name = name
        self.arguments = arguments
        self.is_module = is_module

    def enter(self) -> ModuleType:
        """Set sys.argv, sys.path[0] and sys.modules["__main__"] for the program; nothing of it runs yet."""
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
            module.__annotations__ = {}
        if self.is_module:
            sys.argv = ["-m", *self.arguments]  # as a package's own __init__ finds it
        else:
            sys.argv = [self.name, *self.arguments]
            module.__file__ = os.path.join(os.getcwd(), self.name)
            module.__dict__["__cached__"] = None
            module.__loader__ = SourceFileLoader("__main__", module.__file__)
            if not sys.flags.safe_path:
                # The launcher's own start has put the current folder there.
                sys.path[0] = os.path.dirname(os.path.realpath(self.name))
        sys.modules["__main__"] = module
        if "__mp_main__" in sys.modules:
            # multiprocessing's name for it, under which spawned workers send objects back.
            sys.modules["__mp_main__"] = module
        return module

    def run(self, module: ModuleType) -> None:
        """Run the program in `module`, to its end. Whatever the program raises comes out."""
        code = self._module_code(module) if self.is_module else _script_code(str(module.__file__))
        exec(code, module.__dict__)  # noqa: S102 - running the user's program is what this is for

    def _module_code(self, module: ModuleType) -> CodeType:
        spec, code = _find(self.name)
        module.__spec__ = spec
        module.__loader__ = spec.loader
        module.__package__ = spec.parent
        module.__file__ = spec.origin
        module.__dict__["__cached__"] = spec.cached
        sys.argv[0] = str(spec.origin)
        return code


def _script_code(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _find(name: str) -> tuple[ModuleSpec, CodeType]:
    """Spec and code of a module, or of the __main__ in a package."""
    if name.startswith("."):
        raise NoModule("Relative module names not supported")
    spec = _spec(name)
    if spec.submodule_search_locations is not None:
        if name.endswith(".__main__"):
            raise NoModule("Cannot use package as __main__ module")
        try:
            return _find(f"{name}.__main__")
        except NoModule as error:
            raise NoModule(f"{error}; {name!r} is a package and cannot be directly executed") from None
    loader = spec.loader
    code = loader.get_code(name) if isinstance(loader, InspectLoader) else None
    if code is None:
        raise NoModule(f"No code object available for {name}")
    return spec, code


def _spec(name: str) -> ModuleSpec:
    parent = name.rpartition(".")[0]
    if parent:
        try:
            __import__(parent)
        except ImportError as error:
            if error.name is None or not f"{parent}.".startswith(f"{error.name}."):
                raise  # from inside the package, and not because there is no such package
        if name in sys.modules and not name.endswith(".__main__"):
            warnings.warn(
                f"{name!r} was imported by its package {parent!r} and now runs once more as __main__: it exists twice",
                RuntimeWarning,
                stacklevel=2,
            )
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NoModule(
            f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})"
        ) from None
    if spec is None:
        hint = f"; try {name[:-3]!r} instead of {name!r}" if name.endswith(".py") else ""
        raise NoModule(f"No module named {name}{hint}")
    return spec
