"""Models that return several outputs: the exact values come back, for the right samples, and only where that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_material import Questions, Vectors
from torch import nn
from torch.utils.data import DataLoader

import audit
from audit.errors import NotFound
from audit.values import digest

COUNT = len(Vectors())


class Form(nn.Module):
    """Returns what a function makes of its input and its weights."""

    def __init__(self, form: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.form = form
        self.table = nn.Parameter(torch.arange(5.0 * 4).reshape(5, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(x, self.table)


def record(
    path: Path, form: Callable[..., Any], *, size: int = 4, order: Any = None, logits: Any = None, **given: Any
) -> Questions:
    with audit.record(path / "lineage", **given) as run:
        model = run.model(Form(form), logits=logits)
        for x, _ in run.loader(DataLoader(Vectors(), batch_size=size, sampler=order)):
            model(x)
    return Questions(path / "lineage")


def several(x: torch.Tensor, table: torch.Tensor) -> Any:
    return {
        "logits": x[:, :3],
        "half": (x * 2).to(torch.float16).T.contiguous().T,  # rows that do not lie side by side
        "deep": [x[:, None, :, None] * torch.tensor([1.0, float("nan")]), x.long()],
        "mean": x.mean(0),
        "loss": x.sum(),
        "table": table,
    }


ORDER = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]


def test_values_come_back_exactly(tmp_path: Path) -> None:
    ask = record(tmp_path, several, order=ORDER, capture="full", strict=True)
    items = Vectors()
    table = torch.arange(20.0).reshape(5, 4)
    with audit.open(tmp_path / "lineage") as store:
        for place, index in enumerate(ORDER):
            trace = store.trace(index=index)
            own = several(items[index][0][None], table)
            assert torch.equal(trace.output("logits"), own["logits"][0])
            assert torch.equal(trace.output("half"), own["half"][0])
            assert torch.equal(trace.output("deep.0").nan_to_num(7), own["deep"][0][0].nan_to_num(7))
            assert torch.equal(trace.output("deep.1"), own["deep"][1][0])
            batch = torch.stack([items[n][0] for n in ORDER[place // 4 * 4 : place // 4 * 4 + 4]])
            assert torch.equal(trace.output("mean"), batch.mean(0))
            assert torch.equal(trace.output("loss"), batch.sum())
            assert torch.equal(trace.output("table"), table)
            for row in trace.outputs:
                assert row["digest"] == digest(trace.output(row["port"]).contiguous())
            assert "data" not in trace.as_json()["outputs"][0]
        with pytest.raises(NotFound, match="has no output other"):
            store.trace(index=0).output("other")
        files = {path.name for path in store.trace(index=3).export(tmp_path / "export")}
        assert {"output-Form-1-deep.0.npy", "output-Form-1-mean.npy"} <= files
        assert np.load(tmp_path / "export" / "output-Form-1-loss.npy").shape == ()
    assert ask("SELECT port, count(index), count(*) FROM outputs GROUP BY port ORDER BY port") == [
        *((port, COUNT, COUNT) for port in ("deep.0", "deep.1", "half", "logits")),
        *((port, 0, 3) for port in ("loss", "mean", "table")),
    ]


@pytest.mark.parametrize("level", ["digest", "preview"])
def test_lower_levels_keep_less(tmp_path: Path, level: str) -> None:
    ask = record(tmp_path, several, capture=level, strict=True)
    assert ask("SELECT DISTINCT form, data IS NULL FROM outputs WHERE port = 'logits'") == [
        (None, True) if level == "digest" else ("preview", False)
    ]
    with audit.open(tmp_path / "lineage") as store, pytest.raises(NotFound, match="was not stored"):
        store.trace(index=1).output("logits")


def test_only_chosen_visits_keep_their_values(tmp_path: Path) -> None:
    ask = record(tmp_path, several, capture="full", capture_where="index = 5", strict=True)
    found = ask("SELECT DISTINCT index, number, form FROM outputs WHERE data IS NOT NULL AND port IN ('half', 'mean')")
    assert sorted(found, key=str) == [(5, 1, "full"), (None, 1, "full")]
    assert ask("SELECT count(*) FROM outputs WHERE form IS NOT NULL AND data IS NULL") == [(0,)]


def test_a_batch_that_the_loop_comes_back_to_keeps_no_more_values(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", capture="full", capture_where="index = 5", strict=True) as run:
        model = run.model(Form(several))
        kept = [x for x, _ in run.loader(DataLoader(Vectors(), batch_size=4)) if model(x)]
        model(kept[0])
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*) FROM outputs WHERE number = 3") == [(4 * 4 + 3,)]
    assert ask("SELECT DISTINCT number FROM outputs WHERE data IS NOT NULL") == [(1,)]


def test_large_outputs_do_not_spend_the_budget(tmp_path: Path) -> None:
    def form(x: torch.Tensor, _: torch.Tensor) -> Any:
        return {"logits": x[:, :3], "maps": x[:, :, None].expand(-1, -1, 500)}

    ask = record(tmp_path, form, capture_budget=200_000, strict=True)
    assert ask("SELECT DISTINCT form FROM outputs") == [("preview",)]
    assert ask("SELECT DISTINCT payload FROM stage_outputs") == [("full",)]
    ask = record(tmp_path / "small", several, capture_budget=200_000, strict=True)
    assert ask("SELECT DISTINCT form FROM outputs") == [("full",)]


def test_a_weight_is_not_an_output_of_samples(tmp_path: Path) -> None:
    """A batch of five, beside a table with five rows."""
    ask = record(tmp_path, lambda x, table: (x[:, :3], x[:, None], table, table[:, :2]), size=5, strict=True)
    assert ask("SELECT len(logits), count(*) FROM predictions GROUP BY ALL") == [(3, COUNT)]
    assert ask("SELECT port, count(index), any_value(axis) FROM outputs GROUP BY port ORDER BY port") == [
        *(("0", COUNT, None), ("1", COUNT, None)),
        *(("2", 0, "other"), ("3", 0, "other")),
    ]


def test_lengths_that_agree_by_chance_are_reported(tmp_path: Path) -> None:
    """The table is computed, and as long as the first two batches; the last batch shows that it is not about samples."""
    ask = record(tmp_path, lambda x, table: (x[:, :3], x[:, None], (table * 2)[:4]), logits=0, strict=True)
    assert ask("SELECT port, axis, count(index), count(*) FROM outputs GROUP BY ALL ORDER BY ALL") == [
        *(("0", "samples", 2, 2), ("0", None, 8, 8)),
        *(("1", "samples", 2, 2), ("1", None, 8, 8)),
        *(("2", "other", 0, 1), ("2", None, 8, 8)),
    ]
    assert ask("SELECT port, count(*) FROM sample_outputs GROUP BY port ORDER BY port") == [("0", COUNT), ("1", COUNT)]
    (said,) = ask.warnings
    assert "in earlier calls, the output 2 had one entry for each sample. Now its shape is (4, 4) for 2 samples" in said
    with audit.open(tmp_path / "lineage") as store:
        assert [row["port"] for row in store.trace(index=0).outputs] == ["0", "1"]


def test_a_call_that_is_not_recorded_shows_the_lengths_too(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(Form(lambda x, table: (x[:, :3], x[:, None], (table * 2)[:4])), logits=0)
        loader = run.loader(DataLoader(Vectors(), batch_size=4))
        model(torch.zeros_like(Vectors()[0][0])[None])
        for x, _ in loader:
            model(x)
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT port, axis, count(index) FROM outputs GROUP BY ALL ORDER BY ALL") == [
        ("0", "samples", COUNT),
        ("1", "samples", COUNT),
        ("2", "other", 0),
    ]


def test_a_weight_is_never_graded(tmp_path: Path) -> None:
    """It is the only matrix, and has a row for each sample of the batch by chance."""
    with pytest.warns(audit.RecordingWarning, match="no entry can be the logits"):
        ask = record(tmp_path, lambda x, table: (x[:, None], table), size=5)
    assert ask("SELECT count(*) FROM predictions") == [(0,)]
