"""The Lightning callback with the real Trainer: nothing about the training changes, and every prediction has its sample."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import audit
from audit.errors import UsageError

lightning = pytest.importorskip("lightning.pytorch", reason="the extra lightning is not installed")

from audit.integrations.callback_recording import CallbackOptions  # noqa: E402
from audit.integrations.lightning import AuditCallback  # noqa: E402
from audit.recorders.loop.recording import Recording, RecordingWarning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")


class Holding(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Calls what it holds, and has no `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.criterion = nn.CrossEntropyLoss()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.criterion(self.logits(batch[0]), batch[1])  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("loss", self.criterion(self.logits(batch[0]), batch[1]))

    def test_step(self, batch: Any, number: int) -> None:
        self.logits(batch[0])

    def predict_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.logits(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Forward(Holding):
    """The form that Lightning's own examples have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)  # type: ignore[no-any-return]


def trainer(callbacks: list[Any], **options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", max_epochs=2, callbacks=callbacks, **quiet, **options)


def data(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator))


def loaders(workers: int = 0) -> tuple[DataLoader[Any], DataLoader[Any]]:
    kept = {"num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(data(22, 0), batch_size=8, shuffle=True, **kept), DataLoader(data(12, 1), batch_size=8, **kept)


def state(module: nn.Module) -> list[torch.Tensor]:
    return [*(p.detach().clone() for p in module.parameters()), torch.get_rng_state()]


@pytest.mark.workers
@pytest.mark.parametrize(("kind", "workers"), [(Forward, 0), (Holding, 0), (Forward, 1)])
def test_a_fit_is_the_same_and_recorded(tmp_path: Path, kind: type[Holding], workers: int) -> None:
    found = []
    callback = AuditCallback(tmp_path, name="fit", layers=["net.3" if kind is Forward else "3"])
    for callbacks in ([], [callback]):
        torch.manual_seed(1)
        module = kind()
        trainer(callbacks).fit(module, *loaders(workers))
        found.append(state(module))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    with audit.open(tmp_path) as store:
        (run,) = store.runs()
        assert (run.status, run.name, run.tags, run.warnings) == ("complete", "fit", {"lightning": "fit"}, [])
        assert [run.run_id] == callback.run_ids
        counted = store.sql(
            """
            SELECT epoch, split, phase, count(*), count(DISTINCT step) FROM samples
            JOIN predictions USING (run_id, epoch, index, visit) JOIN steps USING (run_id, step) GROUP BY ALL ORDER BY ALL
            """
        ).fetchall()
        # Before the first epoch Lightning tries two batches of the validation loader.
        assert counted == [
            (-1, "validate", "eval", 12, 2),
            *[(n, *rest) for n in range(2) for rest in (("train", "train", 22, 3), ("validate", "eval", 12, 2))],
        ]
        aligned(store)
        right = store.sql("SELECT avg(correct::INT) FROM lineage WHERE epoch = 1 AND split = 'validate'").fetchone()
        assert (run.accuracy, run.accuracy_split) == (*(right or ()), "validate")
        assert store.sql("SELECT count(*) > 0 FROM activations").fetchone() == (True,)


def test_the_learning_rate_of_a_closure(tmp_path: Path) -> None:
    """Lightning calls the model within `optimizer.step`."""
    trainer([AuditCallback(tmp_path)]).fit(Forward(), loaders()[0])
    with audit.open(tmp_path) as store:
        rows = store.sql("SELECT learning_rate, gradient_norm FROM steps").fetchall()
    assert [rate for rate, _ in rows] == pytest.approx([0.1] * 6)
    assert all(norm > 0 for _, norm in rows)


def aligned(store: Any) -> None:
    """Every sample has its prediction, and the model saw what the last stage of that sample gave."""
    assert store.sql("FROM samples ANTI JOIN predictions USING (run_id, epoch, index, visit)").fetchall() == []
    wrong = store.sql(
        """
        SELECT p.index FROM predictions p JOIN stage_outputs o USING (run_id, epoch, index, visit)
        WHERE o.stage = 0 AND p.input_digest IS DISTINCT FROM o.digest
        """
    ).fetchall()
    assert wrong == []


def test_a_sampler_with_replacement(tmp_path: Path) -> None:
    """Lightning keeps the sampler; a sample drawn twice is two visits."""
    torch.manual_seed(0)
    sampler = WeightedRandomSampler([1.0] * 22, 22, generator=torch.Generator().manual_seed(5))
    trainer([AuditCallback(tmp_path)]).fit(Forward(), DataLoader(data(22, 0), batch_size=8, sampler=sampler))
    with audit.open(tmp_path) as store:
        assert store.run().samples == 44
        assert store.sql("SELECT max(visit) > 0 FROM samples").fetchone() == (True,)
        aligned(store)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["validate", "test", "predict"])
