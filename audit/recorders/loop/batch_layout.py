"""Which samples the tensors of a collated batch are made of, proved by their content.

A collate function may pad, sort, drop, scale or mix samples, so the place in the batch proves nothing. A tensor whose rows
cannot be proved is not followed: no prediction is better than another sample's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from audit.recorders.batch_tensors import all_tensors, object_references
from audit.recorders.envelope import BatchLayout, TensorLayout
from audit.recorders.items.collated_values import are_the_items, batch_input, find_collated_rows
from audit.recorders.loop.item_columns import ItemColumn, as_numbers, columns_of, tensors_inside
from audit.recorders.loop.row_proof import FEWEST_NUMBERS, find_scaled_order, holds, is_equal
from audit.recorders.model.mixing import CollateMixes

_MOST_COMPARED = 256


@dataclass(frozen=True, slots=True)
class Collation:
    """What a collate function made of a list of items."""

    layout: BatchLayout
    #: What it made of each sample; None where that is not certain, an empty list where it left them as they were.
    rows: list[Any] | None
    #: Whether its mixes, if there were any, are those of the samples in their order.
    is_mix_proved: bool = False
    #: The items of its input's rows, where their content proves them; None where somebody vouches for them, or nothing does.
    proved_places: tuple[int, ...] | None = None


def describe_collation(
    data: Any, items: Sequence[Any], collate: str, *, keeps_places: bool, mixes: CollateMixes
) -> Collation:
    """Find out what a collate function made of these items.

    `keeps_places` says that somebody vouches for it: row n is sample n unless the content says otherwise.
    """
    search = LayoutSearch(items, keeps_places=keeps_places)
    wanted = batch_input(data)
    is_mixed = bool(mixes.calls) and (keeps_places or mixes.is_result(wanted, search.is_in_order))
    if mixes.calls and isinstance(wanted, torch.Tensor):
        search.known[id(wanted)] = _by_place(wanted, search.count) if is_mixed else None
    if keeps_places:
        _place_lists(data, search)
    search.note_order(wanted)
    layouts = [search.find(tensor) for tensor in all_tensors(data)]
    is_single = len(items) == 1 and data is items[0]
    is_object_in_order = keeps_places or is_single or _is_object_in_order(data, search)
    rows = find_collated_rows(data, items, search.find)
    is_left = is_object_in_order and not list(all_tensors(wanted)) if rows is None else are_the_items(rows, items)
    rows = [] if is_left or is_single else rows
    places = _input_places(wanted, search)
    is_placed = rows is not None or places is not None or is_object_in_order
    layout = BatchLayout(layouts, is_object_in_order, places, None if is_placed else collate)
    is_proved = not mixes.calls and not (keeps_places and search.is_vouched_for(wanted))
    return Collation(layout, rows, is_mixed, places if is_proved else None)


def _input_places(wanted: Any, search: LayoutSearch) -> tuple[int, ...] | None:
    """Return the samples of a batch's input, row by row."""
    if isinstance(wanted, torch.Tensor):
        found = search.find(wanted)
        return found.places if found is not None else None
    parts = list(wanted.values()) if isinstance(wanted, Mapping) else wanted
    if not isinstance(parts, (list, tuple)):
        return None
    layouts = [search.find(part) for part in parts if isinstance(part, torch.Tensor)]
    if isinstance(wanted, Mapping):
        return next((layout.places for layout in layouts if layout is not None), None)
    places = [layout.places[0] for layout in layouts if layout is not None and len(layout.places) == 1]
    return tuple(places) if len(places) == len(parts) else None


