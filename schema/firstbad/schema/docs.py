"""
Writes docs/records.md and docs/views.md out of the models and the view files.

    python -m firstbad.schema.docs [FOLDER]      FOLDER is docs by default
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path

from firstbad.schema.publicviews import public_views
from firstbad.schema.records import RECORD_TYPES, Record, record_name
from firstbad.schema.tables import columns, natural_key
from firstbad.schema.vocabulary import Action, GapReason, IncidentKind, Outcome, Policy, Stage, TensorKind

_NOTE = "<!-- Written by `python -m firstbad.schema.docs`; change the models or the view files instead. -->"
_WORDS: tuple[type[StrEnum], ...] = (Action, Policy, IncidentKind, Outcome, TensorKind, GapReason)


def records_page() -> str:
    """The text of docs/records.md: every record type, field by field."""
    lines = [
        "# Records",
        _NOTE,
        (
            "What an agent may say. A record is one JSON object in a journal frame and one row in the ledger. `null` "
            "means not known; NaN, Infinity and -Infinity are values. Evolution rules: schema/README.md."
        ),
        "## Carried by every record",
        _table(Record, Record.model_fields),
    ]
    for model in RECORD_TYPES:
        own = [name for name in model.model_fields if name not in Record.model_fields]
        key = ", ".join(f"`{name}`" for name in natural_key(model))
        version = model.model_fields["version"].default
        lines += [
            f"## {record_name(model)}",
            f"{cleandoc(model.__doc__ or '')}",
            f"Version {version}. Natural key: {key}.",
            _table(model, own),
        ]
    lines += [
        "## Stages, in causal order",
        _grid(("number", "stage"), ((str(item.value), item.label) for item in Stage)),
    ]
    for words in _WORDS:
        lines += [f"## Words of {words.__name__}", cleandoc(words.__doc__ or ""), ", ".join(f"`{w}`" for w in words)]
    return "\n\n".join(lines) + "\n"


def views_page() -> str:
    """The text of docs/views.md: every public view, column by column."""
    lines = [
        "# Views",
        _NOTE,
        (
            "The public SQL of the ledger. These views and columns change only by the evolution rules in "
            "schema/README.md; tables and views whose names begin with `internal_` or end in `_records` "
            "may change at any time. A view shows delivered copies once and never turns unknown into 0: null means "
            "not known. Order by step and seq, not by time."
        ),
        "\n".join(
            f"- [{view.name}](#{view.name}): {view.description}"
            for view in sorted(public_views(), key=lambda view: view.name)
        ),
    ]
    for view in sorted(public_views(), key=lambda view: view.name):
        rows = ((f"`{item.name}`", f"`{item.type}`", item.description) for item in view.columns)
        lines += [f"## {view.name}", view.description, _grid(("column", "type", "meaning"), rows)]
    return "\n\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File names and texts of all pages."""
    return {"records.md": records_page(), "views.md": views_page()}


def _table(model: type[Record], names: Iterable[str]) -> str:
    kinds = dict(columns(RECORD_TYPES[0])) if model is Record else dict(columns(model))
    rows = [
        (f"`{name}`", f"`{kinds[name]}`", model.model_fields[name].description or "") for name in names if name in kinds
    ]
    return _grid(("field", "column type", "meaning"), rows)


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Write the pages; the exit code."""
    folder = Path(arguments[0] if arguments else "docs")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
