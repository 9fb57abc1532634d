"""Whether the value that became stage 0 had been changed before, by what the profile of one visit shows.

A value is as it was loaded if the dataset holds it, or a whole that it is a row or window of; if a function of a library
returned it; or if a function in C may have made it and nothing changed it since. All else is the work of the user's own code.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from audit.recorders.calls.call_profile import CallProfile
from audit.recorders.calls.callables import is_a
from audit.recorders.calls.data_values import carries_data, is_picture, parts_in
from audit.recorders.calls.held_values import HeldValues, is_selected, is_turned, is_view
from audit.recorders.calls.operators import is_listed


class ChangedValues:
    """Judges values of the visit that a profile saw."""

    def __init__(
        self, profile: CallProfile, dataset: Any, *, may_be_kept: bool = False, has_stage: bool = False
    ) -> None:
        """Look for changes; `has_stage` says that the value is what the first stage was given."""
        self._profile = profile
        #: Whether code of the user's own ran that may have changed the value.
        self._has_code = profile.has_earlier_code if has_stage else profile.has_users_code
        self._held = HeldValues(dataset)
        #: Whether a value that nothing in this visit made may have been kept from an earlier one, as `lru_cache` does.
        self._may_be_kept = may_be_kept
        #: Tensors that were made of lists, beside a picture or an array: labels and boxes are read so.
        self._beside: set[int] = set()

    def is_changed(self, value: Any, *, is_part: bool = False) -> bool:
        """Return whether a value, or a part of it, is new, though nothing but the user's own code can have made it."""
        if is_a(value, torch.Tensor):
            return self._is_changed_tensor(value)
        if id(value) in self._profile.changed_pictures or self._profile.is_library_result(value):
            return True
        if is_a(value, (list, tuple, Mapping)):
            if not is_part:
                self._beside = self._labels_beside(value)
            return not self._held.holds(value) and self._is_changed_container(value, is_part)
        if self._profile.is_blocked or not self._has_code or id(value) in self._profile.returned:
            return False
        if is_a(value, (str, bytes)):
            # A name or a path beside the value does not matter.
            return (not is_part or carries_data(value)) and self._is_changed_text(value)
        if is_a(value, np.generic):
            return self._is_worked_on() and not self._held.holds(value)
        return is_a(value, np.ndarray) and bool(value.ndim) and self._is_changed_array(value)

    def _labels_beside(self, container: Any) -> set[int]:
        """Return the tensors in a container that were made of lists, if there is a picture or an array that was not."""
        sources = self._profile.torch.sources
        listed = {identity for identity, (_, source) in sources.items() if not is_a(source, (np.ndarray, torch.Tensor))}
        return listed if any(id(part) not in listed for part in _pictures_in(container)) else set()

    def has_changed_text(self, item: Any, load: Any, outputs: Container[str] = ()) -> bool:
        """Return whether a text in the item beside the value that was loaded is new, by the work of the user's own code.

        `outputs` are the texts that stages returned.
        """
        profile = self._profile
        if profile.is_blocked or not profile.has_users_code or not is_a(item, (list, tuple, Mapping)):
            return False
        texts = [part for part in parts_in(item) if is_a(part, str) and carries_data(part) and part is not load]
        texts = [text for text in texts if text not in outputs]
        if not texts or not (profile.text_calls or profile.later_text_calls or profile.has_text_changes):
            return False
        return any(id(text) not in profile.returned and not self._held.holds(text) for text in texts)

    def has_changed_part(self, item: Any, explained: set[int]) -> bool:
        """Return whether a picture, tensor or array of the item that no stage returned is new, by the work of the user's own code.

        `explained` are the identities of what stages were given and returned. A vector is left out: it may be a label.
        """
        profile = self._profile
        if profile.is_blocked or not profile.has_users_code:
            return False
        return any(
            id(part) in profile.torch.later
            or profile.is_library_result(part)
            or id(part) in profile.changed_pictures
            or self._is_changed_before(part)
            for part in _pictures_in(item)
            if id(part) not in explained
        )

    def _is_changed_before(self, part: Any) -> bool:
        """Return whether a tensor beside the value was changed before the first stage, or made of an array that was.

        One that was made of lists is not looked at: boxes are read so.
        """
        torch_calls = self._profile.torch
        if id(part) in torch_calls.changed:
            return True
        _, source = torch_calls.sources.get(id(part), (None, None))
        return is_a(source, np.ndarray) and self.is_changed(source) and not self._is_loaded_picture(source)

    def _is_loaded_picture(self, array: Any) -> bool:
        """Return whether an array has the pixels of a picture that a library loaded, and that nothing has changed."""
        profile = self._profile
        return any(
            is_picture(picture)
            and getattr(picture, "_im", None) is not None  # else this would read its file
            and not (profile.is_library_result(picture) or identity in profile.changed_pictures)
            and np.array_equal(np.asarray(picture), array)
            for identity, picture in profile.returned.items()
        )

    def _is_changed_container(self, value: Any, is_part: bool) -> bool:
        if is_listed(value) and not is_a(value[0], np.generic):
            return not is_part and self._is_made_list(value)
        lists_matter = not is_part and is_a(value, Mapping) and not carries_data(value)
        return any(self.is_changed(part, is_part=not (lists_matter and is_listed(part))) for part in parts_in(value))

    def _is_made_list(self, value: Any) -> bool:
        profile = self._profile
        if profile.is_blocked or not self._has_code or id(value) in profile.returned:
            return False
        if profile.has_maker:
            return bool(profile.changes_since_made())
        return not all(self._held.holds(part) for part in parts_in(value))

    def _is_changed_tensor(self, value: torch.Tensor) -> bool:
        profile = self._profile
        if id(value) in profile.torch.changed or id(value._base) in profile.torch.changed:
            return True
        if id(value) in self._beside:
            return False
        if id(value) in profile.torch.sources:
            return self._is_changed_source(profile.torch.sources[id(value)][1])
        if self._held.holds(value) or id(value) in profile.torch.generated or id(value) in profile.returned:
            return False
        if is_view(value):
            whole = self._held.whole_of(value)
            return is_turned(value) if whole is None else not is_selected(value, whole)
        if profile.is_blocked or not self._has_code:
            return False
        return not profile.has_maker and not self._may_be_kept and bool(value.ndim)

    def _is_changed_source(self, source: Any) -> bool:
        """Return whether what a tensor was made of is new: a list of numbers, an array."""
        if is_a(source, (np.ndarray, np.generic, torch.Tensor)):
            return self.is_changed(source)
        if is_a(source, (int, float, complex)) or self._held.holds(source):
            return False
        return not self._profile.has_maker or bool(self._profile.changes_since_made())

    def _is_changed_array(self, value: Any) -> bool:
        if any(change.is_in_place for change in self._profile.changes_since_made()):
            return True
        if self._held.holds(value):
            return False
        whole = self._held.whole_of(value) if is_view(value) else None
        if whole is not None:
            return not is_selected(value, whole)
        if is_view(value):
            return self._is_worked_on() or is_turned(value)
        if is_a(value.base, (bytes, bytearray, memoryview, mmap.mmap)):
            return False
        if self._is_worked_on() or self._profile.has_c_change:
            return True
        return not self._profile.has_maker and not self._profile.is_converted and not self._may_be_kept

    def _is_worked_on(self) -> bool:
        return any(change.is_of_numbers for change in self._profile.changes_since_made())

    def _is_changed_text(self, value: Any) -> bool:
        profile = self._profile
        if not profile.text_calls and not any(change.is_of_text for change in profile.changes_since_made()):
            return False
        return not self._held.holds(value)


def _pictures_in(item: Any, depth: int = 2) -> Iterator[Any]:
    """Yield the pictures in an item, and its arrays and tensors of two axes or more."""
    if is_a(item, (list, tuple, Mapping)):
        for part in parts_in(item) if depth else ():
            yield from _pictures_in(part, depth - 1)
    elif is_a(item, torch.Tensor) or is_a(item, np.ndarray):
        if item.ndim > 1:
            yield item
    elif is_picture(item):
        yield item
