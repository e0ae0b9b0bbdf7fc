"""What gradient compression remembers from step to step: a bad gradient would stay there for good."""

from __future__ import annotations

from typing import Any

from firstbad.agent.models.wrappers import replicas
from firstbad.agent.observers.observer import Observer

MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")
"""Where torch's PowerSGD states keep the error of the last step and the factors that the next one starts from."""


class CompressionObserver(Observer):
    """
    After a skip, makes DDP's PowerSGD hooks begin anew: their error feedback holds the bad gradient, and every later
    step would be bad too. The hook makes what is missing again, alike on all ranks; one step's error is lost.
    """

    name = "compression"

    def forget(self) -> None:
        """A step was skipped on all ranks: empty the memory of every hook."""
        for root in self.scene.models.roots():
            for ddp in replicas(root):
                for _, state in getattr(ddp, "_comm_hooks", ()):
                    for name in MEMORY:
                        memory: Any = getattr(state, name, None)
                        if isinstance(memory, dict):
                            memory.clear()
