"""Load a dict of tensors into a model, and report what was done to make it fit.

Wrappers add prefixes to parameter names (`module.` from DataParallel, `_orig_mod.` from torch.compile, `model.`
from Lightning). They are removed one at a time, until every name and shape fits:
loading is strict, nothing is skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from audit.errors import ModelError, UnknownArchitecture
from audit.models.architecture_table import names_digest, shapes_digest, table
from audit.models.architectures import ArchitectureMatch, find_architecture, fit_named, misfits, recognise
from audit.models.building import Architecture, build, build_hollow, expected_shapes, has_timm, shapes_of
from audit.texts import enumerate_some

StateDict = dict[str, torch.Tensor]

_WRAPPERS = ("module", "_orig_mod", "model", "net", "network", "backbone")
_NOT_WEIGHTS = re.compile(
    r"(n_averaged$|total_(ops|params)$)|(.*(loss|criterion|metric|accuracy|acc|auroc|f1|confusion))", re.I
)


@dataclass
class FittedModel:
    """A model with its weights loaded, and notes on how they were made to fit."""

    module: nn.Module
    architecture: Architecture | None
    num_classes: int | None
    notes: list[str] = field(default_factory=list)


def unwrap_states(state: StateDict) -> Iterator[tuple[StateDict, list[str]]]:
    """Yield the state unchanged, then with one wrapper's prefix after another removed, each with notes."""
    notes: list[str] = []
    yield state, []
    bare = {name: tensor for name, tensor in state.items() if not _NOT_WEIGHTS.match(name.split(".", 1)[0])}
    if len(bare) < len(state):
        dropped = [name for name in state if name not in bare]
        notes = [f"These entries are not part of the model and were left out: {enumerate_some(dropped, 3)}."]
        state = _with_metadata(bare, state)
        yield state, notes
    while state and (prefix := _common_wrapper(state)):
        state = _strip_prefix(state, prefix)
        notes = [*notes, f"The prefix {prefix!r} was removed from the parameter names."]
        yield state, notes


def _common_wrapper(state: StateDict) -> str | None:
    first = next(iter(state)).split(".", 1)[0]
    prefix = f"{first}."
    return prefix if first in _WRAPPERS and all(name.startswith(prefix) for name in state) else None


def _strip_prefix(state: StateDict, prefix: str) -> StateDict:
    return _with_metadata({name[len(prefix) :]: tensor for name, tensor in state.items()}, state, prefix)


def _with_metadata(bare: StateDict, original: StateDict, prefix: str = "") -> StateDict:
    """Keep the module versions that a state dict carries: some modules read old weights differently (MNASNet)."""
    metadata = getattr(original, "_metadata", None)
    if not isinstance(metadata, Mapping):
        return bare
    kept = _VersionedState(bare)
    kept._metadata = {name[len(prefix) :]: value for name, value in metadata.items() if name.startswith(prefix)}
    kept._metadata.setdefault("", metadata.get(prefix.rstrip("."), {}))
    return kept


class _VersionedState(dict[str, torch.Tensor]):
    """A dict that, like the OrderedDict of a state dict, can carry `_metadata`."""

    _metadata: dict[str, object]


def fit(
    state: StateDict,
    arch: str | None,
    hinted: str | None = None,
    builder: Callable[[], nn.Module] | None = None,
    *,
    what: str,
) -> FittedModel:
    """Return a model with these weights: from `arch`, or `builder`, or the file's own hint, or else recognised."""
    if arch is not None and ":" in arch:
        from audit.models.function import resolve

        return fit_builder(state, resolve(arch, option="--arch"), what)
    if arch is not None:
        return _fit_named(state, arch, what)
    if builder is not None:
        return fit_builder(state, builder, what)
    notes: list[str] = []
    if hinted is not None:
        try:
            return _fit_named(state, hinted, what)
        except ModelError as error:
            notes.append(f"The file names the architecture {hinted!r}, which could not be used: {error.message}")
    fitted = _fit_recognised(state, what)
    fitted.notes = [*notes, *fitted.notes]
    return fitted


def _fit_named(state: StateDict, arch: str, what: str) -> FittedModel:
    architecture, first_misfit = find_architecture(arch), None
    for peeled, notes in unwrap_states(state):
        shapes = shapes_of(peeled)
        match = fit_named(architecture, shapes)
        wrong = misfits(expected_shapes(match.architecture, match.num_classes), shapes)
        if not wrong:
            return _fill_module(match, peeled, notes)
        first_misfit = wrong  # the last one peeled is the nearest
    raise ModelError(
        f"The weights in {what} do not fit {architecture}: {first_misfit}.",
        hint="Omit --arch to let audit recognise the architecture, or pass another.",
    )


