"""torchvision's detectors and segmentation networks, recognised from the names and shapes of their weights.

Their heads differ: a detector's class scores may be one tensor for each anchor or level, so that the number of classes is read
from one tensor whose meaning is known (`_HEADS`). As for classifiers, an architecture is accepted only if every name and
shape of a newly built one agrees.
"""

from __future__ import annotations

from functools import lru_cache

from audit.models.building import Architecture, Shapes, expected_shapes

#: The names of torchvision's modules with such networks.
_MODULES = ("detection", "segmentation")
#: By the beginning of an architecture's name: the tensor that holds the class scores, and how many rows each class has.
_HEADS: dict[str, tuple[str, int]] = {
    "fasterrcnn": ("roi_heads.box_predictor.cls_score.weight", 1),
    "maskrcnn": ("roi_heads.box_predictor.cls_score.weight", 1),
    "keypointrcnn": ("roi_heads.box_predictor.cls_score.weight", 1),
    "fcos": ("head.classification_head.cls_logits.weight", 1),
    "retinanet": ("head.classification_head.cls_logits.weight", 9),
    "ssd300": ("head.classification_head.module_list.0.weight", 4),
    "ssdlite320": ("head.classification_head.module_list.0.1.weight", 6),
    "deeplabv3": ("classifier.4.weight", 1),
    "fcn": ("classifier.4.weight", 1),
    "lraspp": ("classifier.low_classifier.weight", 1),
}
#: Tensors that tell members of a family apart before anything is built.
_TELLING_TENSORS: dict[str, tuple[str, ...]] = {
    "fasterrcnn": ("rpn.head.cls_logits.weight",),
    "maskrcnn": ("roi_heads.mask_predictor.mask_fcn_logits.weight",),
    "keypointrcnn": ("roi_heads.keypoint_predictor.kps_score_lowres.weight",),
    "fcos": ("head.regression_head.bbox_ctrness.weight",),
    "retinanet": ("head.regression_head.bbox_reg.weight",),
    "ssd300": ("backbone.scale_weight",),
    "ssdlite320": ("head.classification_head.module_list.0.1.weight",),
    "deeplabv3": ("classifier.0.project.0.weight",),
    "fcn": ("classifier.0.weight",),
    "lraspp": ("classifier.cbr.0.weight",),
}


@lru_cache(maxsize=1)
def task_names() -> tuple[str, ...]:
    """Return every detector and segmentation network of torchvision that can be recognised."""
    from torchvision import models

    found = [name for module in _MODULES for name in models.list_models(module=getattr(models, module))]
    return tuple(name for name in found if _family(name) is not None)


def _family(name: str) -> str | None:
    return next((family for family in _HEADS if name.startswith(family)), None)


def is_task_architecture(architecture: Architecture) -> bool:
    """Return whether it is one of torchvision's detectors or segmentation networks."""
    return architecture.library == "torchvision" and architecture.name in task_names()


def classes_in(name: str, shapes: Shapes) -> int | None:
    """Return the number of classes that the weights of this architecture have; None if they are not its weights."""
    family = _family(name)
    if family is None:
        return None
    head, each = _HEADS[family]
    shape = shapes.get(head)
    return shape[0] // each if shape and shape[0] % each == 0 else None


def with_arguments(architecture: Architecture, shapes: Shapes) -> Architecture:
    """Return the architecture with the auxiliary head that the weights have or do not have."""
    if _family(architecture.name) not in ("deeplabv3", "fcn"):
        return architecture
    has_auxiliary = any(name.startswith("aux_classifier.") for name in shapes)
    return Architecture(architecture.library, architecture.name, {**architecture.arguments, "aux_loss": has_auxiliary})


def task_candidates(shapes: Shapes) -> list[tuple[Architecture, int]]:
    """Return every such architecture, with its number of classes, whose names and shapes are exactly these."""
    found = []
    for name in task_names():
        num_classes = classes_in(name, shapes)
        if num_classes is None or not all(key in shapes for key in _TELLING_TENSORS[_family(name) or ""]):
            continue
        architecture = with_arguments(Architecture("torchvision", name), shapes)
        if expected_shapes(architecture, num_classes) == shapes:
            found.append((architecture, num_classes))
    return found
