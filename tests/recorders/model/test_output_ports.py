"""Models that return several outputs: each is stored under its port, whether or not one of them can be graded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from recording_material import Questions, Vectors
from torch import nn
from torch.utils.data import DataLoader

import audit
from audit.errors import RecordingError
from audit.values import digest

COUNT = len(Vectors())
PORTS = "SELECT index, port, shape, digest FROM outputs ORDER BY index, port"


class Form(nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, form: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(x)


class Named(NamedTuple):
    left: torch.Tensor
    right: tuple[torch.Tensor, ...]


def record(path: Path, form: Any, *, size: int = 4, strict: bool = False, **given: Any) -> Questions:
    with audit.record(path / "lineage", strict=strict) as run:
        model = run.model(form if isinstance(form, nn.Module) else Form(form), **given)
        for x, _ in run.loader(DataLoader(Vectors(), batch_size=size)):
            model(x)
    return Questions(path / "lineage")


FORMS: dict[str, tuple[Callable[[torch.Tensor], Any], dict[str, Callable[[torch.Tensor], torch.Tensor]]]] = {
    "tuple": (lambda x: (x, x * 2), {"0": lambda x: x, "1": lambda x: x * 2}),
    "nested": (
        lambda x: ((x, x * 2), [x[:, :3]]),
        {"0.0": lambda x: x, "0.1": lambda x: x * 2, "1.0": lambda x: x[:, :3]},
    ),
    "named": (
        lambda x: Named(x[:, None], (x + 1, x + 2)),
        {"left": lambda x: x[:, None], "right.0": lambda x: x + 1, "right.1": lambda x: x + 2},
    ),
    "dict of dicts": (
        lambda x: {"a": {"b": x, "c": [x * 3]}, "d": x[:, :2], "e": x},
        {"a.b": lambda x: x, "a.c.0": lambda x: x * 3, "d": lambda x: x[:, :2], "e": lambda x: x},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_outputs_of_which_none_is_picked_are_stored_and_not_graded(tmp_path: Path, name: str) -> None:
    form, wanted = FORMS[name]
    with pytest.warns(audit.RecordingWarning, match="entry.* can be the logits"):
        ask = record(tmp_path, form)
    items = Vectors()
    rows = ask(PORTS)
    assert [row[:2] for row in rows] == [(index, port) for index in range(COUNT) for port in sorted(wanted)]
    for index, port, shape, found in rows:
        own = wanted[port](items[index][0][None])[0]
        assert shape == list(own.shape)
        assert found == digest(own.contiguous())
    assert ask("SELECT count(*) FROM predictions") == [(0,)]
    assert ask("SELECT status, accuracy, output FROM runs") == [("complete", None, None)]
    assert ask("SELECT count(*) FROM calls WHERE samples > 0") == [(3,)]


def test_one_output_that_cannot_be_graded_is_stored(tmp_path: Path) -> None:
    """As pictures of a network that enlarges or restores them. The last batch has another length: one sentence for all."""
    with pytest.warns(audit.RecordingWarning, match="which axis is the class axis"):
        ask = record(tmp_path, lambda x: torch.stack([x, x * 2], 1)[..., None], size=4)
    rows = ask(PORTS)
    assert [row[:3] for row in rows] == [(index, "output", [2, 6, 1]) for index in range(COUNT)]
    given = [Vectors()[index][0] for index in range(COUNT)]
    own = [torch.stack([x, x * 2])[..., None].contiguous() for x in given]
    assert [row[3] for row in rows] == [digest(value) for value in own]
    assert ask("SELECT count(*) FROM predictions") == [(0,)]
    (said,) = ask.warnings
    assert said.startswith("No prediction was recorded: The model returned a (N, 2, 6, 1) tensor of float32: ")


def test_a_single_output_that_is_graded_is_stored_once(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda x: x[:, :3], strict=True)
    assert ask("SELECT count(*) FROM predictions") == [(COUNT,)]
    assert ask("SELECT count(*) FROM outputs") == [(0,)]


def test_strict_raises(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"^Recording failed: The model returned"):
        record(tmp_path, FORMS["tuple"][0], strict=True)


def test_a_graded_output_beside_hidden_states(tmp_path: Path) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs", reason="transformers is not installed")

    def form(x: torch.Tensor) -> Any:
        states = (x[:, None].repeat(1, 5, 1), x[:, None].repeat(1, 5, 1) * 2)
        return outputs.SequenceClassifierOutput(loss=x.mean(), logits=x[:, :3], hidden_states=states)

    ask = record(tmp_path, form, strict=True)
    assert ask("SELECT port, count(*), any_value(call) FROM outputs GROUP BY port ORDER BY port") == [
        ("hidden_states.0", COUNT, 0),
        ("hidden_states.1", COUNT, 0),
        ("logits", COUNT, 0),
        ("loss", 3, None),
    ]
    assert ask("SELECT count(*), count(correct) FROM predictions") == [(COUNT, COUNT)]
    assert ask.warnings == []


def test_a_later_model_is_graded_though_the_first_cannot_be(tmp_path: Path) -> None:
    def loop() -> None:
        with audit.record(tmp_path / "lineage") as run:
            both = run.model(Form(lambda x: (x, x * 2)), name="both")
            plain = run.model(Form(lambda x: x[:, :3]), name="plain")
            for x, _ in run.loader(DataLoader(Vectors(), batch_size=4)):
                both(x)
                plain(x)

    with pytest.warns(audit.RecordingWarning, match="more than one entry"):
        loop()
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT model, call, count(*) FROM predictions GROUP BY ALL") == [("plain", 0, COUNT)]
    assert ask("SELECT DISTINCT model, call FROM outputs") == [("both", 1)]


class Recurrent(nn.Module):
    """Returns logits beside the states of two layers, which are (layers, samples, numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.LSTM(1, 3, num_layers=2, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        out, states = self.inner(x[:, :, None])
        return self.last(out[:, -1]), out, states


@pytest.mark.parametrize("size", [2, 4])
def test_states_of_layers_are_not_taken_for_samples(tmp_path: Path, size: int) -> None:
    """With batches of two, or two in the last batch, the axis of the layers is as long as that of the samples."""
    torch.manual_seed(1)  # logits on both sides of 0: others could be probabilities, which is a warning
    model = Recurrent()
    ask = record(tmp_path, model, size=size, strict=True, logits=0)
    found = ask("SELECT port, count(index), count(*), any_value(shape) FROM outputs GROUP BY port ORDER BY port")
    calls = -(-COUNT // size)
    assert [row[:3] for row in found] == [
        ("0", COUNT, COUNT),
        ("1", COUNT, COUNT),
        ("2.0", 0, calls),
        ("2.1", 0, calls),
    ]
    assert ask("SELECT DISTINCT shape FROM outputs WHERE number = 0 AND index IS NULL") == [([2, size, 3],)]
    assert ask.warnings == []


def test_an_entry_for_each_sample_is_not_an_output(tmp_path: Path) -> None:
    """Each dict is about one sample; that its tensors have as many rows as there are samples is chance."""
    with pytest.warns(audit.RecordingWarning, match="returned a list"):
        ask = record(tmp_path, lambda x: [{"points": torch.zeros(len(x), 2), "more": torch.zeros(len(x))} for _ in x])
    assert ask(PORTS) == []
    with pytest.warns(audit.RecordingWarning, match="given 4 pictures"):
        ask = record(tmp_path / "boxes", lambda x: [_boxes(len(x))])
    assert ask(PORTS) == []


def _boxes(count: int) -> dict[str, torch.Tensor]:
    return {"boxes": torch.ones(count, 4), "labels": torch.ones(count).long(), "scores": torch.ones(count)}


def test_an_output_that_changes_its_form_is_stored_under_its_ports(tmp_path: Path) -> None:
    """The second batch has predictions of another width: none is kept, and what was returned is."""
    calls = iter(range(9))

    def form(x: torch.Tensor) -> Any:
        width = 3 if next(calls) != 1 else 4
        return {"logits": x[:, :width], "more": x}

    with pytest.warns(audit.RecordingWarning, match="gave 3 numbers for each sample, and now 4"):
        ask = record(tmp_path, form)
    assert ask("SELECT index FROM predictions ORDER BY index") == [(n,) for n in (0, 1, 2, 3, 8, 9)]
    assert ask("SELECT count(*), count(DISTINCT index) FROM outputs") == [(2 * COUNT, COUNT)]


def test_only_the_first_head_counts(tmp_path: Path) -> None:
    """Where the first head is missing in one batch, the second does not take its place in the accuracy."""
    calls = iter(range(9))

    def form(x: torch.Tensor) -> Any:
        heads = {"kind": x[:, :3], "size": x[:, :2]}
        return heads if next(calls) != 1 else {"size": heads["size"]}

    with pytest.warns(audit.RecordingWarning, match="without 'kind'"):
        ask = record(tmp_path, form, output={"kind": "logits", "size": "logits"}, target={"kind": 1, "size": 1})
    found = ask("SELECT head, call, count(*) FROM predictions GROUP BY ALL ORDER BY ALL")
    assert found == [("kind", 0, 6), ("size", 1, COUNT)]