def _fit_recognised(state: StateDict, what: str) -> FittedModel:
    failure: UnknownArchitecture | None = None
    for peeled, notes in list(unwrap_states(state)):
        try:
            match = recognise(shapes_of(peeled), f"The weights in {what}")
        except UnknownArchitecture as error:
            failure = error
        else:
            return _fill_module(match, peeled, [*notes, *_twins(match, peeled)])
    assert failure is not None  # unwrapped_states yields at least the state itself
    raise failure


def _twins(match: ArchitectureMatch, state: StateDict) -> list[str]:
    """Return a note if timm's models fit as well: the network is the same, but its usual preprocessing differs."""
    if match.architecture.library == "timm" or not has_timm():
        return []
    shapes = shapes_of(state)
    names, length = names_digest(shapes), len(shapes)
    same = [
        row.name
        for row in table()
        if row.library == "timm" and (row.tensors, row.names) == (length, names)
        if shapes_digest(shapes, row.heads) == row.shapes
    ]
    if not same:
        return []
    return [
        f"The weights were loaded as torchvision's {match.architecture}; timm's {' and '.join(same[:3])} would fit as well, with other "
        f"preprocessing. If it was trained with timm, pass --arch timm/{same[0]}."
    ]


def _fill_module(match: ArchitectureMatch, state: StateDict, notes: list[str]) -> FittedModel:
    """Return the recognised model with the given weights, unchanged."""
    half = sorted({str(t.dtype)[6:] for t in state.values() if t.dtype in (torch.float16, torch.bfloat16)})
    if half:
        notes = [*notes, f"The {' and '.join(half)} weights were converted to float32, which is exact."]
        state = _with_metadata({n: t.float() if t.is_floating_point() else t for n, t in state.items()}, state)
    if match.architecture.name in ("googlenet", "inception_v3") and match.architecture.library == "torchvision":
        notes = [
            *notes,
            f"{match.architecture} was built with transform_input=False; weights fine-tuned from torchvision's "
            "ImageNet ones expect True, which the file does not store. If these weights were fine-tuned so, build the model with --arch FILE.py:function.",
        ]
    state = _with_metadata({name: _align_memory(tensor) for name, tensor in state.items()}, state)
    module = build_hollow(match.architecture, match.num_classes)
    _load_strictly(module, state, assign=True)
    if any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
        module = build(match.architecture, match.num_classes)  # a buffer that no state dict holds: build it for real
        _load_strictly(module, state, assign=False)
    return FittedModel(module, match.architecture, match.num_classes, [*notes, *_not_finite(state)])


def _align_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor aligned as torch allocates it: unaligned weights can change the last bits of a result."""
    return tensor if tensor.is_contiguous() and tensor.data_ptr() % 64 == 0 else tensor.clone()


def fit_builder(state: StateDict, builder: Callable[..., nn.Module], what: str) -> FittedModel:
    """Return the model that the user's code builds, with these weights."""
    from audit.models.function import build_module

    module, wrong = build_module(builder, state), ""
    wanted = shapes_of(module.state_dict())
    for peeled, notes in unwrap_states(state):
        shapes = shapes_of(peeled)
        wrong = misfits(wanted, shapes)
        if not wrong:
            _load_strictly(module, peeled, assign=False)
            return FittedModel(module, None, None, [*notes, *_not_finite(peeled)])
    name = getattr(builder, "__qualname__", type(builder).__name__)
    raise ModelError(
        f"The weights in {what} do not fit the {type(module).__name__} that {name} builds: {wrong}.",
        hint="Build the model exactly as it was built when the weights were saved, its number of classes included.",
    )


def _load_strictly(module: nn.Module, state: StateDict, *, assign: bool) -> None:
    own = module.state_dict()
    complete = _VersionedState(state)
    # Names and shapes were compared already; only counters may be absent, and a file without versions is a current one.
    complete._metadata = dict(getattr(state, "_metadata", None) or getattr(own, "_metadata", {}))
    for name in own.keys() - state.keys():
        if name.endswith(".num_batches_tracked"):
            complete[name] = torch.zeros((), dtype=torch.long)
    try:
        module.load_state_dict(complete, strict=True, assign=assign)
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(
            f"The weights could not be put into a {type(module).__name__}: {' '.join(str(error).split())[:300]}",
            hint="Check that they were saved from the same model.",
        ) from error


def _not_finite(state: StateDict) -> list[str]:
    bad = [n for n, t in state.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if not bad:
        return []
    return [f"The weights hold NaN or infinity, in {enumerate_some(bad, 3)}: its predictions will not be useful."]
