"""
Small programs that show what a process looks like from inside: run under plain python and under the launcher.

A probe is its files, the words after `python`, and what is written to its standard input. None of them imports torch.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probe:
    """One program. `words` name the script (or -m and the module) and its arguments."""

    source: str
    words: tuple[str, ...] = ("train.py",)
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    standard_input: str = ""
    last_line_only: str = ""
    """Why no more than the last line of its error output is the same; empty when all of it is."""

    def all_files(self) -> dict[str, str]:
        """Text of each file, by its path in the folder that the program starts in."""
        files = {name: textwrap.dedent(text) for name, text in self.files.items()}
        return files | ({"train.py": textwrap.dedent(self.source)} if self.source else {})


IDENTITY = """
    '''What a program knows of itself.'''
    import os, sys
    def plain(value):
        return type(value).__name__ if "object at" in repr(value) else repr(value)
    print(sorted((name, plain(value)) for name, value in dict(vars()).items() if name != "__spec__"))
    print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached))
    print(sys.argv, sys.path, os.getcwd(), sys.flags)
    print(sys.modules["__main__"].__dict__ is globals())
"""

PICKLE = """
    import multiprocessing, pickle, sys
    class Thing:
        def __init__(self, value): self.value = value
        def __eq__(self, other): return type(other) is Thing and other.value == self.value
        __hash__ = None
    def double(thing):
        assert type(thing) is Thing
        return Thing(thing.value * 2)
    if __name__ == "__main__":
        assert pickle.loads(pickle.dumps(Thing(1))) == Thing(1)
        print(Thing.__module__, double.__module__)
        with multiprocessing.get_context("METHOD").Pool(1) as pool:
            print([thing.value for thing in pool.map(double, [Thing(1), Thing(21)])])
            print(pool.apply(double, (Thing(3),)) == Thing(6))
        print("__mp_main__" in sys.modules, sys.modules["__mp_main__"] is sys.modules["__main__"])
"""

SPAWNED = """
    import multiprocessing, sys
    def report(queue):
        queue.put((__name__, sys.argv, sys.path[0], sys.modules["__main__"].__file__))
    def main():
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=report, args=(queue,), name="worker")
        process.start()
        print(queue.get())
        process.join()
        print(process.exitcode)
    if __name__ == "__main__":
        main()
