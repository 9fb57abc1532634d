"""Faults by hand: each planted in one place of a clean run, with the check that must name that place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checks_world import CLASSES, LAST, Row, World, digest, grade


@dataclass
class Fault:
    """What is planted, who must find it, and where."""

    check: str
    name: str
    plant: Callable[[World], None]
    index: int | None = None
    stage: int | None = None
    says: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    #: The clean world, changed, is the run; the clean world itself is the baseline.
    baseline: bool = False
    severity: str | None = None

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.check}-{self.name}"


FAULTS: list[Fault] = []


def fault(check: str, name: str, **where: Any) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a planting function."""

    def register(plant: Callable[[World], None]) -> Callable[[World], None]:
        FAULTS.append(Fault(check, name, plant, **where))
        return plant

    return register


# -- integrity --------------------------------------------------------------------------------------


@fault("coverage", "sample missing", index=17, says="never recorded")
def _(w: World) -> None:
    for table in ("samples", "stage_outputs", "predictions"):
        w.tables[table] = [row for row in w.tables[table] if row["index"] != 17]


@fault("coverage", "sample twice", index=4, says="2 times")
def _(w: World) -> None:
    w.tables["samples"].append(dict(w.sample(4)))


@fault("coverage", "prediction twice", index=5, says="prediction of index 5")
def _(w: World) -> None:
    w.tables["predictions"].append(dict(w.prediction(5)))


@fault("coverage", "stage missing", index=21, stage=2, says="ToTensor")
def _(w: World) -> None:
    w.tables["stage_outputs"].remove(w.output(21, 2))


@fault("coverage", "no stage at all", index=8, stage=0, says="no recorded stage")
def _(w: World) -> None:
    w.tables["stage_outputs"] = [row for row in w.tables["stage_outputs"] if row["index"] != 8]


@fault("coverage", "prediction missing", index=30, says="no prediction")
def _(w: World) -> None:
    w.tables["predictions"].remove(w.prediction(30))


@fault("coverage", "prediction without sample", index=99, says="was not recorded")
def _(w: World) -> None:
    w.tables["predictions"].append(w.prediction(0) | {"index": 99})


@fault("coverage", "padding of a distributed sampler", index=0, says="padded")
def _(w: World) -> None:
    for row in w.tables["samples"]:
        row["rank"] = row["index"] % 2
    w.tables["samples"].append(w.sample(0) | {"rank": 1, "visit": 1})
    w.tables["predictions"].append(w.prediction(0) | {"visit": 1})
    w.tables["stage_outputs"] += [w.output(0, stage) | {"visit": 1} for stage in range(LAST + 1)]


@fault("alignment", "another sample's input", index=12, stage=LAST, says="not what its last stage")
def _(w: World) -> None:
    w.prediction(12)["input_digest"] = w.output(13, LAST)["digest"]


@fault("alignment", "graded against another label", index=7, says="graded against")
def _(w: World) -> None:
    row = w.prediction(7)
    grade(row, (row["label"] + 1) % 3, row["logits"])


@fault("alignment", "prediction not of its logits", index=15, says="logits say")
def _(w: World) -> None:
    row = w.prediction(15)
    row["predicted"] = (row["predicted"] + 1) % 3
    row["correct"] = row["predicted"] == row["label"]


@fault("alignment", "correct is not correct", index=16, says="recorded as correct")
def _(w: World) -> None:
    w.prediction(16)["correct"] = not w.prediction(16)["correct"]


@fault("alignment", "predictions shifted by one", says="shifted by one")
def _(w: World) -> None:
    logits = [row["logits"] for row in w.tables["predictions"]]
    for place, row in enumerate(w.tables["predictions"]):
        grade(row, row["label"], logits[place - 1])


def _revisit(w: World, epochs: int = 2) -> None:
    """Every sample once more in each further epoch, with the same outputs."""
    for table in ("samples", "stage_outputs", "predictions"):
        rows = w.tables[table]
        w.tables[table] = [row | {"epoch": epoch} for epoch in range(epochs) for row in rows]


@fault("alignment", "a collate function reversed the labels", index=0, says="exchanges labels: ")
def _(w: World) -> None:
    for first in range(0, len(w.tables["samples"]), 8):
        batch = w.tables["samples"][first : first + 8]
        for row, other in zip(batch, reversed(batch), strict=True):
            row["batch_label"] = other["label"]


@fault("stable_load", "a cached sample changed in place", index=22, stage=0, says="in place")
def _(w: World) -> None:
    _revisit(w)
    row = next(row for row in w.outputs(0) if row["index"] == 22 and row["epoch"] == 1)
    row["digest"] = digest("changed in place")


