"""What a model's numbers mean: declared or evident, and graded accordingly; otherwise the user is reported."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import WIDTH, Questions
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit
from audit.models.meaning import find_meaning
from audit.recorders.problems import RecordingWarning


class Items(Dataset):  # type: ignore[type-arg]
    def __init__(self, targets: torch.Tensor) -> None:
        self.targets = targets
        self.inputs = torch.randn(len(targets), WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        target = self.targets[index]
        return self.inputs[index], int(target) if not target.dim() and not target.is_floating_point() else target


CLASSES = torch.arange(12) % 3


def record(path: Path, model: nn.Module, targets: torch.Tensor = CLASSES, **options: Any) -> Questions:
    with audit.record(path / "lineage", strict=True) as run:
        run.model(model, **options)
        for x, _ in run.loader(DataLoader(Items(targets), batch_size=4)):
            model(x)
    return Questions(path / "lineage")


def loop(path: Path, model: nn.Module, size: int = 4) -> None:
    with audit.record(path / "lineage") as run:
        run.model(model)
        for x, _ in run.loader(DataLoader(Items(CLASSES % 2), batch_size=size)):
            model(x)


def ends_in(last: nn.Module | None, outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, outputs), *([last] if last is not None else []))


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("kind", "last"),
    [("logits", None), ("probabilities", nn.Softmax(1)), ("log_probabilities", nn.LogSoftmax(1))],
)
def test_the_same_model_is_graded_the_same_whatever_it_ends_in(
    tmp_path: Path, kind: str, last: nn.Module | None, declared: bool
) -> None:
    plain = record(tmp_path / "a", ends_in(None))
    ask = record(tmp_path / "b", ends_in(last), **({"output": kind} if declared else {}))
    query = "SELECT index, predicted, correct, confidence, loss, probabilities FROM predictions ORDER BY index"
    for a, b in zip(plain(query), ask(query), strict=True):
        assert a[:3] == b[:3]
        assert b[3:5] == pytest.approx(a[3:5], rel=1e-4)
        assert b[5] == pytest.approx(a[5], rel=1e-4)
    assert ask("SELECT output, task FROM runs") == [(kind, "classification")]
    (evidence,) = ask("SELECT output_evidence FROM runs")[0]
    assert (evidence == "It was declared.") == declared
    with audit.open(tmp_path / "b" / "lineage") as store:
        assert store.check().outcome("probabilities").status == "pass"


def test_a_sigmoid_of_one_output(tmp_path: Path) -> None:
    binary = torch.arange(12) % 2
    plain = record(tmp_path / "a", ends_in(None, 1), binary)
    ask = record(tmp_path / "b", ends_in(nn.Sigmoid(), 1), binary)
    query = "SELECT index, predicted, correct, loss FROM predictions ORDER BY index"
    for a, b in zip(plain(query), ask(query), strict=True):
        assert a[:3] == b[:3]
        assert b[3] == pytest.approx(a[3], rel=1e-4)
    assert ask("SELECT output FROM runs") == [("sigmoid",)]
    with audit.open(tmp_path / "b" / "lineage") as store:
        assert store.check().outcome("alignment").status == "pass"


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ends_in(None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sigmoid()


def test_what_is_not_evident_is_reported_with_the_option(tmp_path: Path) -> None:
    with pytest.warns(RecordingWarning, match=r"between 0 and 1.*--output"):
        loop(tmp_path, Squeezed(), 12)
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT output FROM runs") == [("logits",)]
    assert record(tmp_path / "b", Squeezed(), output="sigmoid").warnings == []


def test_several_labels_for_each_sample(tmp_path: Path) -> None:
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]] * 4)
    model = ends_in(None)
    ask = record(tmp_path, model, targets)
    scores = torch.sigmoid(model(Items(targets).inputs)).detach()
    assert ask("SELECT output, task FROM runs") == [("multilabel", "multilabel")]
    rows = ask("SELECT index, class, target, score, correct FROM label_scores ORDER BY index, class")
    assert len(rows) == 36
    for index, number, target, score, correct in rows:
        assert score == pytest.approx(float(scores[index, number]), rel=1e-5)
        assert target == float(targets[index, number])
        assert correct == ((score > 0.5) == (target > 0.5))
    hits = (scores > 0.5) & (targets > 0.5)
    assert ask("SELECT tp FROM per_label ORDER BY class") == [(int(n),) for n in hits.sum(0)]
    exact = ((scores > 0.5) == (targets > 0.5)).all(1)
    assert ask("SELECT correct FROM lineage ORDER BY index") == [(bool(one),) for one in exact]


@pytest.mark.parametrize("width", [1, 2])
def test_regression(tmp_path: Path, width: int) -> None:
    targets = torch.randn(12, width, generator=torch.Generator().manual_seed(3)).squeeze(1)
    model = ends_in(None, width)
    ask = record(tmp_path, model, targets)
    expected = model(Items(targets).inputs).detach()
    assert ask("SELECT output, task, accuracy FROM runs") == [("regression", "regression", None)]
    rows = ask("SELECT index, target, output, residual, loss FROM residuals")
    losses = [row[4] for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert len(rows) == 12
    for index, target, output, residual, loss in rows:
        assert output == pytest.approx(expected[index].tolist(), rel=1e-5)
        assert target == pytest.approx(targets[index].reshape(-1).tolist())
        assert residual == pytest.approx([a - b for a, b in zip(output, target, strict=True)], rel=1e-4, abs=1e-6)
        assert loss == pytest.approx(sum(r * r for r in residual) / width, rel=1e-4)
    assert audit.open(tmp_path / "lineage").trace(index=0).as_json()["prediction"]["output"] is not None


def test_embeddings_and_their_neighbours(tmp_path: Path) -> None:
    model = ends_in(None, 5)
    ask = record(tmp_path, model, output="embedding")
    vectors = nn.functional.normalize(model(Items(CLASSES).inputs).detach(), dim=1)
    nearest = (vectors @ vectors[4]).argsort(descending=True)[1:4].tolist()
    assert [row[0] for row in ask("SELECT index FROM neighbours('latest', 4) LIMIT 3")] == nearest
    assert ask("SELECT count(*) FROM predictions WHERE correct IS NOT NULL OR predicted IS NOT NULL") == [(0,)]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.aux = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"main": self.main(x), "aux": self.aux(x)}


@pytest.mark.parametrize("pick", ["aux", lambda output: output["aux"]])
def test_one_of_several_outputs_is_picked(tmp_path: Path, pick: Any) -> None:
    model = Heads()
    ask = record(tmp_path, model, logits=pick)
    expected = model(Items(CLASSES).inputs)["aux"].detach()
    for index, logits in ask("SELECT index, logits FROM predictions"):
        assert logits == pytest.approx(expected[index].tolist(), rel=1e-5)


def test_no_output_is_recorded_where_none_is_wanted(tmp_path: Path) -> None:
    ask = record(tmp_path, Heads(), logits=False)
    assert ask("SELECT (SELECT count(*) FROM predictions), (SELECT count(*) FROM calls)") == [(0, 3)]
    assert ask.warnings == []


class Odd(nn.Module):
    """Returns something else from its second call on."""

    def __init__(self, later: Any) -> None:
        super().__init__()
        self.inner, self.later, self.calls = nn.Linear(WIDTH, 3), later, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(x) if self.calls == 1 else self.later(self.inner(x))


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (lambda x: x[:, :2], "gave 3 numbers for each sample, and now 2"),
        (lambda x: None, "returned None"),
        (lambda x: (row for row in x), "returned a generator"),
        (lambda x: x[:1], "for a batch of 4"),
    ],
)
def test_an_output_that_changes_its_form(tmp_path: Path, later: Any, said: str) -> None:
    with pytest.warns(RecordingWarning, match=said):
        loop(tmp_path, Odd(later))
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*), max(index) FROM predictions") == [(4, 3)]


def test_a_kind_that_there_is_not(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run, pytest.raises(audit.AuditError, match="output cannot be 'logit'"):
        run.model(ends_in(None), output="logit")


@pytest.mark.parametrize(
    ("form", "ports"),
    [
        (lambda main, aux: {"main": main, "aux": aux}, ["aux", "main"]),
        (lambda main, aux: (main, aux), ["0", "1"]),
    ],
    ids=["dict", "tuple"],
)
def test_every_output_of_a_model_is_recorded_under_its_port(tmp_path: Path, form: Any, ports: list[str]) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.aux = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 5)

        def forward(self, x: torch.Tensor) -> Any:
            return form(self.main(x), self.aux(x))

    torch.manual_seed(0)
    model = TwoHeads()
    asked = record(tmp_path, model, logits=next(port for port in ("main", 0) if str(port) in ports))
    rows = asked("SELECT index, port, shape, mean, digest FROM outputs ORDER BY index, port")
    assert [row[:2] for row in rows] == [(index, port) for index in range(12) for port in ports]
    inputs = Items(CLASSES).inputs
    heads = {"main": model.main, "aux": model.aux, "0": model.main, "1": model.aux}
    for index, port, shape, mean, _ in rows:
        wanted = heads[port](inputs[index]).detach()
        assert shape == list(wanted.shape)
        assert mean == pytest.approx(float(wanted.mean()), abs=1e-5)
    assert asked("SELECT count(*), count(DISTINCT len(logits)), any_value(len(logits)) FROM predictions") == [
        (12, 1, 3)
    ]


def test_a_model_with_one_output_has_no_ports(tmp_path: Path) -> None:
    assert record(tmp_path, ends_in(None))("SELECT count(*) FROM outputs") == [(0,)]


def test_precision_and_recall_at_any_threshold(tmp_path: Path) -> None:
    targets = (torch.rand(12, 3, generator=torch.Generator().manual_seed(3)) > 0.5).float()
    model = ends_in(None)
    asked = record(tmp_path, model, targets, output="multilabel")
    scores = torch.sigmoid(model(Items(targets).inputs)).detach()
    for threshold in (0.2, 0.5, 0.8):
        said = scores > threshold
        expected = [
            (
                int(targets[:, k].sum()),
                int((said[:, k] & (targets[:, k] > 0)).sum()),
                int((said[:, k] & (targets[:, k] == 0)).sum()),
            )
            for k in range(3)
        ]
        assert asked(f"SELECT positives, tp, fp FROM precision_recall('latest', {threshold})") == expected


class Sigmoid(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(super().forward(x))


def test_small_batches_between_0_and_1_are_doubted_together(tmp_path: Path) -> None:
    """Two values of one batch may lie there by chance; those of six batches hardly do."""
    with pytest.warns(RecordingWarning, match="every value lies between 0 and 1"):
        loop(tmp_path, Sigmoid(WIDTH, 1), size=2)


class Between(nn.Linear):
    """A model whose values lie between 0 and 1, as those of an untrained one may by chance; later they may be others."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__(WIDTH, 3)
        self.shift, self.calls = shift, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * 0.01 + 0.5 + self.shift * (self.calls > 2)


