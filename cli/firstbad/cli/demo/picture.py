"""
Run as a program from the repository's root: plays the demo and saves its output as docs/demo.svg.

    python -m firstbad.cli.demo.picture [FILE]
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.terminal_theme import MONOKAI

from firstbad.cli.demo.ranklogs import RankLogs
from firstbad.cli.demo.recipe import Recipe
from firstbad.cli.demo.run import main
from firstbad.cli.demo.screen import Picture, Screen


class StillScreen(Screen):
    """A screen whose live parts appear once, as they are at their end."""

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Nothing remains of a spinner."""
        print(text, file=sys.stderr)
        yield

    @contextmanager
    def training(self, colour: str) -> Iterator[Callable[[RankLogs], None]]:
        """Show the last frame."""
        picture = Picture(self, colour)
        yield picture.show
        picture.finished = True
        self.console.print(picture)


def save(path: str) -> int:
    """Play the demo into the file; the demo's exit code."""
    console = Console(
        record=True,
        width=100,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        emoji=False,
        markup=False,
    )
    code = main([], screen=StillScreen(console, Recipe()))
    if code == 0:
        console.save_svg(path, title="firstbad demo", theme=MONOKAI, unique_id="firstbad-demo")
    return code


if __name__ == "__main__":
    sys.exit(save(sys.argv[1] if len(sys.argv) > 1 else "docs/demo.svg"))
