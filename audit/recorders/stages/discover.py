"""Finds the stages of any dataset or transform, and the slots they sit in.

A transform is not rewritten, subclassed or copied. Each stage sits somewhere: in an attribute of the
dataset, in the list of a Compose, among the children of an nn.Sequential. That place is its slot.
While a visit is under way the slot holds an `StageStandIn` stand-in, and the user's own object again
afterwards, so that their containers run their own code with their own random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from audit.errors import PipelineError
from audit.recorders.calls.callables import read_attribute
from audit.recorders.stages.describe import code_digest_of, name_of, parameters_of, qualname_of
from audit.recorders.stages.drawn_parameters import is_known_transform, says_random
from audit.recorders.stages.slots import Slot, SlotSnapshot, tuple_slots
from audit.records import Stage

#: Containers that only call their children in order: their output is their last child's.
_TRANSPARENT = {"Compose", "Sequential", "ModuleList", "StandardTransform", "Pipeline"}
_TRANSFORM_ATTRIBUTES = ("transform", "transforms", "_transforms", "_transform")
_TARGET_ATTRIBUTES = ("target_transform", "_target_transform")
_LOADER_ATTRIBUTES = ("loader",)
_RANDOM_NAMES = {"ColorJitter", "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "ElasticTransform"}


@dataclass(slots=True)
class PipelineStep:
    """One stage of the pipeline with the slots it sits in and what else is known of it."""

    stage: Stage
    slots: list[Slot]
    target: Callable[..., Any] | None
    #: For a random container, the ordinals below each child.
    children: tuple[tuple[int, ...], ...] = ()
    group: int = 0


@dataclass(slots=True)
class Pipeline:
    """All stages in order. Stage 0 is `load`."""

    steps: list[PipelineStep]
    #: Callables that hand over a file's bytes, to be hashed as they are read.
    reads: list[Slot] = field(default_factory=list)
    #: Callables that turn a path or bytes into the decoded value.
    loads: list[Slot] = field(default_factory=list)
    #: Slots that hold a composed stand-in for a transform that hides its steps.
    expanded: list[tuple[Slot, Any]] = field(default_factory=list)
    #: What all the slots held when the stages were found.
    found: SlotSnapshot = field(default_factory=SlotSnapshot)
    #: The dataset, where stages that no slot holds are to be found by its calls; None where they are not.
    observed: Any = None
    _has_targets: bool | None = None

    def add_value(self, slot: Slot, value: Any, stand_in: Any = None) -> None:
        """Add a slot, what it holds, and its stand-in during a visit if that is not a `StageStandIn`."""
        self.found.add_value(slot, value, stand_in)

    def add_children(self, slots: list[Slot]) -> None:
        """Add the slots of one container: it has no others."""
        self.found.add_children(slots)

    def is_current(self) -> bool:
        """Return whether every slot still holds what it held when the stages were found."""
        return self.found.is_current()

    def held_values(self) -> list[Any]:
        """Return everything that the slots held when the stages were found."""
        return self.found.held_values()

    def add_sources(self, part: Pipeline) -> None:
        """Add the slots of one part of a concatenation that are not here yet, and what all its slots held."""
        known = {slot.identity for slot in (*self.reads, *self.loads)}
        self.reads += [slot for slot in part.reads if slot.identity not in known]
        self.loads += [slot for slot in part.loads if slot.identity not in known]
        self.expanded += part.expanded
        self.found.add(part.found)

    @property
    def has_targets(self) -> bool:
        """Whether any stage works on the label. The stages must all be known."""
        if self._has_targets is None:
            self._has_targets = any(step.stage.is_target for step in self.steps)
        return self._has_targets

    @property
    def stages(self) -> list[Stage]:
        """The rows of `stages`."""
        return [step.stage for step in self.steps]


def load_stage() -> Stage:
    """Stage 0: the decoded source."""
    return Stage(0, "0", "load", "audit.load", "{}")


def _is_ours(owner: Any) -> bool:
    """Return whether a dataset is one that `audit run` made, to hold the stages of a pipeline file."""
    return type(owner).__module__.partition(".")[0] == __name__.partition(".")[0]


class _Finder:
    """Walks a dataset once and lists its stages."""

    def __init__(self, expand: Callable[[Any], list[tuple[str, Any]] | None] | None) -> None:
        self.expand = expand
        self.pipeline = Pipeline([PipelineStep(load_stage(), [], None)])
        self._seen: dict[tuple[int, str | int], int] = {}
        self._by_place: dict[tuple[int, str], PipelineStep] = {}
        self._parts: dict[tuple[Any, ...], list[PipelineStep]] = {}
        self._groups = 0
        #: How many datasets with stages of their own lie inside the one that is looked at.
        self._levels = 0
        #: Whether everything in a container must be callable: in a pipeline of `audit run`.
        self._is_strict = True

    def dataset(self, dataset: Any, depth: int = 0) -> None:
        """Find stages on the dataset and on what it wraps."""
        if depth > 20:
            return
        self._is_strict = _is_ours(dataset)
        kind = type(dataset).__name__
        inner = read_attribute(dataset, "datasets")
        if kind == "ConcatDataset" and isinstance(inner, list):
            for part in inner:
                finder = _Finder(self.expand)
                finder.dataset(part, depth + 1)
                self._add_part(finder.pipeline)
            return
        wrapped = read_attribute(dataset, "dataset")
        if wrapped is not None and hasattr(wrapped, "__getitem__") and wrapped is not dataset:
            self.dataset(wrapped, depth + 1)
        below = len(self.pipeline.steps)
        self._add_own(dataset, self._wrapper_prefix())
        self._levels += len(self.pipeline.steps) > below

    def _wrapper_prefix(self) -> str:
        """Return what the paths of a wrapper's own stages begin with, so that they differ from those of the dataset inside."""
        if not self._levels and len(self.pipeline.steps) == 1:
            return ""
        return "outer." if self._levels < 2 else f"outer{self._levels}."

    def _add_part(self, part: Pipeline) -> None:
        """Add one part of a concatenation. If an earlier part has the same stages, both share them; else all are added.

        Never some of them: within a part, ordinals grow from stage to stage.
        """
        self.pipeline.add_sources(part)
        steps = part.steps[1:]
        signature = tuple((id(step.target), step.stage.path, step.group) for step in steps)
        if (twin := self._parts.get(signature)) is not None:
            for step, own in zip(twin, steps, strict=True):
                taken = {slot.identity for slot in step.slots}
                step.slots += [slot for slot in own.slots if slot.identity not in taken]
            return
        offset = len(self.pipeline.steps) - 1
        for step in steps:
            step.stage = replace(step.stage, stage=step.stage.stage + offset)
            step.children = tuple(tuple(ordinal + offset for ordinal in below) for below in step.children)
            step.group += self._groups
        self.pipeline.steps += steps
        self._parts[signature] = steps
        self._groups = max((step.group + 1 for step in steps), default=self._groups + 1)

    def add_named(self, dataset: Any, attributes: Sequence[str]) -> None:
        """Add the stages that the user points out by the attribute that holds them."""
        if isinstance(attributes, str) or not all(isinstance(name, str) for name in attributes):
            raise PipelineError(
                f"stages cannot be {attributes!r}.",
                hint='Give a list of the names of attributes or methods, such as ["tokenise"].',
            )
        for number, name in enumerate(attributes, 1):
            if not callable(read_attribute(dataset, name)):
                raise PipelineError(
                    f"stages names {name!r}, but the {type(dataset).__name__} has no callable of that name.",
                    hint="Give the names of attributes or methods that do one step each.",
                )
            slot = Slot(dataset, name)
            self._place(slot, slot.get(), name, f"{number}.")

    def _add_own(self, dataset: Any, prefix: str) -> None:
        if not hasattr(dataset, "__dict__"):
            return
        if callable(read_attribute(dataset, "read")) and callable(read_attribute(dataset, "source")):
            self._source(self.pipeline.reads, Slot(dataset, "read"))
        for name in _LOADER_ATTRIBUTES:
            if callable(read_attribute(dataset, name)):
                self._source(self.pipeline.loads, Slot(dataset, name))
        for name in _TRANSFORM_ATTRIBUTES:
            self._attribute(dataset, name, prefix)
        for name in _TARGET_ATTRIBUTES:
            self._attribute(dataset, name, f"target.{prefix}")

    def _source(self, slots: list[Slot], slot: Slot) -> None:
        slots.append(slot)
        self.pipeline.add_value(slot, slot.get())

    def _attribute(self, owner: Any, name: str, prefix: str) -> None:
        value = owner.__dict__.get(name) if hasattr(owner, "__dict__") else None
        if value is None and name in getattr(owner, "_modules", {}):
            value = owner._modules[name]
        if value is None:
            if name in getattr(owner, "__dict__", {}):
                self.pipeline.add_value(Slot(owner, name), None)
            return
        if type(value).__name__ == "StandardTransform":
            # torchvision keeps the same two transforms a second time behind `transforms`. It is not a stage itself.
            self.pipeline.add_value(Slot(owner, name), value)
            self._attribute(value, "transform", prefix)
            self._attribute(value, "target_transform", f"target.{prefix}")
            return
        if isinstance(value, list) and not _is_ours(owner) and not all(map(callable, value)):
            # Not a pipeline as `audit run` takes it: the dataset's own code knows what to do with these.
            return
        if isinstance(value, list):
            self.pipeline.add_value(Slot(owner, name), value)
            self._add_children([Slot(value, position) for position in range(len(value))], prefix)
        elif callable(value):
            slot = Slot(owner, name, child=name in getattr(owner, "_modules", {}))
            self._place(slot, value, f"{prefix}1", prefix)

    def _add_children(self, slots: list[Slot], prefix: str) -> tuple[tuple[int, ...], ...]:
        """Return the ordinals of the stages below each child."""
        self.pipeline.add_children(slots)
        return tuple(
            self._place(slot, slot.get(), f"{prefix}{position}", f"{prefix}{position}.")
            for position, slot in enumerate(slots, 1)
        )

    def _place(self, slot: Slot, value: Any, path: str, inside: str) -> tuple[int, ...]:
        """Take `value` apart where it is a container; gives the ordinals of all its stages.

        `path` names it as a stage, `inside` is the prefix of its children when it is none.
        """
        slots, stand_in = child_slots(value), None
        if slots is not None and not self._is_strict and not all(callable(slot.get()) for slot in slots):
            # The container's own code knows what to do with them; what it calls is found by the calls.
            slots = None
        transparent = type(value).__name__ in _TRANSPARENT
        if slots is None and self.expand is not None and (hidden := self.expand(value)) is not None:
            stand_in = Chain([stage for _, stage in hidden])
            self.pipeline.expanded += [(slot, stand_in)]
            slots, transparent = child_slots(stand_in), True
        self.pipeline.add_value(slot, value, stand_in)
        if slots is None:
            return (self._leaf(slot, value, path),)
        children = self._add_children(slots, inside if transparent else f"{path}.")
        below = tuple(ordinal for child in children for ordinal in child)
        if transparent:
            return below
        # A random container is a stage of its own, after its children: it decides what comes out.
        return (*below, self._add(slot, value, path, children, random=True))

    def _leaf(self, slot: Slot, value: Any, path: str) -> int:
        if not callable(value):
            raise PipelineError(
                f"Stage {path} of the pipeline is {value!r}, which cannot be called.",
                hint="Every stage must be a callable that takes a value and returns one.",
            )
        return self._add(slot, value, path, (), random=looks_random(value))

    def _add(
        self, slot: Slot, value: Any, path: str, children: tuple[tuple[int, ...], ...], *, random: bool | None
    ) -> int:
        if slot.identity in self._seen:
            return self._seen[slot.identity]
        # The same object at the same place of torchvision's two attributes is one stage.
        place = (id(value), path)
        if (step := self._by_place.get(place)) is not None:
            step.slots.append(slot)
        else:
            ordinal = len(self.pipeline.steps)
            stage = Stage(
                ordinal, path, name_of(value), qualname_of(value), parameters_of(value), random, code_digest_of(value)
            )
            step = PipelineStep(stage, [slot], value, children)
            self.pipeline.steps += [step]
            self._by_place[place] = step
        self._seen[slot.identity] = step.stage.stage
        return step.stage.stage