@fault(
    "stable_load", "the label of a sample moves", index=23, says="does not have the same label at every visit: 2 and 7"
)
def _(w: World) -> None:
    _revisit(w)
    for row in (row for row in w.tables["samples"] if row["index"] == 23):
        row["label"] = 2 if row["epoch"] else 7


@fault("stable_load", "a label moves where loading is random", index=23, says="does not have the same label")
def _(w: World) -> None:
    _revisit(w)
    w.stage(0)["random"] = True
    for row in (row for row in w.tables["samples"] if row["index"] == 23):
        row["label"] = 2 if row["epoch"] else 7


@fault("unreadable", "truncated file", index=3, stage=0, says="truncated")
def _(w: World) -> None:
    w.fail(3, "load", "OSError: image file is truncated")


@fault("unreadable", "a stage raised", index=44, stage=1, says="Resize")
def _(w: World) -> None:
    w.fail(44, "Resize", "ValueError: height and width must be > 0")


@fault("stage_coverage", "a change that no stage explains", says="Pictures.make (data.py:31)", severity="error")
def _(world: World) -> None:
    world.run.unrecorded = ["Pictures: no stage was seen; Pictures.make (data.py:31): torch.from_numpy (line 33)"]


@fault(
    "stage_coverage",
    "load is the finished tensor",
    says="60 visits have no stage but `load`",
    stage=0,
    severity="error",
)
def _(world: World) -> None:
    world.tables["stage_outputs"] = [row for row in world.tables["stage_outputs"] if row["stage"] == 0]
    for row in world.tables["stage_outputs"]:
        row["kind"] = "tensor"


@fault("hooks", "a layer never fired", says="layer4")
def _(w: World) -> None:
    w.run.recipe = {"layers": ["conv1", "layer4"]}
    w.tables["activations"] = [_activation("conv1", step) for step in range(4)]


@fault("hooks", "the recording saw nothing of a layer", says="layer2.0")
def _(w: World) -> None:
    w.run.warnings = ["The hook on layer layer2.0 never fired."]
    w.tables["activations"] = [_activation("conv1", step) for step in range(4)]


@fault("hooks", "a layer fired in some steps", says="2 of 4")
def _(w: World) -> None:
    w.run.recipe = {"layers": ["conv1", "fc"]}
    w.tables["activations"] = [_activation("conv1", step) for step in range(4)]
    w.tables["activations"] += [_activation("fc", step) for step in (0, 2)]


# -- values -----------------------------------------------------------------------------------------


@fault("finite", "NaN from a stage on", index=9, stage=2, says="ToTensor")
def _(w: World) -> None:
    for stage in (2, 3):
        w.output(9, stage)["nonfinite"] = 12


@fault("finite", "NaN logits", index=10, says="logits")
def _(w: World) -> None:
    w.prediction(10).update(
        logits=[float("nan"), 0.0, 1.0], probabilities=[float("nan")] * 3, predicted=None, confidence=None
    )


@fault("finite", "infinite loss", index=11, says="loss")
def _(w: World) -> None:
    w.prediction(11)["loss"] = float("inf")


@fault("odd_scale", "one sample was not scaled", index=12, stage=2, says="was it not scaled")
def _(w: World) -> None:
    w.output(12, 2)["max"] = 255.0


@fault("probabilities", "do not add up", index=20, says="add up to")
def _(w: World) -> None:
    w.prediction(20)["probabilities"] = [0.9, 0.4, 0.1]


@fault("probabilities", "negative", index=22, says="reach from")
def _(w: World) -> None:
    w.prediction(22).update(probabilities=[1.2, -0.3, 0.1], confidence=1.2)


@fault("probabilities", "softmax twice inside of the model", says="applied twice")
def _(w: World) -> None:
    w.run.output = "probabilities"
    for row in w.tables["predictions"]:
        grade(row, row["label"], [4 * value for value in row["logits"]])
        grade(row, row["label"], row["probabilities"])


@fault("probabilities", "softmax twice", says="second softmax")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], row["probabilities"])


@fault("stage_contract", "another shape", index=25, stage=LAST, says="3×28×28")
def _(w: World) -> None:
    w.output(25, LAST)["shape"] = [3, 28, 28]


@fault("stage_contract", "another dtype", index=26, stage=2, says="float64")
def _(w: World) -> None:
    w.output(26, 2)["dtype"] = "float64"


@fault("stage_contract", "another kind", index=27, stage=1, says="kind text")
def _(w: World) -> None:
    w.output(27, 1)["kind"] = "text"


@fault("stage_contract", "one sample unscaled", index=28, stage=2, says="maximum")
def _(w: World) -> None:
    w.output(28, 2).update(max=255.0, mean=120.0)


