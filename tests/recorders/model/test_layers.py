"""Layers by hooks: which, what, when, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from recording_material import WIDTH, Numbers, Questions
from torch import nn
from torch.utils.data import DataLoader

import audit
from audit import values
from audit.errors import UsageError
from audit.recorders.model.tensor_statistics import describe
from audit.recorders.problems import RecordingWarning


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.ReLU())
        self.pair = nn.Bilinear(5, 5, 4)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        x = self.pair(x, x * 2)
        sequence, _ = self.gru(x.unsqueeze(1))
        return self.head(self.body[3](sequence.squeeze(1)))


def record(path: Path, train: bool = False, size: int = 4, strict: bool = True, **options: Any) -> Questions:
    with audit.record(path, strict=strict) as run:
        model = run.model(Net(), **options)
        for x, y in run.loader(DataLoader(Numbers(), batch_size=size)):
            loss = nn.functional.cross_entropy(model(x), y)
            if train:
                loss.backward()
    return Questions(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (["body.0"], ["body.0"]),
        (["body.*"], ["body.0", "body.1", "body.2", "body.3"]),
        ([nn.ReLU], ["body.1", "body.3"]),
        (["head", nn.GRU], ["gru", "head"]),
        (["*"], ["body", "body.0", "body.1", "body.2", "body.3", "gru", "head", "pair"]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::audit.recorders.problems.RecordingWarning")
def test_names_patterns_and_types(tmp_path: Path, layers: list[Any], expected: list[str]) -> None:
    ask = record(tmp_path / "lineage", layers=layers)
    assert [name for (name,) in ask("SELECT DISTINCT layer FROM activations ORDER BY 1")] == expected


def test_ports_and_calls(tmp_path: Path) -> None:
    ask = record(tmp_path / "lineage", layers=["pair", "gru", "body.3"], size=12)
    found = ask("SELECT layer, list(DISTINCT port ORDER BY port) FROM activations GROUP BY layer ORDER BY layer")
    assert found == [
        ("body.3", ["input.0", "input.0@1", "output.0", "output.0@1"]),
        ("gru", ["input.0", "output.0", "output.1"]),
        ("pair", ["input.0", "input.1", "output.0"]),
    ]
    # The hidden state has the batch on its second axis: it belongs to the batch.
    assert ask("SELECT count(*) FROM activations WHERE port = 'output.1' AND index IS NULL") == [(1,)]


class TimeFirst(nn.Module):
    """Its layer is given (times, samples, numbers), with four times: as many as the first batches have samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[:, :4, None].transpose(0, 1)).mean(0)


def test_an_axis_that_is_as_long_as_the_batch_by_chance(tmp_path: Path) -> None:
    with audit.record(tmp_path, strict=True) as run:
        model = run.model(TimeFirst(), layers=["inner"])
        for x, _ in run.loader(DataLoader(Numbers(10), batch_size=4)):
            model(x)
    ask = Questions(tmp_path)
    found = ask("SELECT DISTINCT step, axis, index IS NULL FROM activations WHERE port = 'output.0' ORDER BY step")
    assert found == [(0, None, False), (1, None, False), (2, "other", True)]


def test_an_in_place_layer_does_not_change_what_was_seen(tmp_path: Path) -> None:
    ask = record(tmp_path / "lineage", layers=["body.0", "body.1"])
    before = ask("SELECT index, mean, std FROM activations WHERE layer = 'body.0' AND port = 'output.0' ORDER BY index")
    after = ask("SELECT index, mean, std FROM activations WHERE layer = 'body.1' AND port = 'input.0' ORDER BY index")
    assert before == after
    assert ask("SELECT min(min) >= 0 FROM activations WHERE layer = 'body.1' AND port = 'output.0'") == [(True,)]


def test_full_values_come_back(tmp_path: Path) -> None:
    ask = record(tmp_path / "lineage", layers=["body.0"], keep="full")
    net, dataset = Net(), Numbers()
    batch = torch.stack([dataset[n][0] for n in range(4)])
    for index, digest, payload in ask(
        "SELECT index, digest, payload FROM activations WHERE port = 'output.0' AND index < 4 ORDER BY index"
    ):
        expected = net.body[0](batch)[index].detach()
        assert digest == values.digest(expected)
        assert payload


def test_a_function_says_what_is_kept(tmp_path: Path) -> None:
    ask = record(tmp_path / "lineage", layers=["body.0"], keep=lambda x: x.mean(dim=1), size=12)
    mean = Net().body[0](torch.stack([Numbers()[n][0] for n in range(12)])).mean(dim=1).detach()
    found = ask("SELECT digest FROM activations WHERE port = 'output.0' ORDER BY index")
    assert [digest for (digest,) in found] == [values.digest(value) for value in mean]


def test_a_function_of_the_whole_batch(tmp_path: Path) -> None:
    """What it returns is stored once, in a row that belongs to no sample."""
    ask = record(tmp_path / "lineage", layers=["body.0"], keep=lambda x: x.mean(), size=12)
    query = "SELECT index IS NULL, count(*), count(digest), any_value(digest) FROM activations WHERE port = 'output.0' GROUP BY ALL ORDER BY ALL"
    mean = Net().body[0](torch.stack([Numbers()[n][0] for n in range(12)])).mean().detach()
    assert ask(query) == [(False, 12, 0, None), (True, 1, 1, values.digest(mean))]


