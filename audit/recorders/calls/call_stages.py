"""The stages of one dataset that are found by its calls, in one process: what is observed, and how it is described."""

from __future__ import annotations

from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from audit.recorders.calls.call_search import CallSearch
from audit.recorders.calls.callables import MOST_ITEMS, Key, dict_of, is_a, key_of
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.calls.observed_calls import ObservedCall, VisitCalls
from audit.recorders.calls.requested_items import RequestedItems, has_one_base, item_functions
from audit.recorders.stages.describe import code_digest_of, name_of, parameters_of, qualname_of
from audit.recorders.stages.discover import Pipeline, is_choice, looks_random
from audit.recorders.stages.stand_in import current_visit
from audit.records import Stage

if TYPE_CHECKING:
    from audit.recorders.visit.visit import Visit

#: Objects that are made for each item are described each time; a run has at most so many stages of them.
_MOST_STAGES = 256
#: So many objects are looked at again, to see whether they hold other callables.
_MOST_OWNERS = 16


class CallStages:
    """Observes the calls of one dataset. Every process that makes its items has its own."""

    def __init__(self, dataset: Any, pipeline: Pipeline) -> None:
        known = [step.target for step in pipeline.steps if step.target is not None]
        self._search = CallSearch(dataset, known, pipeline.held_values())
        self._slots = [FunctionSlot(function, _observe) for function in self._search.functions.values()]
        #: Whether any function is observed.
        self.has_calls = bool(self._slots)
        #: Whether the dataset's own code may change arrays and pictures in place.
        self.changes_in_place = self._search.changes_in_place
        #: Functions that make the items of datasets, where it is not known otherwise which items are asked for.
        owners = list(self._search.owners.values())
        asked = item_functions(dataset, owners)
        self._has_one_base = has_one_base(owners)
        self._slots += [FunctionSlot(function, _ask) for function in asked]
        #: The callables that the dataset and its parts held when they were searched.
        self._held = [(owner, _callables_of(owner)) for owner in owners[:_MOST_OWNERS]]
        self._described: dict[tuple[str, Key], Stage] = {}
        #: Stages of objects that are made for each item.
        self._short_lived: dict[tuple[str, str], Stage] = {}
        #: Slots that have stand-ins between visits.
        self._filled_slots: list[FunctionSlot] = []

    def is_current(self) -> bool:
        """Return whether the dataset and its parts hold the callables that were found, so that no others need to be searched."""
        return all(_callables_of(owner) == held for owner, held in self._held)

    def observe(self, visit: Visit) -> list[FunctionSlot]:
        """Follow the calls of one visit; returns the slots that the caller must restore when it has ended."""
        self.follow(visit)
        return [slot for slot in self._slots if slot.put()]

    def follow(self, visit: Visit) -> None:
        """Follow the calls of one visit, where the slots are put already."""
        # All else is made when there is something to note: most items of many datasets make no such call.
        visit.follower = self

    @property
    def codes(self) -> list[CodeType]:
        """The user's own code that may make items."""
        return self._search.codes

    @property
    def observed_names(self) -> set[str]:
        """The names by which the user's own code may call what is observed."""
        return self._search.observed_names

    def calls_of(self, visit: Visit) -> VisitCalls | None:
        """Return what follows the calls of a visit; None where no function is observed."""
        if visit.calls is None and self.has_calls:
            visit.calls = VisitCalls(visit, self._search)
        return visit.calls

    def asked_items_of(self, visit: Visit) -> RequestedItems:
        """Return what notes the items that a visit asks datasets for."""
        if visit.asked is None:
            visit.asked = RequestedItems(has_one_base=self._has_one_base)
        return visit.asked

    def keep_stand_ins(self) -> None:
        """Let all slots have the calls of several visits, until `release_stand_ins`."""
        self.release_stand_ins()
        self._filled_slots = [slot for slot in self._slots if slot.put()]

    def release_stand_ins(self) -> None:
        """Undo `keep_stand_ins`."""
        filled, self._filled_slots = self._filled_slots, []
        for slot in filled:
            slot.restore()

    def describe(self, call: ObservedCall) -> Stage:
        """Return the row of `stages` for a call. Not to be asked during a visit."""
        key = key_of(call.target)
        lasting = key in self._search.labels or isinstance(call.target, (FunctionType, MethodType))
        if lasting and (known := self._described.get((call.path, key))) is not None:
            return known
        stage = self._describe_now(call)
        if lasting:
            self._described[call.path, key] = stage
            return stage
        if len(self._short_lived) < _MOST_STAGES:
            return self._short_lived.setdefault((call.path, f"{stage.qualname} {stage.parameters}"), stage)
        alike = (one for (path, _), one in self._short_lived.items() if path == call.path)
        return next(alike, stage)

    def _describe_now(self, call: ObservedCall) -> Stage:
        if not self._filled_slots:
            return describe_call(call)
        # Functions must have their own code meanwhile.
        self.release_stand_ins()
        try:
            return describe_call(call)
        finally:
            self.keep_stand_ins()


def _callables_of(owner: Any) -> list[int]:
    """Return the identities of the callables in an object's attributes, and in lists, tuples and dicts of its attributes."""
    found: list[int] = []
    for value in dict_of(owner).values():
        if is_a(value, (list, tuple, dict)):
            if len(value) <= MOST_ITEMS:
                items = list(value.values()) if is_a(value, dict) else value
                found += [id(item) for item in items if callable(item)]
        elif callable(value):
            found.append(id(value))
    return found


def _observe(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    visit = current_visit()
    if visit is None or visit.follower is None or visit.paused or (calls := visit.follower.calls_of(visit)) is None:
        return slot.original(*args, **kwargs)
    return calls.observe(slot, args, kwargs)


def _ask(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    visit = current_visit()
    if visit is None or visit.follower is None or len(args) != 2 or kwargs:
        return slot.original(*args, **kwargs)
    return visit.follower.asked_items_of(visit).ask(slot.original, *args)


def describe_call(call: ObservedCall) -> Stage:
    """Return the row of `stages` for a call, without an ordinal."""
    target = call.target
    # A method of a dataset is not an object with settings: all that the dataset holds is not a parameter of it.
    parameters = "{}" if isinstance(target, MethodType) else parameters_of(target)
    is_random = is_choice(target) or looks_random(target)
    return Stage(0, call.path, name_of(target), qualname_of(target), parameters, is_random, code_digest_of(target))
