"""The last steps of loading that all formats share: eval mode, device, preset, and a check of the class names."""

from __future__ import annotations

import torch
from torch import nn

from audit.errors import ModelError, UnknownArchitecture, UsageError
from audit.models.architectures import ArchitectureMatch, find_architecture, fit_named, recognise
from audit.models.building import Architecture, shapes_of
from audit.models.expected_input import find_published_input
from audit.models.loaded_model import LoadedModel
from audit.models.presets import preset_of


def complete_model(
    loaded: LoadedModel, architecture: Architecture | None, num_classes: int | None, *, device: str
) -> LoadedModel:
    """Return the model in eval mode on its device, with the preset of its architecture and its number of classes."""
    try:
        loaded.module = loaded.module.eval().to(device)
    except NotImplementedError:  # exported programs have no modes: they are what they were when exported
        loaded.module = loaded.module.to(device)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"The model cannot be moved to {device}: {reason}", hint="Use --device cpu.") from None
    loaded.num_classes = num_classes
    if architecture is not None:
        loaded.arch = architecture.qualified_name
        loaded.preset = preset_of(architecture)
    loaded.expected = loaded.expected or find_published_input(loaded.preset, loaded.arch)
    _check_class_count(loaded)
    return loaded


def _check_class_count(loaded: LoadedModel) -> None:
    names, outputs = loaded.classes, loaded.num_classes
    if names is None:
        return
    if outputs is None:
        loaded.num_classes = len(names)
    elif len(names) != outputs and (len(names), outputs) != (2, 1):
        loaded.classes = None
        loaded.notes.append(
            f"The file names {len(names)} classes but its model has {outputs} outputs. The names are not used, so the "
            "order of the dataset's classes could not be checked."
        )


def identify(module: nn.Module, arch: str | None) -> tuple[Architecture | None, int | None]:
    """Return the architecture and number of classes of a module with its own code; None if they are not clear."""
    shapes = shapes_of(module.state_dict())
    match: ArchitectureMatch
    try:
        match = fit_named(find_architecture(arch), shapes) if arch is not None else recognise(shapes)
    except UnknownArchitecture:
        if arch is not None and ":" not in arch:
            raise
        return None, None
    except ModelError:
        return None, None
    return match.architecture, match.num_classes