def test_every_entry_is_a_run(tmp_path: Path, entry: str) -> None:
    outputs = []
    for callbacks in ([], [AuditCallback(tmp_path)]):
        torch.manual_seed(1)
        outputs.append(getattr(trainer(callbacks), entry)(Forward(), DataLoader(data(12, 1), batch_size=8)))
    if entry == "predict":
        assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
    with audit.open(tmp_path) as store:
        assert (store.run().samples, store.run().tags) == (12, {"lightning": entry})
        assert store.sql("SELECT DISTINCT split FROM samples").fetchall() == [(entry,)]
        aligned(store)


class Fails(Forward):
    error: type[BaseException] = ValueError

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if number == 1:
            raise self.error("no more")
        return super().training_step(batch, number)


class Interrupted(Fails):
    error = KeyboardInterrupt


@pytest.mark.parametrize(("kind", "status"), [(Fails, "failed"), (Interrupted, "interrupted")])
def test_a_loop_that_ends_early_ends_the_run(tmp_path: Path, kind: type[Fails], status: str) -> None:
    used = trainer([AuditCallback(tmp_path)], num_sanity_val_steps=0)
    with pytest.raises((ValueError, SystemExit, KeyboardInterrupt)):
        used.fit(kind(), loaders()[0])
    assert "process_dataloader" not in used.strategy.__dict__
    with audit.open(tmp_path) as store:
        (run,) = store.runs()
        assert run.status == status
        assert run.samples >= 8
        assert any("no more" in warning for warning in run.warnings)


def test_which_module_gives_the_logits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no module 'nett'"):
        trainer([AuditCallback(tmp_path, model="nett")]).fit(Holding(), loaders()[0])
    trainer([AuditCallback(tmp_path, model="net")]).fit(Holding(), loaders()[0])
    trainer([AuditCallback(tmp_path, model=lambda module: module.net)]).fit(Holding(), loaders()[0])
    with audit.open(tmp_path) as store:
        assert [(run.status, run.graded) for run in store.runs()] == [("complete", 44)] * 2


def test_a_run_without_predictions_says_so(tmp_path: Path) -> None:
    with pytest.warns(RecordingWarning, match="never called"):
        trainer([AuditCallback(tmp_path, model="criterion")], limit_train_batches=0).test(
            Holding(), DataLoader(data(8, 0), batch_size=8)
        )


class Batches:
    """Something to draw from that is not a DataLoader."""

    def __iter__(self) -> Iterator[Any]:
        yield tuple(data(8, 0)[:])


def test_batches_that_are_no_loader(tmp_path: Path) -> None:
    batches = Batches()
    with pytest.warns(RecordingWarning, match="come from a Batches"):
        trainer([AuditCallback(tmp_path)]).fit(Forward(), batches)
    with pytest.raises(UsageError, match="come from a Batches"):
        trainer([AuditCallback(tmp_path, strict=True)]).fit(Forward(), batches)


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no recording option 'captur'.*capture"):
        AuditCallback(tmp_path, captur="full")  # type: ignore[call-arg]


def test_the_options_are_those_of_the_functions_that_take_them() -> None:
    taken = {
        name
        for function in (audit.record, Recording.loader, Recording.model)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert {*CallbackOptions.__annotations__} == taken - {"store", "split"}


@pytest.mark.workers
def test_persistent_workers_of_two_runs(tmp_path: Path) -> None:
    """Lightning ends a loader's workers with each run, persistent or not; the next run draws for new ones."""
    found = []
    for callbacks in ([], [AuditCallback(tmp_path)]):
        torch.manual_seed(1)
        module, loader, used = Forward(), loaders(workers=1)[1], trainer(callbacks)
        for _ in range(2):
            used.validate(module, loader, verbose=False)
        found.append(torch.get_rng_state())
    assert torch.equal(*found)
    with audit.open(tmp_path) as store:
        assert [run.samples for run in store.runs()] == [12, 12]
        aligned(store)


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    used, module = trainer([AuditCallback(tmp_path)]), Forward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordingWarning)
        for _ in range(2):
            used.fit(module, *loaders())
            used.fit_loop.epoch_progress.reset()
    assert not module._forward_hooks
    assert "process_dataloader" not in used.strategy.__dict__
    with audit.open(tmp_path) as store:
        assert [run.status for run in store.runs()] == ["complete", "complete"]