class Chain:
    """Calls its stages in order: what a list of stages, or a preset taken apart, becomes."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value

    def __repr__(self) -> str:
        return f"Chain({self.transforms!r})"


_TRANSPARENT.add(Chain.__name__)


def child_slots(value: Any) -> list[Slot] | None:
    """Return the slots of a container's children, or None when it is not a container."""
    if isinstance(value, list):
        return [Slot(value, position) for position in range(len(value))]
    modules = getattr(value, "_modules", None)
    if isinstance(modules, dict) and type(value).__name__ in ("Sequential", "ModuleList"):
        return [Slot(value, key, child=True) for key in modules]
    held = getattr(value, "transforms", None)
    if held is value or held is None or isinstance(value, type):
        return None
    if isinstance(held, list):
        return [Slot(held, position) for position in range(len(held))]
    if isinstance(held, tuple):
        # MONAI's; one that a property makes up has no place where a stand-in could sit.
        own = type(held) is tuple and vars(value).get("transforms") is held and all(callable(item) for item in held)
        return tuple_slots(value, "transforms") if own else None
    return child_slots(held) if isinstance(getattr(held, "_modules", None), dict) else None


def is_choice(value: Any) -> bool:
    """Return whether a container decides by itself which of its children run, as RandomApply does."""
    return type(value).__name__ not in _TRANSPARENT and child_slots(value) is not None


