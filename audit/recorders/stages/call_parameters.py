"""The `params` of one call of a stage: what a random stage drew, and which stages a container called."""

from __future__ import annotations

from audit.recorders.stages import drawn_parameters
from audit.recorders.stages.discover import PipelineStep
from audit.recorders.stages.drawn_parameters import Listener

#: What a stage says that was passed over by chance.
NOT_FIRED = '{"fired": false}'
#: How the containers that are known name the stages that they called.
_CONTAINER_KEYS = {"RandomChoice": "choice", "RandomOrder": "order", "OneOf": "choice"}


def listen(step: PipelineStep) -> Listener | None:
    """Begin to observe what a random stage draws; None for a stage that does not show it."""
    hooks = drawn_parameters.hooks_of(step.target) if step.stage.random and not step.children else ()
    if not hooks:
        return None
    listener = Listener(step.target, hooks)
    listener.attach()
    return listener


def parameters_of(step: PipelineStep, listener: Listener | None, ran: list[int], *, changed: bool) -> str | None:
    """Return as JSON what a stage drew, or which of its stages a container called (`ran`, by ordinal)."""
    if step.children:
        return _container_parameters(step, ran) if ran or not changed else None
    if step.stage.random and (kept := drawn_parameters.last_parameters(step.target)) is not None:
        return drawn_parameters.as_json(step.target, kept)
    if listener is None:
        return None
    if listener.drawn is None and drawn_parameters.asks_when_fired(step.target):
        return NOT_FIRED
    return drawn_parameters.as_json(step.target, listener.drawn)


def _container_parameters(step: PipelineStep, ran: list[int]) -> str:
    order = []
    for ordinal in ran:
        place = next((n for n, below in enumerate(step.children) if ordinal in below), None)
        if place is not None and place not in order:
            order.append(place)
    fired = "true" if order else "false"
    key = _CONTAINER_KEYS.get(type(step.target).__name__, "ran")
    chosen = (order[0] if order else "null") if key == "choice" else order
    return f'{{"fired": {fired}, "{key}": {chosen}}}'