def test_per_batch_every_and_indices(tmp_path: Path) -> None:
    ask = record(tmp_path / "a", layers=["head"], per_sample=False, every=2)
    assert ask("SELECT step, index, shape FROM activations WHERE port = 'output.0' ORDER BY step") == [
        (0, None, [4, 3]),
        (2, None, [4, 3]),
    ]
    ask = record(tmp_path / "b", layers=["head"], indices=[2, 9], train=True, backward=True)
    assert ask(
        "SELECT direction, list(index ORDER BY index) FROM activations WHERE port = 'output.0' GROUP BY ALL ORDER BY ALL"
    ) == [
        ("backward", [2, 9]),
        ("forward", [2, 9]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["loss > 1.0", lambda row: row["loss"] > 1.0], ids=["sql", "function"])
def test_when(tmp_path: Path, when: Any) -> None:
    ask = record(tmp_path / "lineage", layers=["head"], when=when, train=True, backward=True)
    chosen = [n for (n,) in ask("SELECT index FROM predictions WHERE loss > 1.0 ORDER BY index")]
    assert 0 < len(chosen) < 12
    for direction in ("forward", "backward"):
        found = ask(
            f"SELECT index FROM activations WHERE direction = '{direction}' AND port = 'output.0' ORDER BY index"
        )
        assert [n for (n,) in found] == chosen


def test_budget(tmp_path: Path) -> None:
    ask = record(tmp_path / "lineage", layers=["body.0"], keep="full", budget=300)
    kept, size, rows = ask("SELECT count(payload), sum(octet_length(payload)), count(*) FROM activations")[0]
    assert 0 < kept < rows == 24
    assert size <= 300


def test_policies_of_two_models_are_their_own(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        a, b = run.model(Net(), layers=["head"], every=2), run.model(Net(), layers=["body.0"], indices=[1])
        for x, _ in run.loader(DataLoader(Numbers(), batch_size=4)):
            a(x)
            b(x)
    found = Questions(tmp_path / "lineage")(
        "SELECT layer, list(DISTINCT step ORDER BY step), count(DISTINCT index) FROM activations GROUP BY ALL ORDER BY ALL"
    )
    assert found == [("body.0", [0], 1), ("head", [0, 2], 8)]


@pytest.mark.workers
def test_layers_are_recorded_when_only_the_dataset_is_wrapped(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Net(), layers=["head"])
        for x, _ in DataLoader(run.dataset(Numbers()), batch_size=5, shuffle=True):
            model(x)
    found = Questions(tmp_path / "lineage")("SELECT list(DISTINCT index ORDER BY index) FROM activations")
    assert found == [(list(range(12)),)]


def test_a_hook_that_never_fired_is_reported_and_all_are_gone(tmp_path: Path) -> None:
    with pytest.warns(RecordingWarning, match="The hook on layer unused never fired"):
        ask = record(tmp_path / "lineage", layers=["unused", "head"], strict=False)
    assert any("unused" in text for text in ask.warnings)
    with audit.open(ask.path) as store:
        assert store.run().recipe["layers"] == ["unused", "head"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ["haed"]}, "head"),
        ({"layers": [nn.Conv2d]}, "Linear"),
        ({"layers": "head"}, "Give a list"),
        ({"layers": ["head"], "keep": "all"}, "'stats', 'full'"),
        ({"layers": ["head"], "every": 0}, "at least 1"),
        ({"layers": ["head"], "when": "los > 1"}, "not a condition"),
        ({"layers": ["head"], "when": 3}, "SQL condition"),
        ({"layers": [nn.ReLU()]}, "by a ReLU"),
        ({"layers": ["head"], "indices": 5}, "list of sample numbers"),
        ({"layers": ["head"], "indices": ["a.png"]}, "list of sample numbers"),
        ({"layers": ["head"], "budget": "1GB"}, "number of bytes"),
        ({"when": "loss > 1"}, "no layers are chosen"),
    ],
    ids=str,
)
def test_bad_policies(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    net = Net()
    with audit.record(tmp_path / "lineage") as run:
        with pytest.raises(UsageError, match=message):
            run.model(net, **options)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_what_fails_in_a_policy_never_reaches_the_model(tmp_path: Path) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("oops")

    with pytest.warns(RecordingWarning, match="oops"):
        ask = record(tmp_path / "lineage", layers=["head"], keep=broken, strict=False)
    assert ask("SELECT count(*) FROM predictions") == [(12,)]


@settings(max_examples=examples(40))
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.floats(-100, 100, width=32))
)
def test_statistics_are_those_of_numpy(array: Any) -> None:
    for row, expected in zip(describe(torch.from_numpy(array), per_sample=True), array.astype(np.float64), strict=True):
        assert row["mean"] == pytest.approx(expected.mean(), rel=1e-4, abs=1e-3)
        assert row["std"] == pytest.approx(expected.std(), rel=1e-3, abs=1e-3)
        assert (row["min"], row["max"]) == (expected.min(), expected.max())
        assert row["zero_fraction"] == pytest.approx((expected == 0).mean())
        for name, share in (("p01", 1), ("p25", 25), ("p50", 50), ("p75", 75), ("p99", 99)):
            assert row[name] == pytest.approx(np.percentile(expected, share), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_are_counted(odd: float) -> None:
    value = torch.ones(2, 5)
    value[1, 2] = odd
    rows = describe(value, per_sample=True)
    assert [row["nonfinite"] for row in rows] == [0, 1]
    assert describe(torch.empty(3, 0), per_sample=True)[2]["shape"] == [0]
