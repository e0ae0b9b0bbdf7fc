"""The drill matrix: faults in real training scripts under every parallelism, and a judge of what the guard said."""

import sys
from pathlib import Path

# What tests share (forked ranks, reading of journals) is not a package; `python -m tests.drills` has to find it too.
_SUPPORT = str(Path(__file__).resolve().parents[1] / "support")
if _SUPPORT not in sys.path:
    sys.path.append(_SUPPORT)
