"""Stages are found by the calls that a dataset makes, wherever it keeps what it calls."""

from __future__ import annotations

import cProfile
import inspect
import json
import pstats
import random
import sys
import threading
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from dataset_shapes import SHAPES, Conditional, Functions, NamedAttribute, Pictures, Shape, flip, picture
from further_shapes import FURTHER
from observing_material import difference, seed_everything
from torch.utils.data import DataLoader, IterableDataset
from torchvision import transforms

import audit
from audit.recorders.calls.call_search import CallSearch
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.calls.monitor import can_monitor


def make_items(dataset: Any) -> list[Any]:
    return list(dataset) if isinstance(dataset, IterableDataset) else [dataset[n] for n in range(len(dataset))]


def generator_states() -> list[Any]:
    return [torch.get_rng_state(), np.random.get_state(), random.getstate()]


def found_stages(store: Path) -> list[tuple[str, str]]:
    with audit.open(store) as lineage:
        return lineage.sql("SELECT path, name FROM stages ORDER BY stage").fetchall()[1:]


@pytest.mark.parametrize("shape", [*SHAPES, *FURTHER], ids=lambda shape: shape.name)
def test_shapes(shape: Shape, tmp_path: Path) -> None:
    seed_everything(3)
    plain = make_items(shape.build())
    after = generator_states()
    seed_everything(3)
    dataset = shape.build()
    codes = {id(function): function.__code__ for function in CallSearch(dataset).functions.values()}
    functions = list(CallSearch(dataset).functions.values())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with audit.record(tmp_path / "lineage", strict=True) as run:
            recorded = make_items(run.dataset(dataset))
    assert difference(plain, recorded) is None
    assert difference(after, generator_states()) is None
    assert [function.__code__ for function in functions] == [codes[id(function)] for function in functions]
    assert found_stages(tmp_path / "lineage") == shape.stages
    reported = [str(one.message) for one in warned if "did not see every change" in str(one.message)]
    if shape.unseen is None:
        assert (run.run.unrecorded, reported) == ([], [])
    else:
        texts = run.run.unrecorded or []
        # A branch is reported when it first runs, where that can be seen, and when an item that takes it is looked at.
        assert len(texts) == (2 if shape.name == "branch that later items take" and can_monitor() else 1)
        assert len(reported) == 1
        for text in texts:
            assert shape.unseen in text
            assert "_shapes.py:" in text
            assert text in reported[0]
    if not isinstance(dataset, IterableDataset):
        with audit.open(tmp_path / "lineage") as lineage:
            replayed = lineage.replay(dataset=shape.build())
        assert (replayed.checked, replayed.identical) == (len(plain), len(plain)), replayed.different


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_that_one_sample_runs(tmp_path: Path, workers: int) -> None:
    loader = DataLoader(Conditional(), batch_size=2, num_workers=workers)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(loader))
    with audit.open(tmp_path / "lineage") as lineage:
        names = lineage.sql("SELECT index, list(name ORDER BY stage) FROM stage_outputs GROUP BY ALL ORDER BY ALL")
        for index, found in names.fetchall():
            assert found == (["load", "flip", "ToTensor"] if index == 6 else ["load", "ToTensor"])
        last = "SELECT index, arg_max(kind, stage), arg_max(digest, stage) FROM stage_outputs GROUP BY ALL ORDER BY ALL"
        assert {kind for _, kind, _ in lineage.sql(last).fetchall()} == {"tensor"}
        assert lineage.replay(dataset=Conditional()).identical == 8


class Raising(Pictures):
    def check(self, image: Any) -> Any:
        if image.getpixel((0, 0)) == picture(4).getpixel((0, 0)):
            raise ValueError("a picture that must not be")
        return flip(image)

    def make(self, index: int) -> Any:
        return transforms.ToTensor()(self.check(picture(index)))