def trained(path: Path, model: nn.Module, loss: Any) -> tuple[list[str], list[str]]:
    """Return the warnings while the loop ran, and those of the whole run."""
    with warnings.catch_warnings(record=True) as said, audit.record(path / "lineage", capture="digest") as run:
        warnings.simplefilter("always", RecordingWarning)
        run.model(model)
        for x, y in run.loader(DataLoader(Items(CLASSES), batch_size=4)):
            loss(model(x), y)
        warned = [str(one.message) for one in said if one.category is RecordingWarning]
    return warned, Questions(path / "lineage").warnings


USES = {
    "cross entropy": lambda out, y: nn.functional.cross_entropy(out, y),
    "a part of it": lambda out, y: nn.BCEWithLogitsLoss()(out[:, 0], (y > 0).float()),
    "softmax": lambda out, y: out.softmax(1),
}


@pytest.mark.parametrize("use", USES)
def test_values_that_the_loop_uses_as_logits_are_not_doubted(tmp_path: Path, use: str) -> None:
    assert trained(tmp_path, Between(), USES[use])[1] == []


def test_values_that_leave_0_to_1_later_are_not_doubted(tmp_path: Path) -> None:
    assert trained(tmp_path, Between(shift=1.0), lambda out, y: out.sum())[1] == []


