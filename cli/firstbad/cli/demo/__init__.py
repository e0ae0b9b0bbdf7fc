"""
`firstbad demo`: a small GPT trained twice for real, bare and under firstbad, and the incident told from SQL.

Read `train.py` first: it is the user's script, and the only part that the agent ever meets.
"""

from __future__ import annotations

from collections.abc import Sequence


def command(argv: Sequence[str]) -> int:
    """Run the demo with the words after `firstbad demo`; the exit code, see `firstbad.cli.demo.run.main`."""
    from firstbad.cli.demo.run import main

    return main(argv)


__all__ = ["command"]