@fault(
    "stage_contract", "declared range", stage=LAST, index=0, says="the contract says",
    config={"contract": {"Normalize": {"min": -1.0, "shape": [3, -1, -1]}}},
)  # fmt: skip
def _(w: World) -> None:
    pass


@fault("blank", "blank when loaded", index=31, stage=0, says="when it was loaded")
def _(w: World) -> None:
    for stage in range(LAST + 1):
        w.output(31, stage).update(min=0.0, max=0.0, mean=0.0, std=0.0)


@fault("blank", "made blank by a stage", index=32, stage=3, says="made blank by Normalize")
def _(w: World) -> None:
    w.output(32, 3).update(min=-2.0, max=-2.0, mean=-2.0, std=0.0)


@fault("blank", "an empty text", index=36, stage=0, says="has no characters")
def _(w: World) -> None:
    w.output(36, 0).update(kind="text", dtype="str", shape=[0], min=None, max=None, mean=None, std=None)


@fault("clipped", "16 bit turned white", index=33, stage=1, says="8 bits")
def _(w: World) -> None:
    w.output(33, 0).update(mode="I;16", dtype="uint16", max=65535.0, mean=30000.0, shape=[48, 64])
    w.output(33, 1).update(mode="L", min=0.0, max=255.0, mean=254.0, shape=[32, 42])


@fault("clipped", "nearly all set to zero", index=34, stage=2, says="zero")
def _(w: World) -> None:
    w.output(34, 2).update(min=0.0, max=1.0, mean=0.001, zeros=4000)


@fault("scale", "0–255 given to a model that takes 0–1", stage=2, says="values up to 255")
def _(w: World) -> None:
    w.tables["stages"] = w.tables["stages"][:3]
    w.tables["stage_outputs"] = [row for row in w.tables["stage_outputs"] if row["stage"] < 3]
    for row in w.outputs(2):
        row.update(max=255.0, mean=120.0, std=50.0)


@fault("scale", "normalised without being scaled", stage=3, says="meant for 0–1")
def _(w: World) -> None:
    for row in w.outputs(2):
        row.update(max=255.0, mean=120.0)


@fault("scale", "normalised twice", stage=4, says="already normalised")
def _(w: World) -> None:
    w.tables["stages"].append(w.stage(3) | {"stage": 4, "path": "4"})
    again = [row | {"stage": 4, "min": -10.0, "max": 6.0} for row in w.outputs(3)]
    w.tables["stage_outputs"] += again


@fault("scale", "normalised again by a function", stage=4, says="subtracts 0.5 and divides by 0.25")
def _(w: World) -> None:
    w.tables["stages"].append(w.stage(3) | {"stage": 4, "path": "4", "name": "standardise", "parameters": "{}"})
    w.tables["stage_outputs"] += [
        row | {"stage": 4, "name": "standardise", "mean": (row["mean"] - 0.5) / 0.25, "std": row["std"] / 0.25}
        for row in w.outputs(3)
    ]


def state_input(w: World, says: str = "the checkpoint", **more: Any) -> None:
    """Let the run's checkpoint state the normalisation that the pipeline has."""
    w.run.recipe = {"expected_input": {"mean": [0.5], "std": [0.25], "says": says, **more}}


@fault("preprocessing", "another dataset's mean and std", stage=3, says="mean 0.131 and std 0.308", severity="error")
def _(w: World) -> None:
    state_input(w)
    w.stage(3)["parameters"] = json.dumps({"mean": [0.1307], "std": [0.3081]})


@fault("preprocessing", "normalised again by a function", stage=4, says="normalised twice", severity="error")
def _(w: World) -> None:
    state_input(w)
    w.tables["stages"].append(w.stage(3) | {"stage": 4, "path": "4", "name": "standardise", "parameters": "{}"})
    w.tables["stage_outputs"] += [
        row | {"stage": 4, "name": "standardise", "min": -10.0, "max": 6.0} for row in w.outputs(3)
    ]


@fault("preprocessing", "never normalised", stage=2, says="from black to white", severity="warning")
def _(w: World) -> None:
    state_input(w, "the published preset of resnet18")
    w.tables["stages"] = w.tables["stages"][:3]
    w.tables["stage_outputs"] = [row for row in w.tables["stage_outputs"] if row["stage"] < 3]


@fault("preprocessing", "squeezed instead of cropped", stage=1, says="aspect of 60 of 60", severity="warning")
def _(w: World) -> None:
    state_input(w, "the published preset of resnet18", keeps_aspect=True)
    for row in w.outputs(1):
        row["shape"] = [32, 32, 3]


@fault("augmentation", "never fires", stage=1, says="never changed")
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomHorizontalFlip", parameters='{"p": 0.5}')
    _split(w, "train")
    for row in w.outputs(1):
        row["changed"] = False


