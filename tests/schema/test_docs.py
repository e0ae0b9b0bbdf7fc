"""The committed pages are those that the models and view files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firstbad.schema import RECORD_TYPES
from firstbad.schema.docs import pages
from firstbad.schema.publicviews import public_views

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(pages()))
def test_the_committed_page_is_fresh(name: str) -> None:
    """Run `python -m firstbad.schema.docs` when this fails."""
    assert (ROOT / "docs" / name).read_text("utf-8") == pages()[name]


def test_every_field_and_column_is_in_the_pages() -> None:
    """Nothing public is left out."""
    texts = pages()
    for model in RECORD_TYPES:
        assert all(
            f"| `{name}` |" in texts["records.md"] for name in model.model_fields if name not in ("record", "version")
        )
    for view in public_views():
        assert f"## {view.name}\n" in texts["views.md"]
        assert all(f"| `{column.name}` | `{column.type}` |" in texts["views.md"] for column in view.columns)


def test_the_command_writes_the_pages(tmp_path: Path) -> None:
    """In the folder that it is given."""
    subprocess.run([sys.executable, "-m", "firstbad.schema.docs", str(tmp_path / "out")], check=True)
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "out").iterdir()} == pages()
