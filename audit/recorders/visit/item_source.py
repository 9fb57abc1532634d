"""The origin of an item: what the user's `source=` names, what its dataset names, or the files that it was read from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.recorders.files.file_lists import is_listed
from audit.recorders.files.origin import Origin, find_archived_origin, find_source, make_named_origin, origin_of
from audit.recorders.files.source_files import is_data_file, is_media
from audit.recorders.visit.make import MadeVisit
from audit.recorders.visit.visit import Visit

#: Names the files of a sample: a function of the index (and of the item), or a mapping or sequence by index.
SourceFinder = Callable[..., Any] | Mapping[int, Any] | Sequence[Any] | None


class ItemSource:
    """Finds the origins of a dataset's items; `finder` is what the user says of them."""

    def __init__(self, dataset: Any, finder: SourceFinder) -> None:
        self._dataset = dataset
        self.finder = finder
        #: Whether an iterable dataset was seen to read files of other samples than the one that it gives.
        self.reads_ahead = False
        #: A file that it read meanwhile, which is in no row.
        self.dropped: str | None = None
        #: Whether an item was seen that is made of several others, as a pair is.
        self._joins_items = False

    def find(self, index: int, made: MadeVisit, origin: Origin | None, problems: list[str]) -> Origin:
        """Return the origin of an item; `origin` is what is known of it before it is made."""
        self.reads_ahead = self.reads_ahead or made.is_read_ahead
        if origin is not None and origin.is_streamed:
            made.visit.opened = self._own_files(made.visit.opened)
            if (archived := find_archived_origin(made.item)) is not None:
                origin, self.dropped = archived, None
        found = origin or self._find_asked_origin(index, made.visit) or origin_of(self._dataset, index)
        if self.finder is None:
            return found
        try:
            named = find_source(self.finder, index, made.item)
            return (
                found
                if named is None
                else make_named_origin(named, found.folder, found.split, found.label, dataset=self._dataset)
            )
        except Exception as error:
            # The same words for every item: a run is marked once with each message.
            problems.append(f"source= names no file of a sample: {type(error).__name__}: {error}")
            return found

    def _find_asked_origin(self, index: int, visit: Visit) -> Origin | None:
        """Return the origin of the item of another dataset that this one was made of; None where it is not known."""
        asked = visit.asked
        if asked is None or not asked.bases or asked.bases == [(self._dataset, index)]:
            return None
        owner, number = asked.bases[0]
        found = replace(origin_of(owner, number), label=None)
        if owner is self._dataset:
            # What was read before, for an item that is damaged for example, is not the source.
            visit.opened.sort(key=lambda path: not is_listed(owner, number, os.path.abspath(path)))
        self._joins_items = self._joins_items or len(asked.bases) > 1
        if found.root is None and (self._joins_items or not asked.has_one_base):
            # The number of one item does not identify what was made of several, nor tell items of two datasets apart.
            return replace(found, source=f"dataset://{index}", owner=self._dataset, number=index)
        return found

    def _own_files(self, opened: list[str]) -> list[str]:
        """Return the files of one item of an iterable dataset; none as soon as it may have read those of other items."""
        if len({path for path in opened if is_media(path)}) != 1:
            self.reads_ahead = True
        if not self.reads_ahead:
            return opened
        if self.dropped is None:
            self.dropped = next((path for path in opened if is_data_file(path)), None)
        return []