@fault("augmentation", "always fires", stage=1, says="though its p is 0.5")
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomHorizontalFlip", parameters='{"p": 0.5}')
    _split(w, "train")


@fault("augmentation", "the same draw in both workers", stage=1, says="workers")
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomRotation")
    _split(w, "train")
    for row in w.outputs(1):
        row["params"] = json.dumps({"angle": 1.2345678 + row["index"] // 2})


@fault("augmentation", "the same draw in every epoch", stage=1, says="in all 2 epochs")
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomRotation")
    _split(w, "train")
    for row in w.outputs(1):
        row["params"] = json.dumps({"angle": 0.1234567 * (row["index"] + 1)})
    for table in ("samples", "stage_outputs", "predictions"):
        w.tables[table] += [row | {"epoch": 1} for row in w.tables[table]]


@fault(
    "augmentation", "samples are kept after a random stage", stage=1, index=0, says="In 60 of 60 visits after epoch 0"
)
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomCrop")
    _split(w, "train")
    finished = {row["index"]: row["digest"] for row in w.outputs(LAST)}
    first = w.tables["stage_outputs"]
    _revisit(w)
    w.tables["stage_outputs"] = [
        *first,
        *(row | {"epoch": 1, "digest": finished[row["index"]]} for row in first if not row["stage"]),
    ]


@fault("augmentation", "active in evaluation", stage=1, says="split test", severity="warning")
def _(w: World) -> None:
    w.stage(1).update(random=True, name="RandomCrop")


# -- data -------------------------------------------------------------------------------------------


@fault("duplicates", "the same bytes", index=41, says="bird/003.png")
def _(w: World) -> None:
    w.sample(41)["source_digest"] = w.sample(3)["source_digest"]
    w.sample(41)["label"] = w.sample(3)["label"]


@fault("conflicting_labels", "one content, two labels", index=42, says="also labelled")
def _(w: World) -> None:
    w.sample(42)["source_digest"] = w.sample(1)["source_digest"]


@fault("leakage", "test picture in train", index=2, says="split train")
def _(w: World) -> None:
    for row in w.tables["samples"][:40]:
        row["split"] = "train"
    w.sample(50)["source_digest"] = w.sample(2)["source_digest"]
    for index in (2, 50):
        w.sample(index)["split"] = "train" if index == 50 else "test"


@fault("image_quality", "dark", index=35, stage=0, says="dark")
def _(w: World) -> None:
    w.output(35, 0).update(max=30.0, mean=8.0, std=5.0)


@fault("image_quality", "bright", index=36, stage=0, says="bright")
def _(w: World) -> None:
    w.output(36, 0).update(min=220.0, mean=245.0, std=6.0)


@fault("image_quality", "low information", index=37, stage=0, says="low information")
def _(w: World) -> None:
    w.output(37, 0).update(min=120.0, max=130.0, mean=125.0, std=2.0)


@fault("image_quality", "odd size", index=38, stage=0, says="odd size")
def _(w: World) -> None:
    w.output(38, 0)["shape"] = [2000, 2600, 3]


@fault("image_quality", "odd aspect", index=39, stage=0, says="odd aspect")
def _(w: World) -> None:
    w.output(39, 0)["shape"] = [12, 300, 3]


@fault("image_quality", "grey among coloured", index=40, stage=0, says="grey")
def _(w: World) -> None:
    w.output(40, 0).update(mode="L", shape=[48, 64])


@fault("alpha_dropped", "a stage dropped it", index=43, stage=1, says="dropped its alpha")
def _(w: World) -> None:
    w.output(43, 0).update(mode="RGBA", shape=[48, 64, 4])


@fault("class_balance", "one class is rare", says="dog")
def _(w: World) -> None:
    for row in w.tables["samples"]:
        if row["label"] == 2 and row["index"] > 3:
            row.update(label=0, label_name="bird")


@fault("class_names", "one class under two names", says="'Cat ' and 'cat'", severity="warning")
def _(w: World) -> None:
    w.run.classes = ["Cat ", "cat", "dog"]


@fault("missing_classes", "a class has no sample", says="eagle")
def _(w: World) -> None:
    assert w.run.classes is not None
    w.run.classes.append("eagle")


@fault("missing_classes", "a class is missing in a split", says="train")
def _(w: World) -> None:
    for row in w.tables["samples"]:
        row["split"] = "train" if row["index"] < 30 and row["label"] != 1 else "test"


# -- labels and model -------------------------------------------------------------------------------


@fault("label_range", "too large", index=51, says="label 3")
def _(w: World) -> None:
    w.sample(51).update(label=3, label_name=None)


@fault("label_range", "negative", index=52, says="label -1")
def _(w: World) -> None:
    w.sample(52).update(label=-1, label_name=None)


@fault("label_range", "missing", index=53, says="no label")
def _(w: World) -> None:
    w.sample(53).update(label=None, label_name=None)


@fault("class_order", "classes permuted", says="would rise")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], row["logits"][1:] + row["logits"][:1])


