"""The label of an item, and its target where that is more than a class number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from audit.metrics.boxes import Boxes
from audit.recorders.items.item_parts import label_number
from audit.recorders.items.label_candidates import describe_form, whole_numbers
from audit.recorders.items.targets import Target, TargetPicker, find_boxes, find_target, pick_item_target
from audit.recorders.visit.make import MadeVisit

#: Where an item's label is: a key, a position, or a function of the item.
LabelFinder = Callable[[Any], Any] | str | int | None


class ItemLabel:
    """Finds the labels of a dataset's items; `finder` is what the user says of them."""

    def __init__(self, finder: LabelFinder, heads: Mapping[str, TargetPicker], *, all_targets: bool) -> None:
        self.finder = finder
        #: Where the target of each of several graded outputs is in an item.
        self.heads = heads
        #: Find masks and measured values too: a loop of the user's own has them in its batches.
        self._all_targets = all_targets
        #: Whether the user says where labels or targets are.
        self.is_chosen = finder is not None or bool(heads)
        #: Whether a list of the dataset's has given a label that was not in the item.
        self._lists_others = False

    def find(self, index: int, made: MadeVisit, problems: list[str]) -> tuple[int | None, Target | None]:
        """Return an item's class number, and the target that is more than that; None for what it does not have."""
        target = self._target_of(index, made, problems)
        return None if isinstance(target, Boxes) else self._label_of(made, problems), target

    def confirm(self, label: int, made: MadeVisit, *, is_guess: bool) -> int | None:
        """Return the label that the dataset's own list has; a guess only if the items so far have had it, too."""
        if is_guess and made.visit.error is None:
            self._lists_others = self._lists_others or label not in whole_numbers(made.item)
        return None if is_guess and self._lists_others else label

    def find_heads(self, index: int, made: MadeVisit, problems: list[str]) -> dict[str, Any]:
        """Return what each of several graded outputs is to be."""
        if made.item is None or made.visit.error is not None:
            return {}
        try:
            return {name: pick_item_target(made.item, picker) for name, picker in self.heads.items()}
        except Exception as error:
            problems.append(f"sample {index}: its targets could not be read: {type(error).__name__}: {error}")
            return {}

    def _target_of(self, index: int, made: MadeVisit, problems: list[str]) -> Target | None:
        if made.item is None or made.visit.error is not None:
            return None
        try:
            label = made.label if self.finder is None else self._call(made.item)
            return find_target(made.item, label) if self._all_targets else find_boxes(made.item, label)
        except ValueError as error:
            problems.append(f"sample {index}: {error}")
        except Exception:
            return None  # where the label cannot be found, `_label_of` says so
        return None

    def _label_of(self, made: MadeVisit, problems: list[str]) -> int | None:
        item = made.item
        if item is None:
            return None
        # The same words for every item: a run is marked once with each message.
        try:
            if self.finder is None:
                return label_number(made.label)
            found = self._call(item)
            number = label_number(found)
        except Exception as error:
            looks = describe_form(item) or f"a {type(item).__name__}"
            problems.append(f"label={self.finder!r} finds no label in {looks}: {type(error).__name__}: {error}")
            return None
        if number is None and found is not None:
            problems.append(f"label={self.finder!r} finds a {type(found).__name__}, which is not a class number.")
        return number

    def _call(self, item: Any) -> Any:
        return self.finder(item) if callable(self.finder) else item[self.finder]
