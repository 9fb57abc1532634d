"""Dataset, stages and model from a request: the same in the main process, in a worker and in a replay."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

from audit.engines.request import RunRequest
from audit.errors import DatasetError, ModelError, NeedsTrust, PipelineError, UsageError
from audit.models import LoadedModel, compare_classes, complete_classes, load
from audit.models.presets import ConvertRGB, expand_preset, flatten_preset, mask_transform
from audit.recorders.files.origin import class_names
from audit.recorders.stages.discover import Chain, Pipeline, child_slots, find_pipeline
from audit.sources import FileDataset, Options, dataset_digest, open_dataset
from audit.sources.annotated_pictures import AnnotatedPictures
from audit.sources.builder import file_of
from audit.sources.files import nearest_path
from audit.sources.huggingface import HuggingFaceItems
from audit.sources.mask_folders import MaskedPictures
from audit.sources.python import build
from audit.usercode import CodeFiles, collect_code, load_module

#: Outputs whose numbers do not stand for the classes of the dataset.
WITHOUT_CLASSES = ("embedding", "regression", "tokens")


@dataclass(slots=True)
class Assembly:
    """All that a run needs, ready to go."""

    dataset: Any
    pipeline: Pipeline
    model: LoadedModel | None
    classes: list[str] | None
    notes: list[str] = field(default_factory=list)
    #: The user's own code that dataset, pipeline and model were made by.
    code: CodeFiles = field(default_factory=CodeFiles)

    def pipeline_digest(self) -> str:
        """Return a digest that is the same for two pipelines exactly when their stages are described alike."""
        # Digests of earlier versions, to which nothing but true and false was known, stay comparable.
        rows = [asdict(stage) | {"random": bool(stage.random)} for stage in self.pipeline.stages]
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:32]

    def code_recipe(self, pipeline: str | None) -> dict[str, Any]:
        """Return what a run's recipe says of the user's own code: digests of the bytes that were executed."""
        found: dict[str, Any] = {"code": self.code.as_recipe()} if len(self.code) else {}
        if pipeline is not None:
            found["pipeline_sha256"] = self.code.sha256_of(file_of(pipeline))
        return found

    def dataset_digest(self) -> str:
        """Return a digest of what the dataset consists of, without reading it."""
        return dataset_digest(self.dataset)


def assemble(request: RunRequest, *, with_model: bool = True, observe_calls: bool = False) -> Assembly:
    """Build what a request names. Raises the error that names the part which cannot be built.

    With `observe_calls`, stages that the dataset calls are found while its items are made.
    """
    with collect_code() as code:
        assembly = _assemble(request, with_model, observe_calls)
    assembly.code = code
    return assembly


def _assemble(request: RunRequest, with_model: bool, observe_calls: bool) -> Assembly:
    module, name = _pipeline_module(request.pipeline)
    model = _load(request, module) if with_model else None
    if model is not None and module is None:
        module, name = _find_named_pipeline(model, request)
    request.report_progress("opening the dataset")
    dataset = _dataset(request, module, name, model)
    if not hasattr(dataset, "__len__"):
        raise DatasetError(
            f"{request.dataset} gives a dataset without a length, which `audit run` cannot go through by index.",
            hint="Record it in your own loop with audit.record(...).",
        )
    if len(dataset) == 0:
        raise DatasetError(f"{request.dataset} gives an empty dataset.", hint="Check what --dataset names.")
    classes = class_names(dataset)
    notes = [*getattr(dataset, "notes", ()), *(model.notes if model else ())]
    if model is not None:
        classes = complete_classes(model.classes, classes, getattr(dataset, "present_labels", None))
        if not request.heads:  # each of several heads has a target of its own
            notes += _miss_labels(request, dataset, model)
            if (request.output or model.output) not in WITHOUT_CLASSES:
                compare_classes(model.classes, classes)
                notes += _compare_width(model, classes)
        classes = classes or model.classes
    pipeline = find_pipeline(dataset, expand=expand_preset, observe_calls=observe_calls)
    return Assembly(dataset, pipeline, model, classes, notes)


def load_model(request: RunRequest) -> LoadedModel | None:
    """Return the model that a request names, without its dataset; None when it names none."""
    return _load(request, _pipeline_module(request.pipeline)[0])


def _load(request: RunRequest, module: ModuleType | None) -> LoadedModel | None:
    if request.model is None:
        if request.arch is not None:
            raise UsageError(
                f"--arch {request.arch} names the architecture of a model, but no model was given.",
                hint="Pass --model FILE, or omit --arch.",
            )
        return None
    request.report_progress("loading the model")
    return load(
        request.model,
        arch=request.arch,
        trust=request.trust,
        device=request.device,
        builder=getattr(module, "model", None),
    )


def pipeline_builder(spec: str) -> Any:
    """Return the `model` function of a pipeline file, if it has one."""
    module, _ = _pipeline_module(spec)
    return getattr(module, "model", None)


def _pipeline_module(spec: str | None) -> tuple[ModuleType | None, str | None]:
    if spec is None:
        return None, None
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, name = spec, ""
    form = "Give --pipeline FILE.py or FILE.py:name."
    if os.path.exists(path) and (os.path.isdir(path) or not path.endswith(".py")):
        kind = "a folder" if os.path.isdir(path) else "not a Python file"
        raise PipelineError(f"The pipeline {path} is {kind}.", hint=form).as_usage()
    if not path.endswith(".py") or not os.path.isfile(path):
        near = nearest_path(path, ending=".py")
        hint = f"{near} {form}" if near.startswith("Did you mean") else form
        raise PipelineError(f"There is no pipeline file {path}.", hint=hint).as_usage()
    module = load_module(path, PipelineError)
    chosen = name or next((n for n in ("transform", "dataset", "transforms") if _defines(module, n)), None)
    if chosen is None or not hasattr(module, chosen):
        near_names = difflib.get_close_matches(name, vars(module), n=3)
        error = PipelineError(
            f"{path} defines no {name or 'transform and no dataset'}.",
            hint=(f"Did you mean {', '.join(near_names)}? " if near_names else "")
            + "Define `transform` (a callable, a Compose or a list of stages), `transforms` (one that takes picture and "
            "target), or `dataset(root)`.",
        )
        raise error.as_usage() if name else error
    return module, chosen


def _find_named_pipeline(model: LoadedModel, request: RunRequest) -> tuple[ModuleType | None, str | None]:
    """Return the pipeline that a checkpoint names: code on this disk, run only when the checkpoint is trusted."""
    named = model.extras.get("pipeline")
    if not isinstance(named, str):
        return None, None
    beside = os.path.join(os.path.dirname(os.path.abspath(request.model or "")), named)
    path = beside if os.path.exists(beside.rpartition(":")[0] or beside) or os.path.exists(beside) else named
    if not request.trust:
        raise NeedsTrust(
            f"The checkpoint {request.model} names the pipeline {named}, which would be executed.",
            hint=f"Give it yourself with --pipeline {named}, or trust the checkpoint with --trust.",
        )
    return _pipeline_module(path)


def _dataset(request: RunRequest, module: ModuleType | None, name: str | None, model: LoadedModel | None) -> Any:
    target_transform = getattr(module, "target_transform", None)
    if module is not None and name is not None:
        found = getattr(module, name)
        if name == "dataset" or _builds_dataset(name, found):
            return build(found, f"{request.pipeline}:{name}", Options(), root=request.dataset)
        if name == "transforms":
            return _with_joint_transform(request.dataset, found)
        dataset = open_dataset(request.dataset, transform=_as_transform(found, name), target_transform=target_transform)
        if (request.mode or getattr(module, "mode", None) or "rgb") == "rgb":
            _convert_first(dataset)
        return dataset
    if model is None:
        return open_dataset(request.dataset)
    if model.preset is not None:
        # The conversion that torchvision's folder hides in its loader is a stage of its own here.
        stages = [ConvertRGB(), *(stage for _, stage in flatten_preset(model.preset))]
        dataset = open_dataset(request.dataset, transform=Chain(stages))
        if isinstance(dataset, MaskedPictures):
            dataset.target_transform = mask_transform(stages)
        return dataset
    dataset = open_dataset(request.dataset)
    if hasattr(dataset, "read"):
        raise ModelError(
            f"No preprocessing is known for {request.model}.",
            hint="Say how pictures become tensors with --pipeline FILE.py (see pipelines/imagenet_eval.py).",
        )
    return dataset


def _defines(module: ModuleType, name: str) -> bool:
    """Return whether a pipeline's file defines the name; `from torchvision import transforms` defines nothing."""
    return hasattr(module, name) and not isinstance(getattr(module, name), ModuleType)


