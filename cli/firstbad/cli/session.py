"""What a command gets: where to write, and how to open the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from firstbad.cli.ledger import Opener
from firstbad.cli.render import Terminal


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation of `firstbad`."""

    terminal: Terminal
    opener: Opener
