"""The calls of one visit that are stages: they were given a value of the sample, and returned one.

Functions are observed through their slots (function_slot.py), found by a search (call_search.py). A call counts only
where the dataset's own code makes it, or where a stage makes it of a callable that it holds, as a Compose does. What
a stage's own code does beneath that is the stage's business.
"""

from __future__ import annotations

import itertools
import json
import time
from types import FunctionType, MethodType
from typing import Any, Protocol

from audit.recorders.calls.call_search import CallSearch
from audit.recorders.calls.callables import Key, find_in_class, function_of, is_library, key_of, list_held_callables
from audit.recorders.calls.data_values import carries_data, find_leading_stages, ids_in, is_new_value, is_text_alone
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.stages.describe import as_stable_json, name_of
from audit.recorders.stages.discover import is_choice
from audit.records import CALL_PREFIX

#: A stage that works on the label has a path that begins with this.
TARGET_PREFIX = "target."


class CallSink(Protocol):
    """What a visit does with observed calls."""

    #: Above 0, no call counts.
    paused: int

    def before_call(self, target: Any, value: Any, label: str) -> Any: ...
    def after_call(self, call: ObservedCall, token: Any, nanoseconds: int) -> None: ...
    def rename_call(self, call: ObservedCall) -> None: ...
    def is_unchanged(self, call: ObservedCall) -> bool: ...
    def fail(self, stage: str, error: BaseException) -> None: ...
    def enter_stage(self, name: str) -> bytes: ...
    def leave_stage(self, noted: bytes) -> None: ...


class ObservedCall:
    """One call that is a stage of this visit."""

    __slots__ = ("arguments", "input_ids", "is_repeated", "is_target", "label", "ordinal", "output", "target", "value")

    def __init__(self, target: Any, label: str, value: Any, arguments: dict[str, Any]) -> None:
        self.target = target
        self.label = label
        #: What it was given: one value, or a tuple of several.
        self.value = value
        self.input_ids = ids_in(value)
        #: The arguments beside the values.
        self.arguments = arguments
        self.output: Any = None
        self.ordinal = -1
        self.is_target = False
        #: Whether the same stage, or one that contains it, was called before in this visit.
        self.is_repeated = False

    @property
    def path(self) -> str:
        """The path of the stage."""
        return f"{TARGET_PREFIX if self.is_target else ''}{self.label}"


class _Frame:
    """A stage that is running: what it holds may be stages beneath it."""

    __slots__ = ("children", "counts", "is_repeated", "label", "openness", "target")

    def __init__(self, label: str, target: Any, openness: int, *, is_repeated: bool = False) -> None:
        self.label = label
        self.is_repeated = is_repeated
        #: The calls of callables that it holds count.
        self.target = target
        #: Above 0, every call that it makes counts: the dataset's own code, and functions that this calls.
        self.openness = openness
        self.counts: dict[str, int] = {}
        self.children: list[ObservedCall] = []