def _with_joint_transform(spec: str, transforms: Any) -> Any:
    """Return a dataset whose pictures and targets are transformed together."""
    dataset = open_dataset(spec)
    if not isinstance(dataset, AnnotatedPictures):
        raise PipelineError(
            f"The pipeline has `transforms`, which take picture and target, but {spec} has no boxes and no masks.",
            hint="Define `transform`, which takes the picture alone; or give coco:, voc:, yolo: or masks: as --dataset.",
        )
    dataset.transforms = transforms
    return dataset


def _convert_first(dataset: Any) -> None:
    """Convert pictures to RGB before the transform, as torchvision's ImageFolder does: users write pipelines for that.

    A stage of its own, so that what the conversion changed is recorded. A pipeline whose first stage chooses the mode
    itself is left as it is, and so are datasets that have no files of pictures.
    """
    pictures = isinstance(dataset, FileDataset) and not dataset.texts and not isinstance(dataset, HuggingFaceItems)
    if pictures and not _chooses_mode(dataset.transform):
        first = dataset.transform
        plain = (type(first) is Chain or _is_compose(first)) and isinstance(first.transforms, list)
        dataset.transform = Chain([ConvertRGB(), *(first.transforms if plain else [first])])


def _is_compose(stage: Any) -> bool:
    """Return whether it is a Compose of torchvision, by name: importing torchvision takes seconds, and a pipeline may do without."""
    return type(stage).__name__ == "Compose" and type(stage).__module__.startswith("torchvision.transforms.")