@fault("class_order", "numbers sorted as text", says="sorted as text", severity="warning")
def _(w: World) -> None:
    w.run.classes = ["1", "10", "2"]


@fault("label_issues", "a wrong label", index=54, says="looks like")
def _(w: World) -> None:
    other = (w.sample(54)["label"] + 1) % 3
    w.sample(54).update(label=other, label_name=CLASSES[other])
    logits = [0.0, 0.0, 0.0]
    logits[54 % 3] = 6.0
    grade(w.prediction(54), other, logits)


@fault("accuracy", "below what is asked", says="minimum of 95.00%", config={"min": 0.95})
def _(w: World) -> None:
    pass


@fault("accuracy", "no better than guessing", says="commonest class")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], [1.0, 0.0, 0.0])


@fault("accuracy", "lower than the baseline", says="below the", baseline=True)
def _(w: World) -> None:
    for index in range(0, 60, 5):
        grade(w.prediction(index), index % 3, [-value for value in w.prediction(index)["logits"]])


@fault("per_class_accuracy", "one class is never right", says="cat")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        if row["label"] == 1:
            grade(row, 1, [2.0, 0.0, 0.5])


@fault("calibration", "far too confident", says="overconfident", config={"samples": 50})
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], [8.0 if n == row["index"] % 2 else 0.0 for n in range(3)])


@fault("dead_layers", "all zero", says="relu3")
def _(w: World) -> None:
    w.tables["activations"] = [_activation("conv1", step) for step in range(3)]
    w.tables["activations"] += [
        _activation("relu3", step) | {"zero_fraction": 1.0, "min": 0.0, "max": 0.0, "std": 0.0} for step in range(3)
    ]


@fault("exploding_layers", "not finite", says="from step 2")
def _(w: World) -> None:
    w.tables["activations"] = [_activation("fc", step) | {"nonfinite": 5 if step >= 2 else 0} for step in range(4)]


@fault("exploding_layers", "gradients grow without end", says="grew")
def _(w: World) -> None:
    w.tables["activations"] = [
        _activation("fc", step) | {"direction": "backward", "std": 10.0**step, "max": 10.0, "min": -10.0}
        for step in range(6)
    ]


# -- against a baseline -----------------------------------------------------------------------------


@fault("pipeline_changed", "another parameter", stage=1, says="size", baseline=True)
def _(w: World) -> None:
    w.stage(1)["parameters"] = json.dumps({"size": [28]})


@fault("pipeline_changed", "a stage is new", stage=2, says="RandomErasing", baseline=True)
def _(w: World) -> None:
    new = w.stage(1) | {"stage": 2, "path": "2", "name": "RandomErasing", "qualname": "transforms.RandomErasing"}
    stages = w.tables["stages"]
    w.tables["stages"] = [*stages[:2], new, *(row | {"stage": row["stage"] + 1} for row in stages[2:])]


@fault("pipeline_changed", "a stage is gone", says="Resize", baseline=True)
def _(w: World) -> None:
    del w.tables["stages"][1]


@fault("pipeline_changed", "another code", stage=2, says="code of ToTensor", baseline=True)
def _(w: World) -> None:
    w.stage(2)["source_code_digest"] = digest("edited")


@fault("dataset_changed", "other bytes", index=14, says="other bytes", baseline=True)
def _(w: World) -> None:
    w.sample(14)["source_digest"] = digest("edited", size=64)


@fault("dataset_changed", "another label", index=18, says="had the label 0", baseline=True)
def _(w: World) -> None:
    w.sample(18)["label"] = 1


@fault("dataset_changed", "a source is new", index=19, says="is new", baseline=True)
def _(w: World) -> None:
    w.sample(19)["source"] = "cat/new.png"


@fault("prediction_flips", "right before, wrong now", index=6, says="now predicted as", baseline=True)
def _(w: World) -> None:
    grade(w.prediction(6), 0, [0.0, 3.0, 0.0])


@fault("prediction_flips", "right before, fails now", index=6, says="fails now", baseline=True)
def _(w: World) -> None:
    w.sample(6).update(status="failed", failed_stage="load", error="OSError: truncated")
    w.tables["predictions"].remove(w.prediction(6))


