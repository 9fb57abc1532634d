"""Loaders whose class iterates by a code of its own give what they always gave, and are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import WIDTH, Numbers, Questions, linear
from torch.utils.data import DataLoader

import audit
from audit.errors import RecordingError
from audit.recorders.loop.recording import RecordingWarning


class Moves(DataLoader):  # type: ignore[type-arg]
    """Begins to fetch when its first batch is asked for, and changes what it fetched."""

    def __iter__(self) -> Any:
        for x, y in super().__iter__():
            yield x.clone(), y + 1


class Maps(DataLoader):  # type: ignore[type-arg]
    """Begins to fetch at once."""

    def __iter__(self) -> Any:
        return ({"x": x, "y": y} for x, y in super().__iter__())


class Ahead(DataLoader):  # type: ignore[type-arg]
    """Begins to fetch when it is made, as timm's loader of many epochs does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches = super().__iter__()

    def __iter__(self) -> Any:
        yield from self.batches


def prepared(dataset: Any, **options: Any) -> Any:
    return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(DataLoader(dataset, **options))


@pytest.mark.workers
@pytest.mark.parametrize(
    ("kind", "options"),
    [(Moves, {}), (Maps, {}), (prepared, {}), (Moves, {"num_workers": 1, "persistent_workers": True})],
)
def test_a_loader_with_its_own_iteration(tmp_path: Path, kind: Any, options: dict[str, Any]) -> None:
    def loop(loader: Any, model: Any) -> list[Any]:
        given = []
        for _ in range(2):
            for batch in loader:
                given.append(batch)
                model(batch["x"] if isinstance(batch, dict) else batch[0])
        return [*given, torch.get_rng_state()]

    options = {"batch_size": 5, "shuffle": True, **options}
    torch.manual_seed(1)
    plain = loop(kind(Numbers(), **options), torch.nn.Linear(WIDTH, 3))
    torch.manual_seed(1)
    loader = kind(Numbers(), **options)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded = run.loader(loader)
        assert isinstance(recorded, DataLoader)
        seen = loop(recorded, run.model(torch.nn.Linear(WIDTH, 3)))
    torch.testing.assert_close(seen, plain, rtol=0, atol=0)
    assert "_get_iterator" not in vars(loader)
    assert type(loader.dataset) is Numbers
    ask = Questions(tmp_path / "lineage")
    assert ask.warnings == []
    assert ask(
        "SELECT epoch, count(DISTINCT index), count(*), bool_and(label = index % 3) FROM predictions GROUP BY 1 ORDER BY 1"
    ) == [
        (0, 12, 12, True),
        (1, 12, 12, True),
    ]
    # Each prediction is of the sample whose last stage the model was given.
    assert ask(
        "SELECT count(*) FROM predictions p JOIN stage_outputs s USING (run_id, epoch, index, visit) "
        "WHERE p.input_digest = s.digest"
    ) == [(24,)]


@pytest.mark.workers
def test_a_loader_that_fetches_before_it_is_recorded_is_reported(tmp_path: Path) -> None:
    with audit.record(tmp_path / "a") as run, pytest.warns(RecordingWarning, match=r"this Ahead .* run\.dataset"):
        assert len(list(run.loader(Ahead(Numbers(), batch_size=4)))) == 3
    with pytest.raises(RecordingError, match="this Ahead"), audit.record(tmp_path / "b", strict=True) as run:
        list(run.loader(Ahead(Numbers(), batch_size=4)))
    with audit.record(tmp_path / "c", strict=True) as run:
        run.model(model := linear())
        for x, _ in Ahead(run.dataset(Numbers()), batch_size=4):
            model(x)
    assert Questions(tmp_path / "c")("SELECT count(*) FROM predictions") == [(12,)]
