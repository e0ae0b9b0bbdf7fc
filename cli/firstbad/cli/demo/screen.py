"""What the demo shows: live on a terminal, line by line elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from firstbad.cli.demo.chart import column_of, draw
from firstbad.cli.demo.compare import Disagreement
from firstbad.cli.demo.ranklogs import EmptyBatch, RankLogs
from firstbad.cli.demo.recipe import Recipe

BARE, GUARDED, SKIPPED = "red", "green", "yellow"
_LINE_EVERY = 10
"""Steps between two lines of progress without a terminal."""
_WIDEST = 100


class Screen:
    """Everything that is printed, on one console."""

    def __init__(self, console: Console, recipe: Recipe) -> None:
        self.console = console
        self.recipe = recipe
        self.plain = console.options.ascii_only
        self._section = 0

    @property
    def width(self) -> int:
        """Columns in use."""
        return min(self.console.width, _WIDEST)

    def title(self, text: str, below: str) -> None:
        """The first lines."""
        self.console.print()
        self.console.print(Text(text, style="bold"))
        self._wrapped(below, "dim")

    def section(self, text: str) -> None:
        """The next numbered part."""
        self._section += 1
        self.console.print()
        self.console.print(Text(f"{self._section}. {text}", style="bold cyan"))

    def say(self, text: str, style: str = "") -> None:
        """A paragraph of the part."""
        self._wrapped(text, style)

    def code(self, text: str) -> None:
        """A command that somebody may copy: never wrapped by us."""
        self.console.print(Text("   $ ", style="dim") + Text(text, style="cyan"), soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Say what takes a few seconds while it does."""
        if self.console.is_terminal:
            with self.console.status(Text(text), spinner_style="cyan"):
                yield
        else:
            self.say(text + " ...")
            yield

    @contextmanager
    def training(self, colour: str) -> Iterator[Callable[[RankLogs], None]]:
        """Watch one training; call what it gives with the logs as they grow."""
        if not self.console.is_terminal:
            yield _Lines(self).show
            return
        watch = Picture(self, colour)
        with Live(watch, console=self.console, refresh_per_second=10) as live:
            yield watch.show
            watch.finished = True
            live.refresh()

    def curves(self, bare: Sequence[float], guarded: Sequence[float], skipped: Sequence[int]) -> None:
        """Both losses on one scale: side by side, or one below the other where there is no room."""
        side_by_side = self.width >= 76
        width = (self.width - 8) // 2 if side_by_side else self.width - 4
        ranges = _range([*bare, *guarded])
        self.console.print()
        panels = [
            self._panel("without firstbad", bare, BARE, ranges, [], width),
            self._panel("with firstbad", guarded, GUARDED, ranges, skipped, width),
        ]
        together = Columns(panels, padding=(0, 2)) if side_by_side else Group(*panels)
        self.console.print(Padding(together, (0, 0, 0, 3)))

    def incident(self, row: dict[str, Any], sql: str) -> None:
        """The query and what it gave."""
        self.console.print(Padding(Syntax(sql, "sql", background_color="default", word_wrap=True), (1, 0, 1, 3)))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        rank = Text("not known" if row["rank"] is None else str(row["rank"]), style="bold red")
        facts: dict[str, RenderableType] = {
            "run": row["run_id"],
            "step": Text(str(row["step"]), style="bold red"),
            "micro step": str(row["micro_step"]),
            "rank": rank,
            "stage": Text(row["first_bad_stage"], style="bold red"),
            "valid labels": str(row["valid_tokens"]),
            "shards": ", ".join(row["shard_id"]),
            "samples": Text("\n".join(row["sample_ids"]), style="bold"),
            "action": Text(row["action"], style=SKIPPED) + Text(f", on all {self.recipe.world} ranks"),
            "last good step": str(row["last_good_step"]),
        }
        for name, value in facts.items():
            grid.add_row(name, value)
        panel = Panel(
            grid, title="the first bad step", title_align="left", border_style="red", box=self._box(), expand=False
        )
        self.console.print(Padding(panel, (0, 0, 0, 3)))

    def comparison(self, expected: Sequence[EmptyBatch], wrong: Sequence[Disagreement]) -> None:
        """Every bad step of the log, and whether the ledger tells the same."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name in ("step", "micro step", "rank"):
            table.add_column(name, justify="right")
        table.add_column("samples, by the script's own log", overflow="fold")
        table.add_column("ledger")
        steps_wrong = {found.step for found in wrong}
        for found in expected:
            agree = found.step not in steps_wrong
            table.add_row(
                str(found.step),
                str(found.micro_step),
                str(found.rank),
                "\n".join(found.sample_ids),
                Text("agrees", style="green") if agree else Text("differs", style="bold red"),
            )
        self.console.print(Padding(table, (1, 0, 0, 3)))

    def check(self, ok: bool, text: str) -> None:
        """One thing that must hold."""
        sign = ("ok" if ok else "NO") if self.plain else ("✔" if ok else "✘")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(
            Text(f"   {sign}", style="green" if ok else "bold red"), Text(text, style="" if ok else "bold red")
        )
        self.console.print(grid)

    def difference(self, text: str) -> None:
        """One disagreement, in words."""
        self.console.print(Padding(Text(text, style="red"), (0, 0, 0, 5)))

    def _wrapped(self, text: str, style: str) -> None:
        self.console.print(Padding(Text(text, style=style), (0, 0, 0, 3)), width=self.width)

    def _box(self) -> box.Box:
        return box.ASCII if self.plain else box.ROUNDED

    def _panel(
        self,
        title: str,
        values: Sequence[float],
        colour: str,
        ranges: tuple[float, float],
        skipped: Sequence[int],
        width: int,
    ) -> Panel:
        chart = self.chart(values, colour, ranges, skipped, width - 4, height=7)
        return Panel(chart, title=title, title_align="left", border_style=colour, box=self._box(), width=width)

    def chart(
        self,
        values: Sequence[float],
        colour: str,
        ranges: tuple[float, float],
        skipped: Sequence[int],
        width: int,
        height: int,
    ) -> Text:
        """A loss curve with its scale; skipped steps are marked below it, and where it is NaN for good says so."""
        low, high = ranges
        room = max(width - 6, 10)
        count = self.recipe.steps
        lines = draw(values, count=count, low=low, high=high, width=room, height=height, plain=self.plain)
        chart = Text(no_wrap=True, overflow="crop")
        finite = [step for step, value in enumerate(values) if math.isfinite(value)]
        lost = column_of(finite[-1] + 1, count=count, width=room) + 1 if finite else 0
        ruined = len(values) - (finite[-1] + 1 if finite else 0) > 1
        for number, line in enumerate(lines):
            label = f"{high:4.1f} " if number == 0 else f"{low:4.1f} " if number == height - 1 else "     "
            chart.append(label, style="dim")
            here = ruined and number == height // 2
            chart.append(line[:lost] + " NaN for good"[: room - lost] if here else line, style=colour)
            chart.append("\n")
        marks = [" "] * room
        for step in skipped:
            marks[column_of(step, count=count, width=room)] = "^" if self.plain else "▲"
        chart.append("     ")
        chart.append("".join(marks), style=SKIPPED)
        ends = f"step 0{'update skipped' if skipped else '':^{max(room - 6 - len(str(count - 1)), 0)}}{count - 1}"
        chart.append("\n     ")
        chart.append(ends[:room], style="dim")
        return chart


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return 0.0, 1.0
    # The first few losses are so much higher that the rest would be a flat line; they are drawn at the upper edge.
    high = finite[int(0.96 * (len(finite) - 1))]
    return math.floor(finite[0] * 2) / 2, math.ceil(high * 4) / 4


def _happenings(logs: RankLogs) -> list[tuple[str, str]]:
    """What is worth a line so far, as (text, style), in order; a line once said stays the same."""
    done = logs.steps_done
    said: list[tuple[int, str, str]] = []
    ruined = logs.ruined_from
    skipped = set(logs.left_out())
    for found in sorted(logs.empty):
        if found.step >= done or (ruined is not None and found.step > ruined):
            continue
        said.append(
            (found.step, f"rank {found.rank}, micro step {found.micro_step}: no label in the batch, 0/0", "dim")
        )
    said += [
        (step, "loss is NaN, the update was skipped on every rank; every parameter is finite", SKIPPED)
        for step in skipped
    ]
    if ruined is not None and ruined < done:
        tensors = max(logs.nan_tensors[ruined].values())
        said.append(
            (ruined, f"every parameter tensor ({tensors} of {tensors}) on every rank holds NaN from here on", BARE)
        )
    said.sort(key=lambda item: item[0])
    return [(f"step {step:>3}  {text}", style) for step, text, style in said]


class Picture:
    """The live view of a training; rich asks it for itself."""

    def __init__(self, screen: Screen, colour: str) -> None:
        self._screen = screen
        self._colour = colour
        self._logs: RankLogs | None = None
        self._started = time.monotonic()
        self._spinner = Spinner("dots", text=Text(f"torchrun starts {screen.recipe.world} ranks", style="dim"))
        self.finished = False

    def show(self, logs: RankLogs) -> None:
        """The ranks have logged something."""
        self._logs = logs

    def __rich__(self) -> RenderableType:
        logs = self._logs
        if logs is None or not logs.steps_done:
            return Padding(self._spinner, (0, 0, 0, 3))
        parts: list[RenderableType] = [self._status(logs)]
        if not self.finished:
            curve = logs.curve()
            width = min(self._screen.width - 4, 76)
            parts.append(self._screen.chart(curve, self._colour, _range(curve), logs.left_out(), width, height=6))
        parts += [Text(text, style=style) for text, style in _happenings(logs)]
        return Padding(Group(*parts), (0, 0, 0, 3))

    def _status(self, logs: RankLogs) -> RenderableType:
        done, total = logs.steps_done, self._screen.recipe.steps
        loss = logs.loss(done - 1)
        grid = Table.grid(padding=(0, 2))
        narrow = self._screen.width < 76
        bar = ProgressBar(
            total, done, width=10 if narrow else 24, complete_style=self._colour, finished_style=self._colour
        )
        cells: list[RenderableType] = [
            bar,
            Text(f"step {done:>3}/{total}"),
            Text("loss ") + Text(number_text(loss), style="" if math.isfinite(loss) else BARE),
            Text(f"{tokens_a_second(logs, self._screen.recipe):>6,.0f} tokens/s", style="dim"),
        ]
        if not narrow:
            cells.append(Text(f"{time.monotonic() - self._started:.0f} s", style="dim"))
        grid.add_row(*cells)
        return grid


class _Lines:
    """Progress for a pipe or a file: a line every few steps, and one for what happens."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: set[str] = set()
        self._next = 0
        screen.say(f"torchrun starts {screen.recipe.world} ranks ...")

    def show(self, logs: RankLogs) -> None:
        """The ranks have logged something."""
        for text, _ in _happenings(logs):
            if text not in self._said:
                self._said.add(text)
                self._screen.say(text)
        done, total = logs.steps_done, self._screen.recipe.steps
        if done and (done >= self._next or done == total) and f"{done}" not in self._said:
            self._said.add(f"{done}")
            self._next = (done // _LINE_EVERY + 1) * _LINE_EVERY
            speed = tokens_a_second(logs, self._screen.recipe)
            self._screen.say(f"step {done:>3}/{total}  loss {number_text(logs.loss(done - 1))}  {speed:,.0f} tokens/s")


def number_text(loss: float) -> str:
    """A loss in five characters."""
    return f"{loss:.3f}" if math.isfinite(loss) else "NaN  "


def tokens_a_second(logs: RankLogs, recipe: Recipe, window: int = 20) -> float:
    """Tokens of all ranks together, over the last steps."""
    done = logs.steps_done
    last = [logs.seconds[step] for step in range(max(0, done - window), done)]
    tokens = recipe.world * recipe.micro_steps * recipe.batch * recipe.context * len(last)
    return tokens / sum(last) if last else 0.0