@fault("prediction_flips", "no sample in common", says="Nothing was compared", baseline=True)
def _(w: World) -> None:
    for row in w.tables["samples"]:
        row["source"] = f"elsewhere/{row['source']}"


def draw(w: World, state: Callable[[int], object], epochs: int = 1) -> None:
    """Let every visit draw from one generator, whose state each time is what `state` makes of the sample's index."""
    if epochs > 1:
        _revisit(w, epochs)
    w.tables["rng"] = [
        {name: row[name] for name in ("epoch", "index", "visit")}
        | {"generator": "held:rng", "state": repr(state(row["index"] + 60 * row["epoch"])).encode()}
        for row in w.tables["samples"]
    ]


@fault("repeated_draws", "copies of a generator in two workers", index=0, says="2 workers")
def _(w: World) -> None:
    draw(w, lambda index: index // 2)


@fault("repeated_draws", "a generator that begins again", says="is reset at the start", severity="warning")
def _(w: World) -> None:
    draw(w, lambda index: index % 60, epochs=2)


@fault("shortcuts", "one class is darker", stage=0, says="brightness", severity="warning")
def _(w: World) -> None:
    for row in w.outputs(0):
        row["mean"] = 40.0 + 60.0 * (row["index"] % 3) + row["index"] / 10


@fault("shortcuts", "each class has its format", stage=0, says="file format")
def _(w: World) -> None:
    for row in w.tables["samples"]:
        row["source"] = row["source"].replace(".png", (".png", ".jpg", ".webp")[row["label"]])


@fault("shortcuts", "each class has its size", stage=0, says="the width")
def _(w: World) -> None:
    for row in w.outputs(0):
        row["shape"] = [48, 64 + 8 * (row["index"] % 3), 3]


@fault("shortcuts", "each class has its pattern of names", stage=0, says="pattern of the name")
def _(w: World) -> None:
    for row in w.tables["samples"]:
        row["source"] = f"{'abc'[row['label']]}_scan_{row['index']}.png"


@fault(
    "calibration", "one class is far too sure", says="overconfident for this class", config={"samples": 50, "max": 0.5}
)
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        if row["label"] == 1:
            grade(row, 1, [9.0, 0.0, 0.0])


@fault("losses", "every loss is a little higher", says="Wilcoxon", baseline=True, severity="warning")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        row["loss"] = row["loss"] * 1.2 + 0.01


def shuffle(w: World, orders: Callable[[int, int], int]) -> None:
    """Two epochs of a shuffling loader; `orders` gives the place of a sample by its index and epoch."""
    _revisit(w)
    w.run.recipe = {"loaders": [{"split": "test", "length": 60, "sampler": "RandomSampler", "passes": []}]}
    for row in w.tables["samples"]:
        place = orders(row["index"], row["epoch"])
        row.update(batch=place // 8, position=place % 8)


@fault("loader_order", "shuffled alike in every epoch", says="same order in all 2 epochs", severity="warning")
def _(w: World) -> None:
    shuffle(w, lambda index, epoch: index * 7 % 60)


@fault("loader_order", "files listed in another order", index=1, says="Sort them", severity="warning", baseline=True)
def _(w: World) -> None:
    first, last = w.sample(1), w.sample(58)
    first["source"], last["source"] = last["source"], first["source"]


@fault("loader_order", "trained in the order of the labels", says="the label changes only 2 times", severity="warning")
def _(w: World) -> None:
    steps(w, "train", learning_rate=0.1)
    for row in w.tables["samples"]:
        place = row["label"] * 20 + row["index"] // 3
        row.update(split="train", batch=place // 8, position=place % 8)


@fault(
    "augmentation", "an evaluation split that draws", index=0, says="drew from the random generator", severity="warning"
)
def _(w: World) -> None:
    draw(w, lambda index: index)


@fault("head", "more outputs than classes", says="5 outputs and the dataset 3 classes", severity="warning")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], [*row["logits"], -9.0, -9.0])


@fault("head", "fewer outputs than classes", says="3 outputs and the dataset 4 classes")
def _(w: World) -> None:
    w.run.classes = [*CLASSES, "fish"]


@fault("head", "one output takes everything", says="have that label")
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        grade(row, row["label"], [4.0, 0.0, 0.0])


def steps(w: World, phase: str, learning_rate: float | None = None) -> None:
    """The steps of the world's predictions, in one mode."""
    numbers = sorted({row["step"] for row in w.tables["predictions"]})
    w.tables["steps"] = [
        {"epoch": 0, "step": number, "phase": phase, "learning_rate": learning_rate} for number in numbers
    ]


@fault("learning", "the weights do not change", says="exactly the same outputs in epoch 0 and in epoch 1 for 60 inputs")
def _(w: World) -> None:
    steps(w, "train", learning_rate=0.1)
    _revisit(w)


@fault("evaluation_mode", "a test split in training mode", says="training mode", severity="error")
def _(w: World) -> None:
    steps(w, "train", learning_rate=0.1)


@fault("evaluation_mode", "training mode where nothing is trained", says="no optimizer", severity="warning")
def _(w: World) -> None:
    steps(w, "train")
    _split(w, "all")


@fault("evaluation_mode", "batch normalisation left in training mode", says="with layer1.bn in training mode")
def _(w: World) -> None:
    calls(w, other_mode=["layer1.bn"])


def calls(w: World, **facts: Any) -> None:
    """One call of the model for each batch, in evaluation mode."""
    w.tables["calls"] = []
    for row in w.tables["predictions"]:
        row["number"] = row["batch"]
    for number in sorted({row["batch"] for row in w.tables["predictions"]}):
        row = {"number": number, "model": "net", "epoch": 0, "step": number, "phase": "eval", "samples": 8}
        w.tables["calls"].append(row | facts)


@fault("class_order", "two classes of many changed places", says="are swapped")
def _(w: World) -> None:
    many_classes(w, 20, samples=6, order=lambda label: {4: 7, 7: 4}.get(label, label))


@fault("class_order", "shifted by one with one sample of a class", says="shifted by one")
def _(w: World) -> None:
    many_classes(w, 40, samples=1, order=lambda label: (label + 1) % 40)


def many_classes(w: World, classes: int, *, samples: int, order: Callable[[int], int]) -> None:
    """A dataset of many classes and few samples of each; class n is predicted as `order(n)`."""
    w.run.classes = [f"class {n}" for n in range(classes)]
    keys, predictions = w.tables["samples"], w.tables["predictions"]
    w.tables["samples"], w.tables["predictions"] = [], []
    for index in range(classes * samples):
        label, key = index // samples, {"epoch": 0, "index": index, "visit": 0}
        w.tables["samples"].append(keys[0] | key | {"source": f"{index}.png", "label": label, "label_name": None})
        predicted = order(label)
        facts = {"label": label, "predicted": predicted, "correct": label == predicted, "logits": None}
        w.tables["predictions"].append(predictions[0] | key | facts | {"probabilities": None})
    w.run.expected = classes * samples


@fault("drift", "pictures became darker", stage=0, says="mean of load", baseline=True)
def _(w: World) -> None:
    for row in w.outputs(0):
        row["mean"] -= 60


@fault("drift", "labels are distributed otherwise", says="labels have drifted", baseline=True)
def _(w: World) -> None:
    for row in w.tables["samples"]:
        if row["label"] == 1:
            row["label"] = 0


def _split(w: World, split: str) -> None:
    for row in w.tables["samples"]:
        row["split"] = split


def _activation(layer: str, step: int) -> dict[str, Any]:
    return {
        "epoch": 0, "step": step, "layer": layer, "layer_type": "Module", "direction": "forward", "port": "output.0",
        "mean": 0.1, "std": 1.0, "min": -3.0, "max": 3.0, "zero_fraction": 0.4, "nonfinite": 0,
    }  # fmt: skip


def boxes(w: World, change: Callable[[int, Row], None] = lambda index, row: None) -> None:
    """One target box for each sample, inside of its picture, and found."""
    w.tables["boxes"] = []
    for sample in w.tables["samples"]:
        key = {name: sample[name] for name in ("epoch", "index", "visit")}
        place = {"x1": 4.0, "y1": 4.0, "x2": 20.0, "y2": 16.0}
        row = {**key, "call": 0, "box": 0, "kind": "target", "class": 1, "outcome": "tp", **place}
        change(sample["index"], row)
        w.tables["boxes"].append(row)


@fault("target_boxes", "a box without a size", index=3, says="has no size")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x2=4.0) if index == 3 else None)


