"""`python -m firstbad.cli` is the command `firstbad`."""

from __future__ import annotations

import sys

from firstbad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
