"""Which items of other datasets a dataset asks for while it makes one of its own.

A wrapper of the user's own may take its items in any order, so its index says nothing about the dataset that it wraps.
What it asked that dataset for does.
"""

from __future__ import annotations

import dis
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, Subset

from audit.recorders.calls.callables import (
    find_in_class,
    is_a,
    is_library,
    is_own_file,
    items_of,
    list_held_values,
    unwrap,
)

_METHOD = "__getitem__"
#: Classes of torch's own whose numbering is known.
_KNOWN = (Subset, ConcatDataset)
#: Classes of datasets, and whether code of the user's own makes their items.
_USERS: dict[type, bool] = {}


class RequestedItem:
    """One call of `dataset[index]`, and the calls that were made meanwhile."""

    __slots__ = ("children", "has_failed", "index", "item", "owner")

    def __init__(self, owner: Any, index: Any) -> None:
        self.owner = owner
        self.index = index
        self.item: Any = None
        self.has_failed = False
        self.children: list[RequestedItem] = []

    def bases(self) -> list[tuple[Any, Any]]:
        """Return the dataset and the index of every item that this one was made of."""
        # One that is passed on as it is: perhaps instead of another, which is damaged.
        instead = next((child for child in self.children if child.item is not None and child.item is self.item), None)
        if instead is not None:
            return instead.bases()
        others = [child for child in self.children if child.owner is not self.owner]
        whole = [child for child in others if not child.has_failed] or (others if self.has_failed else [])
        found = [base for child in whole for base in child.bases()]
        return found or [(self.owner, self.index)]


class RequestedItems:
    """The items that datasets were asked for during one visit."""

    __slots__ = ("_open", "bases", "has_one_base")

    def __init__(self, *, has_one_base: bool) -> None:
        self._open = [RequestedItem(None, None)]
        #: After the visit, the dataset and the index of each item that the visit's item was made of.
        self.bases: list[tuple[Any, int]] = []
        #: Whether all items come from one dataset in the end, so that a number in it identifies one.
        self.has_one_base = has_one_base

    def ask(self, make: Callable[[Any, Any], Any], owner: Any, index: Any) -> Any:
        """Make one call."""
        asked = RequestedItem(owner, index)
        self._open[-1].children.append(asked)
        self._open.append(asked)
        try:
            asked.item = make(owner, index)
            return asked.item
        except BaseException:
            asked.has_failed = True
            raise
        finally:
            self._open.pop()

    def join(self, earlier: RequestedItems) -> None:
        """Take in the calls of a visit that was made for the same sample before."""
        self._open[0].children[:0] = earlier._open[0].children

    def end(self, item: Any, *, has_failed: bool) -> None:
        """Find out which items were used to make the one that the dataset gave, and let go of them."""
        visit = self._open[0]
        visit.item, visit.has_failed = item, has_failed
        found = {
            (id(owner), number): (owner, number)
            for owner, index in visit.bases()
            if owner is not None and (number := _number_of(index)) is not None
        }
        self.bases = list(found.values())
        self._open = []


def item_functions(dataset: Any, owners: Iterable[Any]) -> list[FunctionType]:
    """Return the functions that make the items of a dataset's parts, if code of the user's own chooses among these.

    `owners` are the objects that the dataset holds, itself included.
    """
    datasets = [owner for owner in owners if _is_dataset(owner)]
    chosen = [part for part in datasets if _is_users(part) and any(_list_held_datasets(part))]
    parts = [part for part in datasets if part is not dataset] if chosen else []
    found = {id(function): function for part in parts if (function := _item_function(type(part))) is not None}
    own = _item_function(type(dataset))
    if own is not None and not is_library(own) and _asks_itself(own.__code__):
        found[id(own)] = own
    return list(found.values())


def has_one_base(owners: Iterable[Any]) -> bool:
    """Return whether only one of the datasets holds no other dataset."""
    return sum(_is_dataset(owner) and not any(_list_held_datasets(owner)) for owner in owners) == 1


def makes_own_items(dataset: Any) -> bool:
    """Return whether the items of a dataset are made by code of the user's own rather than a library's."""
    kind = type(dataset)
    if kind not in _USERS:
        function = _item_function(kind)
        _USERS[kind] = function is not None and not is_library(function)
    return _USERS[kind]


def _is_users(dataset: Any) -> bool:
    return makes_own_items(dataset) or not is_a(dataset, _KNOWN)


def _is_dataset(value: Any) -> bool:
    # Other classes that can be indexed may be tables of words or of labels, whose items are not samples.
    return is_a(value, Dataset) or type(value).__module__.partition(".")[0] == "datasets"


def _list_held_datasets(owner: Any) -> Iterator[Any]:
    for _, held in list_held_values(owner):
        if _is_dataset(held):
            yield held
        elif is_a(held, (list, tuple, dict)):
            yield from (item for _, item in items_of(held) if _is_dataset(item))


def _item_function(kind: type) -> FunctionType | None:
    function = unwrap(find_in_class(kind, _METHOD))
    if function is not None and is_own_file(function.__code__.co_filename):
        # While a batch is made, calls go through a function of ours (see item_calls.py).
        return unwrap(getattr(function, "__wrapped__", function))
    return function


def _asks_itself(code: CodeType) -> bool:
    """Return whether a method may ask its own object for another item: `self[index]` or `self.__getitem__(index)`."""
    return bool(code.co_argcount) and (_METHOD in code.co_names or _is_used_alone(code, code.co_varnames[0]))


def _is_used_alone(code: CodeType, name: str) -> bool:
    """Return whether a variable is used by itself, and not only to look up an attribute of it."""
    instructions = list(dis.get_instructions(code))
    for one, after in itertools.pairwise(instructions):
        # Newer versions of Python load two variables with one instruction.
        loaded = one.argval if is_a(one.argval, tuple) else (one.argval,)
        if not one.opname.startswith("LOAD_FAST") or name not in loaded:
            continue
        if loaded[-1] != name or after.opname not in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"):
            return True
    return False


def _number_of(index: Any) -> int | None:
    try:
        return operator.index(index)
    except TypeError:
        return None
