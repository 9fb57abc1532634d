"""The attributes of visits and rows are the same with the C extension and without it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any

import pytest

from audit.recorders.visit import visit_state
from audit.values import native as loops

compiled_only = pytest.mark.skipif(loops.native is None, reason="the C extension was not built")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is imported where the extension was not built."""
    monkeypatch.setattr(loops, "native", None)
    spec = importlib.util.spec_from_file_location("plain_visit_state", visit_state.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _members(kind: type) -> set[str]:
    return {name for name, what in vars(kind).items() if isinstance(what, MemberDescriptorType)}


@compiled_only
def test_both_have_the_same_attributes(plain: ModuleType) -> None:
    assert _members(visit_state.VisitState) == set(plain.VisitState.__annotations__) | {"_overhead"}
    assert _members(visit_state.RowState) == set(plain.RowState.__slots__)


@compiled_only
def test_both_begin_alike(plain: ModuleType) -> None:
    visit, same = visit_state.VisitState(), plain.VisitState()
    for name in ("_value", "_digest", "_last", "_overhead", "activity", "follower"):
        assert getattr(visit, name) == getattr(same, name)
    facts: Any = ("facts",)
    row, alike = visit_state.RowState(facts, True, None, 0.5), plain.RowState(facts, True, None, 0.5)
    for name in plain.RowState.__slots__:
        assert getattr(row, name) == getattr(alike, name)
    kinds: list[Any] = [visit_state.RowState, plain.RowState]
    for kind in kinds:
        with pytest.raises(TypeError):
            kind(facts)
        with pytest.raises(TypeError):
            kind(facts, True, None, microseconds=0.5)


@compiled_only
def test_a_visit_that_refers_to_itself_is_freed() -> None:
    class Owner(visit_state.VisitState):
        def __del__(self) -> None:
            freed.append(self.follower)

    import gc

    freed: list[Any] = []
    for number in range(3):
        visit: Any = Owner()
        visit.follower = number
        visit._value = [visit]
        row: Any = visit_state.RowState(visit, None, None, None)  # type: ignore[arg-type]
        visit._last = row
    del visit, row
    gc.collect()
    assert sorted(freed) == [0, 1, 2]


_PROGRAM = """
import sys
sys.modules["audit.values._native"] = None  # as if it was not built
import torch
from torch.utils.data import DataLoader, TensorDataset
import audit
from audit.values import native
assert native.native is None
with audit.record(sys.argv[1], strict=True) as run:
    for _ in run.loader(DataLoader(TensorDataset(torch.rand(6, 4), torch.arange(6)), batch_size=2)):
        pass
with audit.open(sys.argv[1]) as store:
    assert store.sql("SELECT count(*), count(DISTINCT digest) FROM stage_outputs").fetchone() == (6, 6)
"""


@pytest.mark.workers
def test_a_recording_without_the_extension(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM, str(tmp_path / "lineage")], check=True, timeout=120)
