"""The command `firstbad`: a thin door over the parts, which are imported only when used."""

from firstbad.cli.main import main

__all__ = ["main"]