class LayoutSearch:
    """Finds the samples of tensors that were made of the same items."""

    def __init__(self, items: Sequence[Any], *, keeps_places: bool = False) -> None:
        self.count = len(items)
        self._keeps_places = keeps_places
        self._columns = columns_of(items)
        self._own = {
            (tensor.data_ptr(), tuple(tensor.shape)): place
            for column in self._columns
            for place, tensor in column.values.items()
            if tensor.numel() and tensor.dim()
        }
        #: The samples of the model's input, row by row, once they are proved.
        self._order: tuple[int, ...] | None = None
        #: What was found already, by the tensor's identity.
        self.known: dict[int, TensorLayout | None] = {}
        self._vouched: set[int] = set()

    def note_order(self, wanted: Any) -> None:
        """Take the samples of the model's input for those of other tensors, as far as their content agrees."""
        found = self.find(wanted) if isinstance(wanted, torch.Tensor) else None
        self._order = found.places if found is not None and found.axis is not None else None

    def find(self, value: Any) -> TensorLayout | None:
        """Return the samples of a tensor or an array; None where nothing proves them."""
        if id(value) not in self.known:
            found = self.find_by_content(value)
            if found is None and self._keeps_places and isinstance(value, torch.Tensor):
                found = _by_place(value, self.count)
                self._vouched.add(id(value))
            self.known[id(value)] = found
        return self.known[id(value)]

    def is_vouched_for(self, value: Any) -> bool:
        """Return whether the samples of a value are known only because the user says that places are kept."""
        return not isinstance(value, torch.Tensor) or id(value) in self._vouched

    def is_in_order(self, value: torch.Tensor) -> bool:
        """Return whether row n of a tensor is sample n, for all of them."""
        return self.find(value) == TensorLayout(tuple(range(self.count)), 0)

    def find_by_content(self, value: Any) -> TensorLayout | None:
        """Return the samples that the content alone proves."""
        try:
            return self._find(as_numbers(value))
        except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError):
            # Numbers that cannot be compared: complex ones, or those of an unusual precision.
            return None

    def _find(self, seen: torch.Tensor | None) -> TensorLayout | None:
        if seen is None or not seen.numel() or not seen.dim():
            return None
        place = self._own.get((seen.data_ptr(), tuple(seen.shape)))
        if place is not None:
            return TensorLayout((place,), None)
        for axis in range(min(seen.dim(), 2)):
            rows = list(seen.unbind(axis))
            for find in (self._equal_rows, self._views):
                if (places := find(rows)) is not None:
                    return TensorLayout(tuple(places), axis)
        if self._is_concatenated(seen):
            return TensorLayout(tuple(range(self.count)), None)
        if (places := self._find_scaled_rows(list(seen.unbind(0)))) is not None:
            return TensorLayout(tuple(places), 0)
        places = self._find_any_order([seen]) or self._find_scaled_rows([seen])
        return TensorLayout(tuple(places), None) if places is not None else None

    def _equal_rows(self, rows: list[torch.Tensor]) -> Sequence[int] | None:
        """Return the places of rows that hold the values of one column, in any order."""
        if len(rows) > self.count:
            return None
        for column in self._columns:
            for order in (self._order, range(self.count)):
                if order is None or len(order) != len(rows) or not _follows(rows, column, order):
                    continue
                # Rows that look alike, such as masks, prove nothing of their own.
                if column.is_input or order is self._order or _are_different(rows):
                    return order
        return self._find_any_order(rows)

    def _find_any_order(self, rows: list[torch.Tensor]) -> Sequence[int] | None:
        """Return the places of rows that each hold the value of exactly one sample."""
        return next((found for column in self._columns if (found := _find_order(rows, column)) is not None), None)

    def _views(self, rows: list[torch.Tensor]) -> Sequence[int] | None:
        """Return the places of a batch that has several rows of each sample, such as two views, one after the other."""
        times, rest = divmod(len(rows), self.count)
        if rest or times < 2 or len(rows) > _MOST_COMPARED or not _are_different(rows):
            return None
        in_order = range(self.count)
        one_by_one = [rows[n * self.count : (n + 1) * self.count] for n in range(times)]
        if all(any(_follows(part, column, in_order) for column in self._columns) for part in one_by_one):
            return [*in_order] * times
        in_turn = [rows[n::times] for n in range(times)]
        if all(any(_follows(part, column, in_order) for column in self._columns) for part in in_turn):
            return [place for place in in_order for _ in range(times)]
        return None

    def _is_concatenated(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the values of one column, one behind the other: nodes of graphs, tokens of texts."""
        for column in self._columns:
            parts = [column.values[place] for place in range(self.count) if place in column.values]
            if len(parts) != self.count or any(part.dim() != tensor.dim() for part in parts):
                continue
            if sum(len(part) for part in parts) != len(tensor) or len({part.shape[1:] for part in parts}) != 1:
                continue
            if is_equal(tensor, torch.cat(parts)) and (self.count == 1 or _are_different(parts)):
                return True
        return False

    def _find_scaled_rows(self, rows: list[torch.Tensor]) -> Sequence[int] | None:
        if len(rows) > self.count or self.count > _MOST_COMPARED:
            return None
        for column in self._columns:
            places = list(column.values)
            found = find_scaled_order(rows, [column.values[place] for place in places]) if places else None
            if found is not None:
                return [places[n] for n in found]
        return None


def _follows(rows: Sequence[torch.Tensor], column: ItemColumn, order: Sequence[int]) -> bool:
    values = [column.values.get(place) for place in order]
    return all(value is not None and holds(row, value) for row, value in zip(rows, values, strict=True))


def _find_order(rows: list[torch.Tensor], column: ItemColumn) -> list[int] | None:
    """Return the place of each row, where each holds the value of exactly one sample."""
    if len(rows) > _MOST_COMPARED or not column.may_hold(rows[0]):
        return None
    if not column.is_input and rows[0].numel() < FEWEST_NUMBERS:
        return None
    ends = {place: _first_and_last(value) for place, value in column.values.items() if value.numel()}
    left = dict(column.values)
    order: list[int] = []
    for row in rows:
        first, last = _first_and_last(row)
        places = [
            place
            for place, value in left.items()
            if place in ends
            and (_is_near(ends[place][0], first) or _is_near(ends[place][1], last))
            and holds(row, value)
        ]
        if len(places) != 1:
            return None
        order.append(places[0])
        del left[places[0]]
    return order


def _first_and_last(value: torch.Tensor) -> tuple[float, float]:
    flat = value.reshape(-1)
    return float(flat[0]), float(flat[-1])


def _is_near(one: float, other: float) -> bool:
    """Return whether two numbers may be the same in two precisions, or both are none."""
    return one == other or abs(one - other) <= 0.01 * abs(one) or (one != one and other != other)


def _are_different(rows: Sequence[torch.Tensor]) -> bool:
    """Return whether no two of these tensors hold the same."""
    seen = {(tuple(row.shape), row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) for row in rows}
    return len(seen) == len(rows)


def _by_place(tensor: torch.Tensor, count: int) -> TensorLayout:
    places = tuple(range(count))
    return TensorLayout(places, 0 if tensor.dim() and tensor.shape[0] == count else None)


def _place_lists(data: Any, search: LayoutSearch) -> None:
    """Take a list with one tensor for each sample as such, where the user says that places are kept."""
    for part in [data, *data] if isinstance(data, (tuple, list)) else []:
        is_list = isinstance(part, (tuple, list)) and len(part) == search.count
        if is_list and all(isinstance(one, torch.Tensor) and one.shape[:1] != (search.count,) for one in part):
            for place, tensor in enumerate(part):
                search.known[id(tensor)] = search.find_by_content(tensor) or TensorLayout((place,), None)


def _is_object_in_order(data: Any, search: LayoutSearch) -> bool:
    """Return whether an object of the batch that is not a tensor holds the samples in their order, a graph say."""
    for reference in object_references(data):
        held = reference()
        for tensor in () if isinstance(held, Mapping) else tensors_inside(held):
            found = search.find_by_content(tensor)
            if found is not None and found.places == tuple(range(search.count)):
                return True
    return False
