"""
The demo's data: the functions of the standard library of the Python that runs, which every machine has.

A sample is one function with a body. Its signature and docstring are the prompt, its body is the answer, bytes are the
tokens. Nothing is chosen or changed so that training breaks: long docstrings are in the library.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

END = 256
"""The token after an answer. Tokens 0 to 255 are bytes."""

PAD = 257
"""The token that fills up a window; never a label."""

VOCABULARY = 258

# Tests, what is no part of the library, and what distributions of Python ship or leave out as they like.
_SKIPPED_FOLDERS = {
    "__pycache__", "site-packages", "dist-packages", "lib-dynload", "test", "tests", "idle_test", "idlelib", "lib2to3",
    "ensurepip", "distutils", "tkinter", "turtledemo",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One function: `prompt` is shown to the model, `answer` is what it has to write."""

    id: str
    shard: str
    prompt: bytes
    answer: bytes

    def tokens(self, context: int) -> list[int]:
        """Prompt, answer and END, cut at `context` tokens and filled up with PAD."""
        tokens = [*self.prompt[:context], *self.answer[:context], END][:context]
        return tokens + [PAD] * (context - len(tokens))

    def labels(self, context: int) -> int:
        """How many tokens of the window belong to the answer; 0 when the prompt alone fills it."""
        return max(0, min(len(self.prompt) + len(self.answer) + 1, context) - len(self.prompt))


def read_corpus(library: Path | None = None) -> list[Sample]:
    """
    All functions with a body below `library` (the running Python's own, when None), sorted by id.

    Files that are no valid Python are left out. Ids are unique: file and qualified name, with the line where a file
    defines the name more than once.
    """
    root = library or Path(sysconfig.get_path("stdlib"))
    samples: list[Sample] = []
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        samples += _samples_of(path, name)
    return sorted(samples, key=lambda sample: sample.id)


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _SKIPPED_FOLDERS and not name.startswith("config-"))
        for name in sorted(files):
            # _sysconfigdata differs from build to build.
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(folder, name)


def _samples_of(path: Path, name: str) -> list[Sample]:
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    # ast counts lines by \n and columns in bytes of UTF-8.
    lines = source.encode().split(b"\n")
    found = list(_functions(tree, ()))
    seen = Counter(qualified for qualified, _ in found)
    shard = Path(name).parent.as_posix()
    samples = []
    for qualified, node in found:
        docstring = ast.get_docstring(node, clean=False) is not None
        body = node.body[1:] if docstring else node.body
        if not body:
            continue
        turn = _end(node.body[0]) if docstring else _start(node.body[0])
        place = f"@{node.lineno}" if seen[qualified] > 1 else ""
        samples.append(
            Sample(
                id=f"{name}:{qualified}{place}",
                shard="Lib" if shard == "." else shard,
                prompt=_cut(lines, _start(node), turn),
                answer=_cut(lines, turn, _end(node)),
            )
        )
    return samples


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        inner = outer
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*outer, child.name)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join(inner), child
        yield from _functions(child, inner)


def _start(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _cut(lines: list[bytes], start: tuple[int, int], end: tuple[int, int]) -> bytes:
    (first, left), (last, right) = start, end
    if first == last:
        return lines[first - 1][left:right]
    return b"\n".join([lines[first - 1][left:], *lines[first : last - 1], lines[last - 1][:right]])