def _chooses_mode(stage: Any) -> bool:
    """Return whether the first stage converts pictures to one mode, whatever theirs is."""
    while type(stage).__name__ in ("Compose", "Sequential", "Chain") and (slots := child_slots(stage)):
        stage = slots[0].get()
    return type(stage).__name__ in ("Grayscale", "RGB", "ConvertRGB")


def _builds_dataset(name: str, found: Any) -> bool:
    return name != "transform" and getattr(found, "__annotations__", {}).get("root") is not None


def _as_transform(found: Any, name: str) -> Any:
    if isinstance(found, (list, tuple)):
        return Chain(list(found))
    if isinstance(found, type) or not callable(found):
        raise PipelineError(
            f"The pipeline's {name} is {found!r}, which is not a transform.",
            hint="It must be a callable, a Compose, or a list of stages.",
        )
    return found


def _miss_labels(request: RunRequest, dataset: Any, model: LoadedModel) -> list[str]:
    """Return a note about a folder without labels in front of a classifier: often it is one class folder of several."""
    flat = type(dataset) is FileDataset and not dataset.has_labels and os.path.isdir(request.dataset)
    if not flat or model.num_classes is None:
        return []
    return [
        f"{request.dataset} has no class folders: its samples have no labels, and accuracy is not computed. "
        "If it is the folder of one class, pass the folder above it."
    ]


def _compare_width(model: LoadedModel, classes: list[str] | None) -> list[str]:
    """Refuse labels that the model has no output for; note outputs that no class stands for."""
    outputs = 2 if model.num_classes == 1 else model.num_classes
    if classes is not None and outputs is not None and len(classes) > outputs:
        raise ModelError(
            f"The dataset has {len(classes)} classes, but the model has {model.num_classes} output(s): labels from "
            f"{outputs} up ({', '.join(classes[outputs : outputs + 3])}…) can never be predicted.",
            hint="Check that the checkpoint belongs to this dataset.",
        )
    return compare_width(model, outputs, classes)


def compare_width(model: LoadedModel, outputs: int | None, classes: list[str] | None) -> list[str]:
    """Return what there is to say about a model with more outputs than the dataset has classes."""
    if classes is None or outputs is None or outputs <= max(len(classes), 2) or model.classes is not None:
        return []  # with class names of its own, the model says which output is which
    return [
        f"The model has {outputs} outputs and the dataset {len(classes)} classes: output 0 is taken for {classes[0]}, "
        "and so on. Check that the checkpoint belongs to this dataset."
    ]