def test_a_stage_that_fails(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        dataset = run.dataset(Raising())
        for index in range(8):
            if index == 4:
                with pytest.raises(ValueError, match="must not be"):
                    dataset[index]
            else:
                dataset[index]
    with audit.open(tmp_path / "lineage") as lineage:
        failed = lineage.sql("SELECT index, failed_stage, error FROM samples WHERE status = 'failed'").fetchall()
        assert failed == [(4, "check", "ValueError: a picture that must not be")]
    assert not any(isinstance(constant, FunctionSlot) for constant in flip.__code__.co_consts)


def test_arguments_of_a_function_are_kept(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        random.seed(1)
        make_items(run.dataset(Functions()))
    random.seed(1)
    drawn = [random.uniform(0.5, 1.5) for _ in range(8)]
    with audit.open(tmp_path / "lineage") as lineage:
        kept = lineage.sql("SELECT params FROM stage_outputs WHERE name = 'brighten' ORDER BY index").fetchall()
    assert [json.loads(params)["factor"] for (params,) in kept] == drawn


def test_what_a_random_stage_drew(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        make_items(run.dataset(NamedAttribute("aug")))
    with audit.open(tmp_path / "lineage") as lineage:
        kept = lineage.sql("SELECT params FROM stage_outputs WHERE name = 'RandomCrop'").fetchall()
        assert all(set(json.loads(params)) == {"top", "left", "height", "width"} for (params,) in kept)
        random_ones = lineage.sql("SELECT name FROM stages WHERE random ORDER BY stage").fetchall()
    assert random_ones == [("RandomCrop",), ("RandomHorizontalFlip",)]


def test_a_run_recorded_without_calls_replays_as_it_was(tmp_path: Path) -> None:
    dataset = NamedAttribute("aug")
    with audit.record(tmp_path / "lineage", strict=True) as run:
        # As a version that knew no calls would have recorded it.
        proxy = run.dataset(dataset)
        proxy._audit_recorder.instrument.pipeline.observed = None
        run.run.recipe.pop("observed_calls")
        make_items(proxy)
    assert found_stages(tmp_path / "lineage") == []
    with audit.open(tmp_path / "lineage") as lineage:
        assert lineage.replay(dataset=dataset).identical == 8


def test_another_profiler_is_left_alone(tmp_path: Path) -> None:
    (shape,) = (shape for shape in SHAPES if shape.name == "arithmetic")
    (library,) = (shape for shape in SHAPES if shape.name == "functions of a library")
    events: list[str] = []

    def profiler(frame: Any, event: str, arg: Any) -> None:
        events.append(event)

    for number, one in enumerate((shape, library)):
        sys.setprofile(profiler)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with audit.record(tmp_path / str(number), strict=True) as run:
                    make_items(run.dataset(one.build()))
            assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)
        assert run.run.unrecorded
        assert all("another profiler is active" in text for text in run.run.unrecorded)
    assert events


def test_a_debugger_and_a_profiler_see_what_they_saw_before(tmp_path: Path) -> None:
    """A tracer, as debuggers and coverage tools set one, sees the lines of the user's functions; cProfile sees their calls."""
    (shape,) = (shape for shape in SHAPES if shape.name == "functions")
    home = sys.modules[type(shape.build()).__module__].__file__

    def trace(store: Path | None) -> set[tuple[str, int]]:
        seen: set[tuple[str, int]] = set()

        def tracer(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename != home:
                return None
            if event == "line" and frame.f_lineno != frame.f_code.co_firstlineno:
                seen.add((frame.f_code.co_qualname, frame.f_lineno))
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            make_all(store)
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(before)
        return seen

    def make_all(store: Path | None) -> None:
        if store is None:
            make_items(shape.build())
            return
        with audit.record(store, strict=True) as run:
            make_items(run.dataset(shape.build()))

    def profile(store: Path | None) -> dict[str, int]:
        profiler = cProfile.Profile()
        profiler.runcall(make_all, store)
        calls = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
        names = ("flip", "prepare", "brighten", "__getitem__")
        return {key[2]: found[0] for key, found in calls.items() if key[0] == home and key[2] in names}

    make_all(tmp_path / "plain")
    assert trace(tmp_path / "traced") == trace(None)
    assert profile(tmp_path / "profiled") == profile(None)
    for name in ("traced", "profiled"):
        assert found_stages(tmp_path / name) == found_stages(tmp_path / "plain")


def test_the_page_of_shapes() -> None:
    from datasets_page import PAGE, datasets_page

    assert PAGE.read_text(encoding="utf-8") == datasets_page()


# -- the slot in a function ----------------------------------------------------------------------


def many_parameters(offset: int) -> FunctionType:
    def function(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> Any:
        return (a, b, c, rest, d, e, more, offset)

    return function  # type: ignore[return-value]


def test_slot_passes_every_argument_on() -> None:
    function, calls = many_parameters(7), []

    def observe(slot: FunctionSlot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append((args, kwargs))
        return slot.original(*args, **kwargs)

    signature, code = inspect.signature(function), function.__code__
    expected = [function(1, d=4), function(1, 2, 3, 4, 5, d=6, z=7)]
    slot = FunctionSlot(function, observe)
    assert slot.put()
    assert slot.put(), "a second visit, in another thread"
    slot.restore()
    assert [function(1, d=4), function(1, 2, 3, 4, 5, d=6, z=7)] == expected
    assert inspect.signature(function) == signature
    slot.restore()
    assert function.__code__ is code
    assert function(1, d=4) == expected[0]
    assert len(calls) == 2


def test_slot_leaves_code_alone_that_was_changed() -> None:
    function = many_parameters(1)
    slot = FunctionSlot(function, lambda slot, args, kwargs: slot.original(*args, **kwargs))
    function.__code__ = function.__code__.replace(co_name="another")
    assert not slot.put()


def test_other_threads_are_not_recorded(tmp_path: Path) -> None:
    class Threaded(Pictures):
        def make(self, index: int) -> Any:
            made: list[Any] = []
            thread = threading.Thread(target=lambda: made.append(flip(picture(index))))
            thread.start()
            thread.join()
            return transforms.functional.to_tensor(made[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage") as run:
            make_items(run.dataset(Threaded()))
    assert found_stages(tmp_path / "lineage") == [("call.to_tensor", "to_tensor")]


class Lenient:
    """A container that passes over what it cannot call, under the name of torchvision's."""

    def __init__(self, steps: list[Any]) -> None:
        self.transforms = steps

    def __call__(self, value: Any) -> Any:
        for step in self.transforms:
            value = step(value) if callable(step) else value
        return value


Lenient.__name__ = "Compose"


@pytest.mark.parametrize("hold", [Lenient, list], ids=["container", "list"])
def test_what_cannot_be_called_does_not_stop_a_loop(hold: Any, tmp_path: Path) -> None:
    class Holding(Pictures):
        def __init__(self) -> None:
            self.transform = hold([None, transforms.ToTensor(), "note"])

        def __getitem__(self, index: int) -> Any:
            return Lenient(list(getattr(self.transform, "transforms", self.transform)))(picture(index)), 0

    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded = make_items(run.dataset(Holding()))
    assert difference(make_items(Holding()), recorded) is None
    assert "ToTensor" in [name for _, name in found_stages(tmp_path / "lineage")]


class Turn:
    def __call__(self, image: Any) -> Any:
        return transforms.functional.to_tensor(image).flip(-1)


def test_a_transform_that_is_replaced_between_epochs(tmp_path: Path) -> None:
    dataset = NamedAttribute("aug")
    with audit.record(tmp_path / "lineage", strict=True) as run:
        loader = run.loader(DataLoader(dataset, batch_size=4))
        list(loader)
        for replaced in (transforms.Compose([transforms.CenterCrop(6), transforms.ToTensor()]), Turn()):
            setattr(dataset, dataset.name, replaced)
            list(loader)
    assert run.run.unrecorded == []
    with audit.open(tmp_path / "lineage") as lineage:
        names = lineage.sql(
            "SELECT epoch, list(DISTINCT name ORDER BY name) FROM stage_outputs GROUP BY epoch ORDER BY epoch"
        ).fetchall()
    expected = [["RandomCrop", "RandomHorizontalFlip", "ToTensor", "load"], ["CenterCrop", "ToTensor", "load"]]
    assert names == [*enumerate([*expected, ["Turn", "load"]])]
