"""The ordinals of a run's stages on a cluster: one actor gives them out, so that every process uses the same.

It is beside the driver: if it ends, so does the run. A process asks it only when it meets a list of stages for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from audit.engines.forward import ONLY_PIPELINE
from audit.recorders.visit.stage_register import StageRegister
from audit.records import Stage

#: Stages by the ordinals that a process gave them.
NumberedStages = Sequence[tuple[int, Stage]]


class StageNumbers:
    """The state of the actor: the ordinals of the run's stages."""

    def __init__(self, run_id: str, stored: Sequence[Stage]) -> None:
        self._register = StageRegister(run_id)
        self._register.restore(stored)

    def ordinals(self, stages: NumberedStages) -> dict[int, int]:
        """Return the run's ordinal for each of a process's."""
        changed = self._register.ordinals(ONLY_PIPELINE, stages)
        return changed or {own: own for own, _ in stages}


class SharedStages:
    """The stages that the batches of one task have, with the ordinals of the run."""

    def __init__(self, pipeline: Sequence[Stage], known: dict[tuple[Any, ...], dict[int, int]], ask: Asks) -> None:
        self._pipeline = pipeline
        #: What this process has asked before.
        self._known = known
        self._ask = ask
        #: The stages of the task, by the run's ordinals.
        self.met: dict[int, Stage] = {}

    def ordinals(self, key: int, stages: NumberedStages = ()) -> dict[int, int] | None:
        """Return the run's ordinal for each of a batch's. Without stages of its own it has those of the pipeline."""
        listed = stages or [(stage.stage, stage) for stage in self._pipeline]
        described = tuple(listed)
        found = self._known.get(described)
        if found is None:
            found = self._known[described] = self._ask(listed)
        self.met |= {found[own]: stage for own, stage in listed}
        return found

    def take_rows(self) -> Any:
        """Return None: the driver writes the rows, once for all processes."""
        return None


Asks = Callable[[NumberedStages], dict[int, int]]


def start_numbering(run_id: str, stored: Sequence[Stage]) -> Any:
    """Start the actor on the driver's machine, and return its handle."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(StageNumbers).remote(run_id, list(stored))


def ask_numbering(actor: Any) -> Asks:
    """Return a function that asks the actor."""
    import ray

    def ask(stages: NumberedStages) -> dict[int, int]:
        found: dict[int, int] = ray.get(actor.ordinals.remote(list(stages)))
        return found

    return ask