@fault("target_boxes", "a box that is not finite", index=3, says="not finite")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x2=math.nan) if index == 3 else None)


@fault("target_boxes", "a box outside of its picture", index=5, says="outside of its picture")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x2=4000.0) if index == 5 else None)


@fault("target_boxes", "boxes of x, y, width, height", says="width, height")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x1=30.0, x2=12.0))


@fault("target_boxes", "boxes between 0 and 1", says="shares of the width")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x1=0.1, y1=0.1, x2=0.6, y2=0.5))


@fault("target_boxes", "a box twice", index=6, says="occurs 2 times", severity="warning")
def _(w: World) -> None:
    boxes(w)
    w.tables["boxes"].append(next(row for row in w.tables["boxes"] if row["index"] == 6) | {"box": 1})


def joint_boxes(w: World, after: list[list[float]]) -> None:
    """Two objects of 16 × 12 pixels in each picture; a crop leaves these boxes."""
    before = [[4.0, 4.0, 20.0, 16.0], [30.0, 4.0, 46.0, 16.0]]
    for row in w.tables["stage_outputs"]:
        boxes = before if row["stage"] == 0 else after
        row["target"] = json.dumps({"height": 48, "width": 48, "boxes": boxes, "classes": [1] * len(boxes)})
        row["name"] = "load" if row["stage"] == 0 else "CenterCrop"


