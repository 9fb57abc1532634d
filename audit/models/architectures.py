"""Find the architecture of some weights: by name if one is given, else by parameter names and shapes.

Recognition never guesses: an architecture is accepted only if every name and shape of a newly
built one agrees. If several agree, the weights cannot decide (they may differ in padding or scaling), so they
are listed and the user is asked.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace

from audit.errors import MissingExtra, ModelError, UnknownArchitecture
from audit.models.architecture_table import (
    WITHOUT_AUXILIARY,
    ArchitectureSignature,
    compute,
    is_current,
    known_architectures,
    list_timm_names,
    names_digest,
    shapes_digest,
    table,
    tops_of,
)
from audit.models.building import (
    SENTINEL,
    Architecture,
    Shapes,
    expected_shapes,
    has_timm,
    timm_names,
    torchvision_names,
)
from audit.models.task_architectures import (
    classes_in,
    is_task_architecture,
    task_candidates,
    task_names,
    with_arguments,
)
from audit.texts import enumerate_some

_ASK = "Pass the model's name with --arch NAME, or the code that builds it with --arch FILE.py:function."
#: Kinds of models that are not classifiers, and that are recognised all the same.
_TASKS = ("a detection model", "a segmentation model")
_VIT_SIZE = 224  # the picture size for which torchvision's vision transformers are built by default


@dataclass(frozen=True)
class ArchitectureMatch:
    """An architecture that fits, with the number of classes that its head has in these weights."""

    architecture: Architecture
    num_classes: int


def find_architecture(name: str) -> Architecture:
    """Return the architecture of that name, torchvision's before timm's; raise an error with the nearest names."""
    if name in torchvision_names() or name in task_names():
        return Architecture("torchvision", name)
    if name.startswith("timm/") and not has_timm():
        raise MissingExtra("timm", f"The architecture {name}", "timm")
    bare = name.removeprefix("timm/").split(".", 1)[0]
    if bare in list_timm_names():
        return Architecture("timm", bare)
    near = difflib.get_close_matches(
        name.lower(), sorted({*torchvision_names(), *task_names(), *list_timm_names()}), n=3, cutoff=0.5
    )
    hint = f"Did you mean {', '.join(near)}?" if near else "torchvision.models.list_models() lists the names."
    if not has_timm():
        hint += " For timm's architectures: pip install 'audit-lineage[timm]'"
    raise UnknownArchitecture(f"There is no architecture called {name!r}.", hint=hint)


def fit_named(architecture: Architecture, shapes: Shapes) -> ArchitectureMatch:
    """Return the named architecture, with the arguments and the number of classes that fit these weights."""
    if is_task_architecture(architecture):
        return ArchitectureMatch(with_arguments(architecture, shapes), classes_in(architecture.name, shapes) or 91)
    architecture = adapt_architecture(architecture, shapes)
    return ArchitectureMatch(architecture, _classes_in(compute(architecture).heads, shapes) or 1000)


def adapt_architecture(architecture: Architecture, shapes: Shapes) -> Architecture:
    """Return the architecture with arguments that follow from the weights: auxiliary heads, a transformer's picture size."""
    if architecture.library != "torchvision":
        return architecture
    arguments = dict(architecture.arguments)
    if architecture.name in WITHOUT_AUXILIARY:
        arguments["aux_logits"] = any(name.lower().startswith("aux") for name in shapes)
    if architecture.name.startswith("vit_") and (size := _vit_size(shapes)) not in (None, _VIT_SIZE):
        arguments["image_size"] = size
    return replace(architecture, arguments=arguments)


def _vit_size(shapes: Shapes) -> int | None:
    position, patch = shapes.get("encoder.pos_embedding"), shapes.get("conv_proj.weight")
    if position is None or patch is None or len(position) != 3 or len(patch) != 4 or position[1] < 2:
        return None
    side = math.isqrt(position[1] - 1)
    return side * patch[-1] if side * side == position[1] - 1 else None


def recognise(shapes: Shapes, what: str = "The weights") -> ArchitectureMatch:
    """Return the architecture with these names and shapes; raise `UnknownArchitecture` if there is none or several."""
    found = candidates(shapes)
    if not found:
        raise _unknown_error(shapes, what)
    if len(found) > 1:
        names = [match.architecture.name for match in found]
        shown = enumerate_some(names, 12)
        raise UnknownArchitecture(f"{what} fit {len(found)} architectures equally: {shown}.", hint=_ASK)
    return found[0]


def candidates(shapes: Shapes) -> list[ArchitectureMatch]:
    """Return every architecture that fits: torchvision's, or if none does, timm's."""
    if _other_task(shapes) in _TASKS:
        return [ArchitectureMatch(architecture, number) for architecture, number in task_candidates(shapes)]
    for library in ("torchvision", "timm"):
        if library == "timm" and not has_timm():
            continue
        rows = [row for row in table() if row.library == library]
        found = [match for row in rows if (match := _verify(row, shapes))]
        if found or (found := [match for row in _newer_signatures(library) if (match := _verify(row, shapes))]):
            return found
    return []


