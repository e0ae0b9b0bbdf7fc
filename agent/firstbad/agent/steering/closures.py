"""
Steps with a closure: it holds the forward and the backward, so nothing can be decided before the optimizer calls it.

The decision is taken inside the optimizer's own first call of the closure, where a run without a guard would have
evaluated it too; a step that is left out is left by an exception that only the guard knows, before the optimizer has
changed anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from firstbad.agent.steering.decider import Decider


class _LeftOut(BaseException):
    """Unwinds an optimizer's step that the decision leaves out; carries what the closure returned."""

    def __init__(self, result: Any) -> None:
        super().__init__("this step is left out by firstbad")
        self.result = result


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure among the arguments of an optimizer's step."""
    closure = args[0] if args else kwargs.get("closure")
    return closure if callable(closure) else None


def wraps_another(optimizer: Optimizer) -> bool:
    """Whether it steps through an optimizer that it holds, as SAM does: that one's step is then the decision's."""
    return any(isinstance(value, Optimizer) and value is not optimizer for value in vars(optimizer).values())


class ClosureStep:
    """Decides steps that are given a closure."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._moves_first: set[type[Optimizer]] = set()
        """Classes seen to change weights before they call the closure, or not to call it: decided at their entry."""

    def run(
        self, optimizer: Optimizer, step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """
        Run one step of `optimizer` under a decision.

        Args:
            step: the optimizer's own, without the guard.
            args, kwargs: what the script gave; a closure is among them.

        Returns: (what the step returns, whether the update was applied).
        """
        closure = closure_of(args, kwargs)
        if closure is None:
            raise ValueError("ClosureStep runs steps that have a closure")
        kind = type(optimizer)
        early = kind in self._moves_first
        if early and not self._decider.decide(optimizer):
            with torch.enable_grad():
                return closure(), False  # the loop wants its loss; what this backward adds is cleared with the rest
        before, calls, moved = _versions(optimizer), 0, False

        def decided_closure() -> Any:
            nonlocal calls, moved
            calls += 1
            moved = moved or (calls == 1 and _versions(optimizer) != before)
            with torch.enable_grad():
                result = closure()
            if calls == 1 and not early and not moved and not self._decider.decide(optimizer):
                raise _LeftOut(result)
            return result

        args, kwargs = (
            ((decided_closure, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": decided_closure})
        )
        try:
            out = step(optimizer, *args, **kwargs)
        except _LeftOut as left:
            return left.result, False
        if moved or calls == 0:
            self._moves_first.add(kind)
        if not early and (moved or calls == 0):
            does = "changes weights before it calls its closure" if moved else "does not call its closure"
            self._decider.unprotected(optimizer, f"it {does}; its next steps are decided before they begin")
        elif calls > 1 or (early and calls):
            why = "it calls its closure again after the decision, and what that computes is not looked at"
            self._decider.unprotected(optimizer, why, recorded=True)
        return out, True


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each parameter was written in place so far."""
    return [parameter._version for group in optimizer.param_groups for parameter in group["params"]]
