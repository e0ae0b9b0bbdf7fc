"""Pipeline parallelism by torch.distributed.pipelining: which stage and which micro-batch is running."""

from __future__ import annotations

import functools
import sys
from typing import Any
from weakref import WeakSet

from firstbad.agent.observers.observer import Observer, Scene

_WHERE = "torch.distributed.pipelining.stage"
_CHUNK = ("fwd_chunk_id", "bwd_chunk_id")


class PipelineObserver(Observer):
    """
    Tells the other observers the stage and chunk of each forward and backward: chunks of a step are its micro steps,
    inputs of a later stage are no data but what a peer has sent, and an earlier stage comes first in causal order.
    """

    name = "pipeline"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._wrapped = False
        self._stages: WeakSet[Any] = WeakSet()

    def install(self) -> None:
        """Look for the pipeline module; again by `refresh`, since scripts import it late."""
        self.refresh()

    def refresh(self) -> None:
        """Wrap the chunks of pipeline stages once their module is there. Cheap."""
        module = sys.modules.get(_WHERE)
        base = getattr(module, "_PipelineStageBase", None)
        if self._wrapped or base is None:
            return
        self._wrapped = True
        for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
            if hasattr(base, name):
                self.scene.patches.replace(base, name, self._wrap(getattr(base, name)))

    def _wrap(self, original: Any) -> Any:
        begin = self.watch(self._begin)

        @functools.wraps(original)
        def one_chunk(stage: Any, *args: Any, **kwargs: Any) -> Any:
            scene = self.scene
            before = scene.pipeline, scene.chunk
            begin(stage, args[0] if args else next((kwargs[name] for name in _CHUNK if name in kwargs), None))
            try:
                return original(stage, *args, **kwargs)
            finally:
                scene.pipeline, scene.chunk = before

        return one_chunk

    def _begin(self, stage: Any, chunk: int | None) -> None:
        scene = self.scene
        if stage not in self._stages:
            self._stages.add(stage)
            scene.models.in_pipeline(stage.submod, stage.stage_index, stage.num_stages)
        scene.window.handed = True
        scene.pipeline, scene.chunk, scene.pipelined = (stage.stage_index, stage.num_stages), chunk, True