"""

PROBES: dict[str, Probe] = {
    # Who am I
    "identity": Probe(IDENTITY, ("train.py", "--policy", "x", "-m", "--help", "", "a b", "é")),
    "identity, absolute folder": Probe(IDENTITY, ("./sub/../train.py",), {"sub/nothing.txt": ""}),
    "identity, script in a folder": Probe("", ("sub/it.py", "1"), {"sub/it.py": IDENTITY}),
    "identity, link to a script elsewhere": Probe("", ("here.py",), {"far/it.py": IDENTITY}, {"here.py": "far/it.py"}),
    "identity, safe path": Probe(IDENTITY, flags=("-P",)),
    "identity, script without suffix": Probe("", ("train",), {"train": IDENTITY}),
    "identity, module": Probe(IDENTITY, ("-m", "train", "--journal", "x")),
    "identity, module in a package": Probe("", ("-m", "pkg.sub.it", "1"), {
        "pkg/__init__.py": "", "pkg/sub/__init__.py": "import sys; print(sys.argv, __name__)",
        "pkg/sub/it.py": IDENTITY,
    }),
    "identity, package": Probe("", ("-m", "pkg"), {"pkg/__init__.py": "", "pkg/__main__.py": IDENTITY}),
    "identity, module in a folder without __init__": Probe("", ("-m", "pkg.it"), {"pkg/it.py": IDENTITY}),
    "neighbour modules": Probe("import near; print(near.__file__, near.__name__)", files={"near.py": ""}),
    "relative imports": Probe("", ("-m", "pkg.it"), {
        "pkg/__init__.py": "NAME = 'p'", "pkg/near.py": "NAME = 'n'",
        "pkg/it.py": "from . import NAME, near; from .near import NAME as n; print(NAME, n, __package__)",
    }),
    "standard input": Probe("import sys; print(sys.stdin.read()[::-1])", standard_input="abc\n"),
    # How it ends
    "end": Probe("print('done')"),
    **{
        f"exit {code}": Probe(f"import sys; print('x'); sys.exit({code})")
        for code in ("", "None", "0", "3", "-1", "256", "2**70", "True", "'a text'", "(1, 2)", "''")
    },
    "exit of an own class": Probe("class Bye(SystemExit): pass\nraise Bye(4)"),
    "exit in a module": Probe("", ("-m", "pkg"), {"pkg/__init__.py": "", "pkg/__main__.py": "raise SystemExit(6)"}),
    "os._exit": Probe("import atexit, os; atexit.register(print, 'no'); os._exit(5)"),
    "exception": Probe("""
        def inner(): raise ValueError("loss is nan")
        def outer():
            try: inner()
            except ValueError as error: raise KeyError("step") from error
        outer()
    """),
    "exception in a handler": Probe("try: 1 / 0\nexcept ZeroDivisionError: undefined"),
    "exception group": Probe("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])"),
    "exception with notes": Probe("e = ValueError(1); e.add_note('a note'); raise e"),
    "exception that is no Exception": Probe("raise BaseException('base')"),
    "exception in a module": Probe("def f(): raise ValueError(1)\nf()", ("-m", "train")),
    "exception in a package's init": Probe("", ("-m", "pkg.it"), {"pkg/__init__.py": "1 / 0", "pkg/it.py": ""},
        last_line_only="python finds the package in another place of runpy",
    ),
    "exception in runpy below": Probe(
        "import runpy; runpy.run_path('other.py', run_name='x')", files={"other.py": "1 / 0"}
    ),
    "failed import": Probe("import no_such_module"),
    "failed import in a neighbour": Probe("import near", files={"near.py": "x = (\n"}),
    "syntax error": Probe("print('never')\nx = = 1"),
    "latin-1 source": Probe("# -*- coding: latin-1 -*-\nprint(len('\xe9'))"),
    "own excepthook": Probe("""
        import sys, traceback
        def hook(kind, error, trace):
            print(kind, error, [frame.name for frame in traceback.extract_tb(trace)], error.__traceback__ is trace,
                  sys.last_traceback is trace, sys.excepthook is hook)
        sys.excepthook = hook
        def f(): raise ValueError(1)
        f()
    """),
    "own excepthook that exits": Probe("""
        import sys
        sys.excepthook = lambda *_: sys.exit(9)
        1 / 0
    """),
    "own excepthook that fails": Probe("""
        import sys
        def hook(*_): raise TypeError("hook")
        sys.excepthook = hook
        1 / 0
    """, last_line_only="one frame of the launcher stands above the failing hook"),
    "traceback at exit": Probe("""
        import atexit, sys, traceback
        atexit.register(lambda: traceback.print_tb(sys.last_traceback))
        def f(): raise ValueError(1)
        f()
    """),
    "interrupt": Probe("import os, signal, atexit; atexit.register(print, 'bye'); os.kill(os.getpid(), signal.SIGINT)"),
    "interrupt, own class": Probe("class K(KeyboardInterrupt): pass\nraise K()"),
    "SIGTERM": Probe("import os, signal, atexit; atexit.register(print, 'no'); os.kill(os.getpid(), signal.SIGTERM)"),
    "SIGTERM, own handler": Probe("""
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(17))
        os.kill(os.getpid(), signal.SIGTERM)
    """),
    "signal handlers": Probe("""
        import signal
        print([(each, str(signal.getsignal(each))) for each in sorted(signal.valid_signals())])
    """),
    "atexit": Probe("""
        import atexit, sys
        def name(): return sys.modules["__main__"].name.__qualname__
        atexit.register(lambda: print("first", name()))
        atexit.register(lambda: print("second", sys.modules["__main__"].__dict__ is globals()))
        atexit.register(lambda: 1 / 0)
        print(atexit._ncallbacks() > 0)
    """),
    "threads after the end": Probe("""
        import atexit, threading
        atexit.register(print, "exit")
        main_ended = threading.Event()
        def late():
            threading.main_thread().join()
            print("thread", threading.active_count())
        threading.Thread(target=late).start()
        print("main")
    """),
    "threads after an exception": Probe("""
        import atexit, threading
        atexit.register(print, "exit")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
        1 / 0
    """),
    "exception in a thread": Probe("""
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="t")
        thread.start()
        thread.join()
    """),
    "last words of globals": Probe("""
        class Last:
            def __del__(self): print("gone", __name__)
        last = Last()
    """),
    "fork": Probe("""
        import atexit, os, sys
        atexit.register(print, "exit", flush=True)
        sys.stdout.flush()
        child = os.fork()
        if child == 0: sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """),
    # What tools see
    "inspect": Probe("""
        import inspect, linecache, sys
        class A:
            x = 1
        print(inspect.getsource(A), inspect.getsourcefile(A), inspect.getmodule(A))
        print(inspect.getsource(sys.modules["__main__"])[:20])
    """),
    "argparse help": Probe("import argparse; argparse.ArgumentParser().parse_args()", ("train.py", "--help")),
    "argparse error": Probe("import argparse; argparse.ArgumentParser().parse_args()", ("train.py", "--policy")),
    "argparse in a package": Probe("", ("-m", "pkg", "-h"), {
        "pkg/__init__.py": "", "pkg/__main__.py": "import argparse; argparse.ArgumentParser().parse_args()",
    }),
    "warnings": Probe("""
        import warnings
        warnings.warn("old", DeprecationWarning)
        warnings.warn("new")
        print(warnings.filters)
    """),
    "annotations": Probe("""
        import sys, typing
        x: int = 1
        print(__annotations__, typing.get_type_hints(sys.modules["__main__"]))
    """),
    "future flags": Probe("def f(x: undefined): pass"),
    "dataclass and enum": Probe("""
        import dataclasses, enum
        @dataclasses.dataclass
        class D: x: int = 1
        class E(enum.Enum): A = 1
        print(D(), E.A, D.__module__)
    """),
    "asyncio": Probe("import asyncio\nasync def f(): raise ValueError(1)\nasyncio.run(f())"),
    "recursion": Probe("def f(): f()\ntry: f()\nexcept RecursionError as e: print(e)"),
    # Other processes
    "spawn": Probe(SPAWNED, ("train.py", "--epochs", "1")),
    "spawn from a module": Probe("", ("-m", "pkg.it", "1"), {"pkg/__init__.py": "", "pkg/it.py": SPAWNED}),
    "pickle over spawn": Probe(PICKLE.replace("METHOD", "spawn")),
    "pickle over fork": Probe(PICKLE.replace("METHOD", "fork")),
    "pickle over forkserver": Probe(PICKLE.replace("METHOD", "forkserver")),
    "pickle over spawn from a module": Probe("", ("-m", "it"), {"it.py": PICKLE.replace("METHOD", "spawn")}),
    "spawn without a main guard": Probe("""
        import multiprocessing
        print(__name__)
        multiprocessing.get_context("spawn").Process(target=print).start()
    """),
    "process pool": Probe("""
        import concurrent.futures, multiprocessing
        def square(x): return x * x
        if __name__ == "__main__":
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(list(pool.map(square, range(4))))
    """),
    "own interpreter": Probe("""
        import subprocess, sys
        print(subprocess.run([sys.executable, *sys.argv, "again"]).returncode if sys.argv[-1] != "again" else sys.argv)
    """),
}  # fmt: skip
