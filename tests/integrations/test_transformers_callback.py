"""The Transformers callback with the real Trainer and accelerate: nothing changes, and every prediction has its sample."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import audit
from audit.errors import UsageError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
pytest.importorskip("accelerate", reason="the extra transformers is not installed")

from audit.integrations.transformers import AuditCallback  # noqa: E402
from audit.recorders.loop.recording import RecordingWarning  # noqa: E402


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Six numbers each; the first decides the class."""

    def __init__(self, count: int, seed: int) -> None:
        self.numbers = torch.randint(1, 50, (count, 6), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.numbers[index]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": (row[0] > 25).long()}


def made(folder: Path, callbacks: list[Any], *, train: int = 44, **options: Any) -> Any:
    transformers.set_seed(5)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    model = transformers.BertForSequenceClassification(config)
    return transformers.Trainer(
        model, arguments, train_dataset=Sentences(train, 0), eval_dataset=Sentences(20, 1), callbacks=callbacks
    )


def everything(trainer: Any) -> list[torch.Tensor]:
    """All that a training comes to: weights, the state of the generator, an evaluation, predictions."""
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    logits = trainer.predict(Sentences(10, 2)).predictions
    weights = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    return [*weights, torch.get_rng_state(), torch.tensor(loss), torch.tensor(logits)]


CASES = {
    "plain": {"eval_strategy": "epoch"},
    "accumulated": {"eval_strategy": "epoch", "gradient_accumulation_steps": 4},
    "workers": {"eval_strategy": "steps", "eval_steps": 4, "dataloader_num_workers": 1},
}


@pytest.mark.workers
@pytest.mark.parametrize("case", CASES)
def test_a_training_is_the_same_and_recorded(tmp_path: Path, case: str) -> None:
    callback = AuditCallback(tmp_path / "lineage", name=case)
    plain = everything(made(tmp_path, [], **CASES[case]))
    trainer = made(tmp_path, [callback], **CASES[case])
    recorded = everything(trainer)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert not trainer.model._forward_hooks

    with audit.open(tmp_path / "lineage") as store:
        assert [run.run_id for run in store.runs()] == callback.run_ids
        assert [run.tags["transformers"] for run in store.runs()] == ["train", "evaluate", "predict"]
        assert [run.status for run in store.runs()] == ["complete"] * 3
    # The dataset makes its items in one expression, in which no stage can be seen: that is said, and nothing else.
    for run in store.runs():
        [warning] = run.warnings
        assert warning.startswith("audit did not see every change of the values: Sentences: no stage was seen")
        assert "torch.ones_like" in warning
        counted = store.sql(
            """
            SELECT epoch, split, phase, count(*) FROM samples JOIN predictions USING (run_id, epoch, index, visit)
            JOIN steps USING (run_id, step) GROUP BY ALL ORDER BY ALL
            """,
            run=callback.run_ids[0],
        ).fetchall()
        times = {"plain": [20, 20], "accumulated": [20, 20], "workers": [20, 40]}[case]
        assert counted == [row for n in range(2) for row in ((n, "eval", "eval", times[n]), (n, "train", "train", 44))]
        aligned(store, recorded[-1])
        rates = store.sql("SELECT learning_rate FROM steps WHERE phase = 'train' ORDER BY step").fetchall()
        assert any(rate for (rate,) in rates)


@pytest.mark.workers
def test_persistent_workers(tmp_path: Path) -> None:
    """The Trainer keeps the evaluation loader: within a training it is recorded, after it the workers go on unrecorded."""
    options = {"eval_strategy": "epoch", "dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    plain = everything(made(tmp_path, [], **options))
    with pytest.warns(RecordingWarning, match="keeps its workers"):
        recorded = everything(made(tmp_path, [AuditCallback(tmp_path / "lineage")], **options))
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    with audit.open(tmp_path / "lineage") as store:
        assert [run.samples for run in store.runs()] == [2 * (44 + 20), 0, 10]


def aligned(store: Any, predicted: torch.Tensor) -> None:
    """Labels follow from the numbers, and the recorded logits are those that the Trainer gave back, sample by sample."""
    assert store.sql("FROM samples ANTI JOIN predictions USING (run_id, epoch, index, visit)").fetchall() == []
    for split, count, seed in (("train", 44, 0), ("eval", 20, 1), ("test", 10, 2)):
        items: Any = Sentences(count, seed)
        expected = {n: int(item["labels"]) for n, item in enumerate(items)}
        rows = store.sql(
            "SELECT DISTINCT index, p.label FROM predictions p JOIN samples USING (run_id, epoch, index, visit) WHERE split = ?",
            parameters=[split],
        ).fetchall()
        assert dict(rows) == expected
    logits = store.sql("SELECT logits FROM lineage WHERE split = 'test' ORDER BY index").fetchall()
    assert torch.equal(torch.tensor([row for (row,) in logits]), predicted)


@pytest.mark.slow
def test_added_to_a_trainer_that_was_made_before(tmp_path: Path) -> None:
    callback = AuditCallback(tmp_path / "lineage")
    trainer = made(tmp_path, [], eval_strategy="epoch")
    trainer.add_callback(callback)
    trainer.train()
    with audit.open(tmp_path / "lineage") as store:
        assert store.run().samples == 2 * (44 + 20)
        assert store.run().graded == 2 * (44 + 20)


def test_attached_for_an_evaluation_alone(tmp_path: Path) -> None:
    trainer = made(tmp_path, [])
    callback = AuditCallback(tmp_path / "lineage").attach(trainer)
    trainer.add_callback(callback)
    trainer.evaluate()
    with audit.open(tmp_path / "lineage") as store:
        assert (store.run().samples, store.run().status) == (20, "complete")
    with pytest.raises(UsageError, match="another Trainer"):
        callback.attach(made(tmp_path, []))


@pytest.mark.slow
def test_a_training_that_fails_does_not_stay_open(tmp_path: Path) -> None:
    class Fails(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                raise ValueError("no more")

    callback = AuditCallback(tmp_path / "lineage")
    trainer = made(tmp_path, [Fails(), callback])
    with pytest.raises(ValueError, match="no more"):
        trainer.train()
    trainer.remove_callback(Fails)
    trainer.train()
    with audit.open(tmp_path / "lineage") as store:
        assert [run.status for run in store.runs()] == ["interrupted", "complete"]
        assert store.runs()[0].graded >= 8


@pytest.mark.slow
def test_more_batches_fetched_at_once_than_wait(tmp_path: Path) -> None:
    """The Trainer fetches all batches of an accumulated step before the first one reaches the model."""
    trainer = made(tmp_path, [AuditCallback(tmp_path / "lineage")], train=160, gradient_accumulation_steps=16)
    trainer.train()
    with audit.open(tmp_path / "lineage") as store:
        assert store.run().graded == 320
        [warning] = store.run().warnings
        assert "no stage was seen" in warning