@fault("lost_boxes", "a crop that loses objects", says="loses")
def _(w: World) -> None:
    joint_boxes(w, [[4.0, 4.0, 20.0, 16.0]])


@fault("lost_boxes", "a crop that cuts objects", says="less than")
def _(w: World) -> None:
    joint_boxes(w, [[4.0, 4.0, 20.0, 16.0], [46.0, 4.0, 48.0, 16.0]])


@fault("missed_by_size", "small objects are missed", says="small objects are missed")
def _(w: World) -> None:
    boxes(w, lambda index, row: row.update(x2=60.0, y2=60.0) if index % 2 else row.update(outcome="fn"))


def masks(w: World, change: Callable[[int, Row], None] = lambda index, row: None) -> None:
    """A target and a predicted mask of one size for each sample, and a score of class 1."""
    w.tables["masks"], w.tables["mask_scores"] = [], []
    for sample in w.tables["samples"]:
        key = {name: sample[name] for name in ("epoch", "index", "visit")} | {"call": 0}
        for kind in ("target", "predicted"):
            row = {**key, "kind": kind, "width": 32, "height": 24, "digest": "0"}
            change(sample["index"], row)
            w.tables["masks"].append(row)
        score = {**key, "class": 1, "target_pixels": 9, "predicted_pixels": 9, "shared_pixels": 9, "iou": 1.0}
        change(sample["index"], score)
        w.tables["mask_scores"].append(score)


@fault("target_masks", "a mask of another size", index=4, says="64 × 24 pixels")
def _(w: World) -> None:
    masks(w, lambda index, row: row.update(width=64) if index == 4 and row.get("kind") == "target" else None)


@fault("target_masks", "a class that does not exist", index=4, says="class 17")
def _(w: World) -> None:
    masks(w, lambda index, row: row.update({"class": 17}) if index == 4 and "class" in row else None)


def fire(w: World, rate: float) -> None:
    """Eight epochs with a random stage of p 0.2 that acts at a rate."""
    _revisit(w, epochs=8)
    _split(w, "train")
    w.stage(1).update(random=True, parameters=json.dumps({"p": 0.2}))
    for row in w.outputs(1):
        row["changed"] = int(digest("fire", row["index"], row["epoch"]), 16) % 1_000 < 1_000 * rate


@fault("augmentation", "fires three times as often as its p", stage=1, says="although its p is 0.2")
def _(w: World) -> None:
    fire(w, 0.6)


@fault("class_regressions", "one class got worse", says="The class cat", baseline=True)
def _(w: World) -> None:
    for row in w.tables["predictions"]:
        if row["label"] == 1:
            grade(row, 1, [0.0, 0.0, 3.0])


def several_splits(w: World, shift: float) -> None:
    """Two splits of 60 and 180 samples, the brightness of the smaller one shifted."""
    for table in ("samples", "stage_outputs", "predictions"):
        rows = w.tables[table]
        w.tables[table] = [row | {"index": row["index"] + 60 * n} for n in range(4) for row in rows]
    for row in w.tables["samples"]:
        row.update(split="train" if row["index"] < 180 else "test", source=f"{row['index']}.png",
                   source_digest=digest("file", row["index"], size=64))  # fmt: skip
    for row in w.outputs(0):
        row["mean"] += shift if row["index"] >= 180 else 0.0


@fault("split_drift", "the test pictures are darker", stage=0, says="train and test", severity="warning")
def _(w: World) -> None:
    several_splits(w, -60.0)


def segments(w: World, wrong: bool) -> None:
    """240 samples of one split, of which the dark quarter is predicted wrong, or as well as the others."""
    several_splits(w, 0.0)
    for row in w.tables["samples"]:
        row["split"] = "test"
    for row in w.outputs(0):
        row["mean"] = 20.0 + row["index"] if row["index"] < 60 else 150.0 + row["index"] / 10
    for row in w.tables["predictions"]:
        if wrong and row["index"] < 60:
            grade(row, row["label"], [0.5 if n == (row["label"] + 1) % 3 else 0.0 for n in range(3)])


@fault("weak_segments", "dark pictures", stage=0, says="mean brightness from 20", severity="warning")
def _(w: World) -> None:
    segments(w, wrong=True)
