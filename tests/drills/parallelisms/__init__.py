"""One module a parallelism; REGISTRY names them all."""

from __future__ import annotations

from tests.drills.parallelisms import adversaries, ddp, experts, pipeline, sharded, single
from tests.drills.script import Script

REGISTRY: dict[str, type[Script]] = {
    **single.SCRIPTS,
    **ddp.SCRIPTS,
    **sharded.SCRIPTS,
    **pipeline.SCRIPTS,
    **experts.SCRIPTS,
    **adversaries.SCRIPTS,
}
"""Every script by the name of its parallelism."""