def looks_random(stage: Any) -> bool | None:
    """Return whether a stage draws random numbers, as its class shows; None for a function, and for a class of the user's own."""
    name = name_of(stage)
    if (known := says_random(stage)) is not None:
        return known
    if name.startswith("Random") or name in _RANDOM_NAMES or callable(getattr(stage, "get_params", None)):
        return True
    return False if is_known_transform(stage) else None


def find_pipeline(
    dataset: Any,
    *,
    expand: Callable[[Any], list[tuple[str, Any]] | None] | None = None,
    stages: Sequence[str] | None = None,
    observe_calls: bool = False,
) -> Pipeline:
    """Return the stages of a dataset, through Subset, ConcatDataset and other wrappers.

    `stages` names attributes of the dataset that hold further stages, in order. With `observe_calls`, stages that sit
    anywhere else are found by their calls, while items are made.
    """
    finder = _Finder(expand)
    finder.dataset(dataset)
    finder.add_named(dataset, stages or ())
    finder.pipeline.observed = dataset if observe_calls else None
    return finder.pipeline


def walk(pipeline: Pipeline) -> Iterator[tuple[PipelineStep, Slot]]:
    """Yield every slot with the step that sits in it."""
    for step in pipeline.steps:
        for slot in step.slots:
            yield step, slot
