"""Small real models and files that the tests of this folder share."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

torch.set_num_threads(1)


def _shaken(name: str, num_classes: int = 3, **arguments: object) -> nn.Module:
    """A torchvision model whose buffers are not the defaults either, so that loading must restore them."""
    torch.manual_seed(random.Random(name).randrange(2**31))
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **arguments).eval()
    for key, buffer in model.named_buffers():
        if buffer.is_floating_point() and "running" in key:
            buffer.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="session")
def make() -> Callable[..., nn.Module]:
    """Makes a torchvision model: name, number of classes, arguments."""
    return _shaken


@pytest.fixture(scope="session")
def resnet() -> nn.Module:
    return _shaken("resnet18")


@pytest.fixture(scope="session")
def mobilenet() -> nn.Module:
    return _shaken("mobilenet_v3_small")


@pytest.fixture(scope="session")
def weights(mobilenet: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the bare state dict of `mobilenet`."""
    path = tmp_path_factory.mktemp("weights") / "weights.pt"
    torch.save(mobilenet.state_dict(), path)
    return path
