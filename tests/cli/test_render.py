"""Tables on a pipe and on terminals of several widths."""

from __future__ import annotations

import io
import math

from firstbad.cli.render import Terminal

ID = "0123456789abcdef0123456789abcdef"


def table(width: int | None, columns: list[str], rows: list[list[object]], *, colour: bool = False) -> str:
    """What a terminal of that width (None: a pipe) is sent."""
    out = io.StringIO()
    Terminal(out, io.StringIO(), width, colour).table(columns, rows)
    return out.getvalue()


def test_a_pipe_gets_everything_in_plain_aligned_columns() -> None:
    """Nothing is shortened, wrapped or coloured, and no line ends in blanks."""
    text = table(None, ["event_id", "loss", "samples"], [[ID, math.nan, "s" * 300], [ID, 1.5, None]])

    lines = text.splitlines()
    assert len(lines) == 4
    assert ID in lines[2]
    assert "s" * 300 in lines[2]
    assert "NaN" in lines[2]
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in lines)
    assert lines[0].index("loss") + len("loss") == lines[2].index("NaN") + len("NaN")


def test_a_terminal_shortens_long_ids_only_when_they_do_not_fit() -> None:
    """Both ends of an id stay, because the front of a time-ordered id is the same for all runs of a day."""
    wide = table(120, ["event_id", "module"], [[ID, "m" * 30]])
    narrow = table(60, ["event_id", "module"], [[ID, "m" * 30]])

    assert ID in wide
    assert "012345…abcdef" in narrow
    assert "m" * 30 in narrow


def test_a_terminal_folds_long_texts_before_it_gives_up_the_table() -> None:
    """Every character of a long module name is still there, over several lines, and numbers stay whole."""
    name = "transformer.layers.11.self_attention.linear_qkv.weight"
    text = table(40, ["module", "nan_count", "elements"], [[name, 123456, 7890123]])

    lines = text.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert "".join(line.split()[0] for line in lines[2:]) == name
    assert "123456" in text
    assert "7890123" in text


def test_a_table_too_wide_for_the_terminal_becomes_one_block_per_row() -> None:
    """Every value is there in full, ids too, and no line is wider than the terminal."""
    names = [f"column_{place}" for place in range(12)]
    text = table(60, names, [[ID, *["x" * 20] * 11], [ID, *["y" * 20] * 11]])

    assert text.count(ID) == 2
    assert text.count("x" * 20) == 11
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "row 2" in text


def test_colours_only_where_wanted() -> None:
    """A NaN is marked on a colour terminal, and plain elsewhere."""
    assert "\x1b[" in table(80, ["loss"], [[math.nan]], colour=True)
    assert "\x1b[" not in table(80, ["loss"], [[math.nan]], colour=False)


def test_text_is_never_taken_for_markup() -> None:
    """Square brackets in a module name stay, also on a terminal."""
    assert "layers[3].[bold]mlp" in table(80, ["module"], [["layers[3].[bold]mlp"]], colour=True)


def test_an_empty_table_still_shows_its_columns() -> None:
    """A query without rows says which columns it would have had."""
    assert table(None, ["run_id", "step"], []).split() == ["run_id", "step", "------", "----"]
