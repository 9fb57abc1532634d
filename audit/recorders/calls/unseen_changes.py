"""What the recording of a dataset did not see: changes of the value that no stage explains.

Three kinds: the item is not what the last stage returned, a stage was given what no stage before it returned, or no stage
was seen at all though the dataset's own code changes values. Each is reported once, with the calls that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import Any

from audit.recorders.calls.adaptive_code import AdaptiveCode
from audit.recorders.calls.call_profile import CallProfile
from audit.recorders.calls.callables import describe_code, find_in_class, is_library_file, unwrap
from audit.recorders.calls.changed_values import ChangedValues
from audit.recorders.calls.data_values import ids_in, texts_in
from audit.recorders.calls.monitor import can_monitor
from audit.recorders.calls.rare_code import RareCode
from audit.recorders.stages.stand_in import current_visit
from audit.records import FILES_NOT_KNOWN, Stage, is_about_files

_HINT = 'Put the step into a function or wrap it: with audit.stage("name") as s: value = s.out(...).'
#: How a text ends that a run was marked with already, when the batch came.
WHOLE_BATCHES = "the stages of samples that it makes in whole batches"
_FILES_HINT = "Name the files of each sample: a method source(index) of the dataset, or run.loader(…, source=…)."
_RARE_UNKNOWN = "code that only some items run could not be checked for changes"
_NO_STAGE = "no stage was seen, and `load` is the finished item"
_READS_AHEAD = "the dataset runs stages before it returns the item, so audit could not assign their outputs to items, and did not record them"
#: So many items are made at most until calls are listed again: that takes about as long as making a few items.
_LONGEST_PAUSE = 512
_ENTRIES = ("__getitem__", "__getitems__", "__iter__")


class UnseenChanges:
    """Collects what one process did not see of one dataset."""

    def __init__(
        self,
        dataset: Any,
        own_code: Callable[[], list[CodeType]] = list,
        observed_names: Callable[[], Collection[str]] = list,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Look for changes; `own_code` returns the user's own code that may make items, `observed_names` the names of what it calls stages by.

        `on_wait` is called before an item waits for another thread.
        """
        self._on_wait = on_wait
        self._dataset = dataset
        self._own_code = own_code
        self._rare = RareCode(dataset) if can_monitor() else AdaptiveCode(observed_names)
        self._profile: CallProfile | None = None
        #: Whether that is the profile of the first item that was listed.
        self._is_first = True
        #: Whether the item was seen to differ from what the last stage returned.
        self._item_changes = False
        #: What was not seen, by a key for each kind, and where in the code that is.
        self._gaps: dict[str, tuple[str, str]] = {}
        self._sent: set[str] = set()
        #: Whether the calls of the next item need not be listed, so that `run` would only make it.
        self.is_listed = False
        #: How many items were made since calls were last listed, and after how many they are again; 0 for never.
        self._made = self._again = 0
        #: What is said of a collate function, and whether that was sent.
        self._unplaced: str | None = None
        self._is_unplaced_sent = False
        #: Whether `check_load` has been given a value.
        self.is_load_checked = False
        #: The texts that the stages of the listed item returned.
        self._texts: set[str] = set()

    def run(self, make: Callable[[], Any]) -> Any:
        """Make an item with its calls listed.

        That is done for the first item of the process. If the code that ran has branches, it is done again after
        1, 2, 4, 8… more items, and then after each 512, which may take others of them.
        """
        self._is_first = self._profile is None
        self._profile = profile = CallProfile(self._on_wait)
        codes = self._own_code()
        is_watched = not codes or self._rare.is_watching or self._rare.begin(codes)
        try:
            item = profile.run(make)
            self._check_parts(profile, item)
            return item
        finally:
            self._rare.end_first()
            self._rare.note_names(profile.users)
            self.is_listed, self.is_load_checked = True, False
            self._made, self._again = 0, _next_pause(self._again) if profile.has_branches else 0
            if profile.has_branches and not is_watched:
                self._add("monitor", f"{_RARE_UNKNOWN}: other tools hold sys.monitoring")

    def _check_parts(self, profile: CallProfile, item: Any) -> None:
        """Note where a part of the item was changed after stage 0, beside what the stages returned."""
        visit = current_visit()
        self._texts = set()
        if visit is None or 0 not in visit.rows:
            return  # the whole item becomes stage 0, which `check_load` looks at
        try:
            passed = list(visit.passed_values())
            self._texts = set().union(*(texts_in(output) for _, output in passed))
            if self._item_changes:
                return
            explained = set().union(*(given | ids_in(output) for given, output in passed))
            if ChangedValues(profile, self._dataset).has_changed_part(item, explained):
                self._add("part", "a part of the item was changed outside of any stage")
        except Exception as error:
            self._add("part", f"whether parts of the item were changed is not known: {type(error).__name__}: {error}")

    def add_visit(self, load: Any, item: Any, gaps: Sequence[tuple[str, str]], *, is_load_only: bool) -> None:
        """Note what one visit does not explain: `load` is the value of stage 0, `gaps` are pairs of stages."""
        if is_load_only:
            self.add_no_stage()
        self.check_load(load, item, is_load_only=is_load_only)
        if self._again:
            self._made += 1
            self.is_listed = self._made <= self._again
        for before, after in gaps:
            self.add_gap(before, after)

    def add_unplaced(self, stage: Stage) -> None:
        """Note a collate function whose rows could not be assigned to samples."""
        if self._unplaced is None:
            self._unplaced = (
                f"{type(self._dataset).__name__}: what the collate function {stage.name} ({stage.qualname}) makes of each sample; "
                "the content does not show which row of the batch is which sample. If row n is sample n, put @audit.stage above it"
            )

    def add_gap(self, after: str, before: str) -> None:
        """Note that no stage explains what a stage was given, or what the item is."""
        if not after:
            # `load` is then a row without a value.
            hint = f'name it: audit.stage("{before}", given)'
            self._add(f" {before}", f"the input of the stage {before} was not seen; {hint}")
        elif before == "item":
            # That the item's value is also a part of it need not be said twice.
            self._item_changes = True
            if "part" not in self._sent:
                self._gaps.pop("part", None)
            self._add(after, f"the value changes between {after} and the item")
        else:
            # It was changed since, or is another value, such as a second picture.
            self._add(f"{after} {before}", f"{before} was given a value that no stage returned, after {after}")

    def _add(self, key: str, text: str, where: str | None = None) -> None:
        if key not in self._gaps:
            self._gaps[key] = text, where or self._describe_place(with_later_texts=key == "text")

    def add_files(self, what: str, example: str = "") -> None:
        """Note files of which it is not known whose sources they are: once for each `what`."""
        self._gaps.setdefault(f"file {what}", (f"{what}{example}: {FILES_NOT_KNOWN}", ""))

    def add_read_ahead(self) -> None:
        """Note that stages ran for items that come later, so that their outputs belong to no item."""
        self._add("ahead", _READS_AHEAD)

    def add_earlier(self, text: str) -> None:
        """Note what was done to the values before the recording."""
        self._add("earlier", text)

    def add_no_stage(self) -> None:
        """Note that an item was made without any stage; that says something only where values were changed."""
        if self._profile is None:
            return
        if self._profile.calls:
            self._add("", _NO_STAGE)
        elif self._profile.has_waited and not self._profile.has_users_code and (codes := self._own_code()):
            # As in datasets of Hugging Face, which fill the buffer of `shuffle` in a thread of a pool.
            named = "; ".join(describe_code(code) for code in codes if "<locals>.<" not in code.co_qualname)
            self._add("", f"{_NO_STAGE}: another thread made it, whose calls are not observed", named)

    def check_load(self, value: Any, item: Any, *, is_load_only: bool) -> None:
        """Note where the value that became `load`, or a text beside it, had been changed. Once for each item whose calls were listed."""
        if self._profile is None or self.is_load_checked:
            return
        self.is_load_checked = True
        values = ChangedValues(self._profile, self._dataset, may_be_kept=not self._is_first, has_stage=not is_load_only)
        if values.is_changed(value):
            text = _NO_STAGE if is_load_only else "the value changes before the first stage"
            self._add("" if is_load_only else "load", text)
        elif self._profile.is_blocked and self._own_entry() is not None:
            what = "stages" if is_load_only else "changes before the first stage"
            self._add("profiler", f"audit could not look for {what}")
        elif values.has_changed_text(item, value, self._texts):
            self._add("text", "a text of the item was changed outside of any stage")
        self._profile.forget_values()

    def repeat(self) -> None:
        """Let `take` return everything once more."""
        self._sent.clear()
        self._is_unplaced_sent = False

    def take(self) -> list[str]:
        """Return what has not been reported yet."""
        if self._rare.problem is not None:
            self._add("rare", f"{_RARE_UNKNOWN}: {self._rare.problem}")
        for place in self._rare.take():
            changes = "changes" if can_monitor() else "may change"
            self._add(place, f"a value {changes} in code that only some items run", place)
        fresh = [gap for key, gap in self._gaps.items() if key not in self._sent]
        self._sent.update(self._gaps)
        found = [f"{type(self._dataset).__name__}: {'; '.join(filter(None, said))}" for said in fresh]
        if self._unplaced is not None and not self._is_unplaced_sent:
            self._is_unplaced_sent = True
            found.append(self._unplaced)
        return found

    def _describe_place(self, *, with_later_texts: bool = False) -> str:
        """Return the calls of the user's own code, or its place where they are not known."""
        code = self._own_entry()
        if self._profile is not None and (named := self._profile.describe(with_later_texts=with_later_texts)):
            if code is not None and not any(text.startswith(f"{code.co_qualname} (") for text in named):
                # What it does there may be what was not seen: a function in C that is called by a partial, for example.
                named.append(describe_code(code))
            return "; ".join(named)
        if code is not None:
            reason = ", whose calls are not known: another profiler is active"
            blocked = reason if self._profile is not None and self._profile.is_blocked else ""
            return f"in {code.co_qualname} ({code.co_filename}:{code.co_firstlineno}){blocked}"
        return f"in {type(self._dataset).__module__}.{type(self._dataset).__qualname__}"

    def _own_entry(self) -> CodeType | None:
        """Return the code of the user's own that makes the items; None where a library's does."""
        for name in _ENTRIES:
            function = unwrap(find_in_class(type(self._dataset), name))
            if function is not None and not is_library_file(function.__code__.co_filename):
                return function.__code__
        return None


def _next_pause(before: int) -> int:
    return min(max(1, 2 * before), _LONGEST_PAUSE)


def describe_unrecorded(texts: list[str]) -> str:
    """Return one warning for all that a run did not see."""
    files = [text for text in texts if is_about_files(text)]
    changes = [text for text in texts if not is_about_files(text)]
    said = [f"audit did not see every change of the values: {_list(changes)}. {_HINT}"] if changes else []
    said += [f"audit does not know every source file: {_list(files)}. {_FILES_HINT}"] if files else []
    return " ".join(said)


def _list(texts: list[str]) -> str:
    return " | ".join(texts[:4]) + (f" | and {len(texts) - 4} more" if len(texts) > 4 else "")