class VisitCalls:
    """Follows the calls of one visit. Made when there is a call that may be a stage."""

    __slots__ = ("_entered", "_followed", "_frames", "_held", "_search", "_sink", "loaded", "observed_calls")

    def __init__(self, sink: CallSink, search: CallSearch) -> None:
        self._sink = sink
        self._search = search
        self._frames = [_Frame(CALL_PREFIX.rstrip("."), None, 2)]
        #: How often each stage began that was found by the attribute that holds it, by its path.
        self._entered: dict[str, int] = {}
        self._held: dict[int, dict[Key, tuple[str, Any]]] = {}
        self._followed: set[int] = set()
        self.observed_calls: list[ObservedCall] = []
        #: The identities of the loaded values: of those that the first call was given.
        self.loaded: set[int] = set()

    # -- stages that are found otherwise ---------------------------------------------------------

    def enter(self, target: Any, path: str) -> None:
        """Note the begin of a stage that was found by the attribute that holds it."""
        self._entered[path] = count = self._entered.get(path, 0) + 1
        label = path if count == 1 else f"{path}#{count}"
        self._frames.append(_Frame(label, target, 0, is_repeated=count > 1))

    def leave(self) -> None:
        """Note that the stage has returned or failed."""
        self._frames.pop()

    @property
    def is_inside_stage(self) -> bool:
        """Whether a stage is running: what it does is its own business."""
        return len(self._frames) > 1

    # -- calls -----------------------------------------------------------------------------------

    def observe(self, slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call of an observed function, and note it where it is a stage."""
        frame = self._frames[-1]
        target = _target_of(slot.function, args)
        if id(target) in self._search.owners:
            target = MethodType(slot.function, target)
        label = self._label_of(frame, target)
        if label is None:
            return slot.original(*args, **kwargs)
        value, others = self._do_unobserved(_split_arguments, slot.function, target, args, kwargs, self._followed)
        if value is _NO_VALUE:
            return slot.original(*args, **kwargs)
        frame.counts[label] = count = frame.counts.get(label, 0) + 1
        path = f"{frame.label}.{label}" + (f"#{count}" if count > 1 else "")
        call = ObservedCall(target, path, value, others)
        call.is_repeated = count > 1 or frame.is_repeated
        return self._make(slot, args, kwargs, call)

    def _make(self, slot: FunctionSlot, args: Any, kwargs: Any, call: ObservedCall) -> Any:
        parent = self._frames[-1]
        openness = self._openness_of(call.target, parent)
        frame = _Frame(call.label, call.target, openness, is_repeated=call.is_repeated)
        token = self._do_unobserved(self._sink.before_call, call.target, call.value, call.label)
        self._frames.append(frame)
        name = call.label.rpartition(".")[2]
        noted = self._sink.enter_stage(name)
        begun = time.perf_counter_ns()
        try:
            output = slot.original(*args, **kwargs)
        except BaseException as error:
            self._sink.fail(name, error)
            raise
        finally:
            self._sink.leave_stage(noted)
            spent = time.perf_counter_ns() - begun
            self._frames.pop()
            if token is not None:
                self._do_unobserved(token.detach)
        self._do_unobserved(self._note, parent, frame, call, output, token, spent)
        return output

    def _note(self, parent: _Frame, frame: _Frame, call: ObservedCall, output: Any, token: Any, spent: int) -> None:
        if not is_new_value(output, not carries_data(call.value) or is_text_alone(call.value)):
            return
        call.output = output
        if frame.children and self._repeats_last_output(call, frame):
            parent.children.append(frame.children[-1])
            return
        self._sink.after_call(call, token, spent)
        self.observed_calls.append(call)
        if isinstance(output, (list, tuple, dict, str)) and len(output):
            # Tokens or numbers made of a text are the sample too, though nothing in them says so.
            self._followed.add(id(output))
        parent.children.append(call)

    def _repeats_last_output(self, call: ObservedCall, frame: _Frame) -> bool:
        """Return whether a call gave what its last stage gave, so that its own row would say the same again."""
        last = frame.children[-1]
        if call.output is not last.output or not self._sink.is_unchanged(last) or is_choice(call.target):
            return False
        if frame.openness and len(frame.children) == 1 and last.input_ids & call.input_ids:
            # A function that only passes its value on to another is known by its own name.
            last.label, last.target, last.arguments = call.label, call.target, call.arguments
            last.is_repeated = call.is_repeated
            self._sink.rename_call(last)
        return True

    def _do_unobserved(self, do: Any, *args: Any) -> Any:
        """Do something of ours, in which no call counts."""
        self._sink.paused += 1
        try:
            return do(*args)
        finally:
            self._sink.paused -= 1

    def _label_of(self, frame: _Frame, target: Any) -> str | None:
        key = key_of(target)
        if key in self._search.skipped:
            return None  # a stage already, found by the attribute that holds it
        held = self._list_held(frame.target) if frame.target is not None else {}
        if key in held:
            return held[key][0]
        return (self._search.labels.get(key) or name_of(target)) if frame.openness else None

    def _openness_of(self, target: Any, parent: _Frame) -> int:
        """Return whether the calls that a stage makes count, too."""
        if isinstance(target, MethodType) and id(target.__self__) in self._search.owners:
            return parent.openness
        # A function of the user's own that the dataset's code calls, but not what such a function calls in turn.
        is_users = isinstance(target, FunctionType) and not is_library(target)
        return max(parent.openness - 1, 0) if is_users else 0

    def _list_held(self, target: Any) -> dict[Key, tuple[str, Any]]:
        found = self._held.get(id(target))
        if found is None:
            found = self._do_unobserved(list_held_callables, target)
            self._held[id(target)] = found
        return found

    # -- the end ---------------------------------------------------------------------------------

    def mark_targets(self, item_input: Any, others: Any) -> None:
        """Separate stages that lead to the label from those that lead to the model's input."""
        passed = [(call, call.input_ids, call.output) for call in reversed(self.observed_calls)]
        main = find_leading_stages(passed, ids_in(item_input))
        side = find_leading_stages(passed, ids_in(others), alone=True)
        for call in self.observed_calls:
            call.is_target = call in side and call not in main

    def find_unseen_changes(self, item: Any) -> list[tuple[str, str]]:
        """Return pairs of stages between which the value changed without a call: the first one's output went nowhere else.

        Two stages in a row may as well work on two values, of a pair of pictures for instance.
        """
        found: list[tuple[str, str]] = []
        stages = [call for call in self.observed_calls if not call.is_target]
        known = set(stages[0].input_ids) if stages else set()
        used = set().union(ids_in(item), *(call.input_ids for call in stages))
        if stages and self.loaded and not self.loaded & used:
            # The first call that was given it failed, or returned no value; it was changed since.
            found.append(("load", stages[0].label))
        for place, (before, call) in enumerate(itertools.pairwise(stages), 1):
            made = ids_in(before.output)
            known |= made
            if call.input_ids & known or made & ids_in(item):
                continue
            if not any(made & later.input_ids for later in stages[place:]):
                found.append((before.label, call.label))
        return found

    def holds_part_of(self, value: Any) -> bool:
        """Return whether a value is, or holds, something that a stage returned, or is part of it, and that is as it was returned."""
        wanted = ids_in(value)
        made = [call for call in self.observed_calls if wanted & ids_in(call.output)]
        return bool(made) and all(self._do_unobserved(self._sink.is_unchanged, call) for call in made)

    def forget_values(self) -> None:
        """Let go of the values of the visit."""
        for call in self.observed_calls:
            call.value = call.output = None


_NO_VALUE = object()


def _target_of(function: FunctionType, args: tuple[Any, ...]) -> Any:
    """Return the callable that was called: an object, a method of one, or the function itself."""
    if args:
        first = args[0]
        if not isinstance(first, type) and callable(first) and function_of(first) is function:
            return first
        if find_in_class(type(first), function.__name__) is function:
            return MethodType(function, first)
    return function


def _split_arguments(
    function: FunctionType, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], followed: set[int]
) -> tuple[Any, dict[str, Any]]:
    """Return what a call was given of the sample, and the arguments beside it by name."""

    def is_given(value: Any) -> bool:
        return id(value) in followed or carries_data(value)

    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    first = 0 if target is function else 1
    given: list[Any] = []
    others: dict[str, Any] = {}
    for place, value in enumerate(args[first:], first):
        if is_given(value):
            given.append(value)
        elif place < len(names):
            others[names[place]] = value
    if not given and (named := {key: value for key, value in kwargs.items() if is_given(value)}):
        return named, others | {key: value for key, value in kwargs.items() if key not in named}
    for key, value in kwargs.items():
        if is_given(value):
            given.append(value)
        else:
            others[key] = value
    if not given:
        return _NO_VALUE, others
    return (given[0] if len(given) == 1 else tuple(given)), others


def arguments_of(call: ObservedCall) -> str | None:
    """Return the arguments beside the value as JSON: a function's settings are given with each call."""
    if not call.arguments or not isinstance(call.target, (FunctionType, MethodType)):
        return None
    return json.dumps({key: as_stable_json(value) for key, value in call.arguments.items()}, ensure_ascii=False)