def _newer_signatures(library: str) -> list[ArchitectureSignature]:
    """Return the signatures of architectures that the installed library has but the table does not."""
    if is_current(library):
        return []  # without importing it, which takes seconds
    covered = known_architectures()
    names = torchvision_names() if library == "torchvision" else timm_names()
    if len(set(names) - {name for owner, name in covered if owner == library}) > 200:
        return []  # another library altogether: building all of it would take minutes
    rows = []
    for name in names:
        if (library, name) in covered:
            continue
        try:
            rows.append(compute(Architecture(library, name)))
        except Exception:
            continue  # cannot be built here, so cannot be loaded here either
    return rows


def _verify(row: ArchitectureSignature, shapes: Shapes) -> ArchitectureMatch | None:
    """Compare with the table's fingerprint, and then with the model itself, because the table may be outdated."""
    if row.tensors != len(shapes) or row.names != names_digest(shapes):
        return None
    architecture, compared = row.architecture, shapes
    if row.library == "torchvision":
        architecture = adapt_architecture(architecture, shapes)
        compared = _standard_size(architecture, shapes)
    num_classes = _classes_in(row.heads, shapes)
    if num_classes is None or shapes_digest(compared, row.heads) != row.shapes:
        return None
    built = expected_shapes(architecture, num_classes)
    return ArchitectureMatch(architecture, num_classes) if built == shapes else None


def _standard_size(architecture: Architecture, shapes: Shapes) -> Shapes:
    """Return the shapes of the transformer for the standard picture size, which the table uses."""
    if "image_size" not in architecture.arguments:
        return shapes
    patches = (_VIT_SIZE // shapes["conv_proj.weight"][-1]) ** 2 + 1
    one, _, width = shapes["encoder.pos_embedding"]
    return {**shapes, "encoder.pos_embedding": (one, patches, width)}


def _classes_in(heads: tuple[str, ...], shapes: Shapes) -> int | None:
    sizes = {shapes[name][0] for name in heads if shapes.get(name)}
    return sizes.pop() if len(sizes) == 1 else None


def misfits(wanted: Shapes, given: Shapes, limit: int = 3) -> str:
    """Return the first names that are missing, unexpected or of another shape; an empty text if all agree."""
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    other = [
        f"{name} is {given[name]}, not {wanted[name]}"
        for name in wanted
        if name in given and given[name] != wanted[name]
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("of another shape", other))
    return "; ".join(f"{what}: {enumerate_some(names, limit)}" for what, names in groups if names)


def _unknown_error(shapes: Shapes, what: str) -> ModelError:
    other = _other_task(shapes)
    if other in _TASKS:
        return UnknownArchitecture(f"{what} are those of {other}, but of none of torchvision's.", hint=_ASK)
    if other is not None:
        return UnknownArchitecture(
            f"{what} are those of {other}, which is not a classifier: it does not predict one label per picture.",
            hint="Pass a model that returns one row of logits per picture.",
        )
    near = nearest_architecture(shapes)
    message = f"{what} ({len(shapes)} tensors, {_first_shapes(shapes)}) fit no known architecture"
    if near is None:
        return UnknownArchitecture(f"{message}, and are not similar to any.", hint=_ASK)
    architecture, num_classes = near
    built = expected_shapes(architecture, num_classes)
    return UnknownArchitecture(f"{message}. Nearest is {architecture}, but {misfits(built, shapes)}.", hint=_ASK)


def _first_shapes(shapes: Shapes) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:2])


def nearest_architecture(shapes: Shapes) -> tuple[Architecture, int] | None:
    """Return the architecture that shares most names and shapes, among the few with similar top-level names."""
    tops, scored = set(tops_of(shapes)), []
    for row in table():
        if row.library == "timm" and not has_timm():
            continue
        alike = len(tops & set(row.tops)) / len(tops | set(row.tops))
        size = min(row.tensors, len(shapes)) / max(row.tensors, len(shapes))
        scored.append((alike * size, row))
    scored.sort(key=lambda pair: -pair[0])
    best: tuple[float, Architecture, int] | None = None
    for first_sight, row in scored[:6]:
        if first_sight < 0.2:
            break
        num_classes = _classes_in(row.heads, shapes) or SENTINEL
        try:
            built = expected_shapes(row.architecture, num_classes)
        except Exception:
            continue  # in the table, but not in the installed version
        shared = len(built.items() & shapes.items()) / len(built.keys() | shapes.keys())
        if best is None or shared > best[0]:
            best = (shared, row.architecture, 1000 if num_classes == SENTINEL else num_classes)
    return best[1:] if best and best[0] > 0.05 else None


def _other_task(shapes: Shapes) -> str | None:
    """Return the kind of model that certain names indicate, if it does not classify pictures."""
    names = list(shapes)
    if any(name.startswith(("rpn.", "roi_heads.", "head.classification_head.")) for name in names):
        return "a detection model"
    heads = ("classifier.4.weight", "classifier.low_classifier.weight")
    if any(name.startswith("backbone.") for name in names) and any(len(shapes.get(head, ())) == 4 for head in heads):
        return "a segmentation model"
    if any(name.endswith((".zero_point", "._packed_params._packed_params", "._packed_params.dtype")) for name in names):
        return "a quantized model"
    if any(len(shape) == 5 for shape in shapes.values()):
        return "a video or volume model (its convolutions are three-dimensional)"
    return None