def test_values_that_the_loop_uses_as_probabilities_are_doubted_at_once(tmp_path: Path) -> None:
    def loss(out: torch.Tensor, y: torch.Tensor) -> Any:
        return nn.BCELoss()(out, nn.functional.one_hot(y, 3).float())

    warned, kept = trained(tmp_path, Between(), loss)
    assert ["every value lies between 0 and 1" in text for text in (*warned, *kept)] == [True, True]


def test_a_label_that_torch_ignores_is_not_graded(tmp_path: Path) -> None:
    labels = torch.where(torch.arange(12) % 4 == 0, -100, CLASSES)
    ask = record(tmp_path, ends_in(None), labels)
    rows = ask("SELECT index, label, correct, loss IS NULL FROM predictions ORDER BY index")
    assert all((label is None) == (correct is None) == is_empty == (n % 4 == 0) for n, label, correct, is_empty in rows)
    assert ask("SELECT count(*) FROM samples WHERE label = -100") == [(3,)]


def test_a_one_hot_target_is_a_label(tmp_path: Path) -> None:
    model = ends_in(None)
    ask = record(tmp_path / "a", model, torch.nn.functional.one_hot(CLASSES, 3).float())
    plain = record(tmp_path / "b", model)
    query = "SELECT index, label, predicted, correct, loss FROM predictions ORDER BY index"
    assert ask(query) == plain(query)


@pytest.mark.parametrize("last", [None, nn.Softmax(1)])
def test_a_soft_label_has_a_loss_and_no_verdict(tmp_path: Path, last: nn.Module | None) -> None:
    model = ends_in(last)
    targets = torch.nn.functional.one_hot(CLASSES, 3) * 0.7 + 0.1
    ask = record(tmp_path, model, targets)
    logits = model(Items(targets).inputs)
    logs = logits.log() if last is not None else logits.log_softmax(1)
    expected = -(targets * logs).sum(1)
    rows = ask("SELECT label, correct, loss, target FROM predictions ORDER BY index")
    for (label, correct, loss, target), own, wanted in zip(rows, expected, targets, strict=True):
        assert (label, correct) == (None, None)
        assert loss == pytest.approx(float(own.detach()), rel=1e-5)
        assert target == pytest.approx(wanted.tolist())
    assert ask("SELECT accuracy FROM runs") == [(None,)]


class NamedItems(Items):
    classes = ("circle", "square", "star")


@pytest.mark.parametrize(
    ("kind", "last"), [(Items, nn.Sigmoid()), (NamedItems, None)], ids=["sigmoid", "named classes"]
)
def test_one_number_beside_several_classes_is_not_graded(
    tmp_path: Path, kind: type[Items], last: nn.Module | None
) -> None:
    """The critic of a GAN, whose loader has labels that it is not about."""
    model = ends_in(last, 1)

    def critic() -> None:
        with audit.record(tmp_path / "lineage") as run:
            run.model(model)
            for x, _ in run.loader(DataLoader(kind(CLASSES), batch_size=4)):
                model(x)

    with pytest.warns(RecordingWarning, match=r"the labels are of .* classes, and the model gives one number"):
        critic()
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT count(*), count(loss), count(correct), count(output) FROM predictions") == [(12, 0, 0, 12)]
    assert ask("SELECT output, accuracy FROM runs") == [("embedding", None)]


@pytest.mark.parametrize(
    ("labels", "kind"), [([0, 1, 2, 1], "embedding"), ([0, 1, 1, 0], "logits"), ([3, 2, 5, 1], "regression")]
)
def test_one_number_is_no_binary_classifier_where_labels_are_others(labels: list[int | None], kind: str) -> None:
    """Without names of classes, the labels themselves show it."""
    meaning = find_meaning(torch.randn(4, 1), module=ends_in(None, 1), labels=labels)
    assert (meaning.kind, meaning.doubt is not None) == (kind, kind == "embedding")


@pytest.mark.parametrize("declared", [None, "logits", "embedding"])
def test_more_numbers_than_classes_are_reported(tmp_path: Path, declared: str | None) -> None:
    """The features of an encoder look like the logits of a classifier."""
    model = ends_in(None, 8)

    def encode() -> None:
        with audit.record(tmp_path / "lineage") as run:
            run.model(model, output=declared)
            for x, _ in run.loader(DataLoader(NamedItems(CLASSES), batch_size=4)):
                model(x)

    if declared is None:
        with pytest.warns(RecordingWarning, match=r"gives 8 numbers for each sample, and the labels are of 3 classes"):
            encode()
    else:
        encode()
        assert Questions(tmp_path / "lineage").warnings == []
