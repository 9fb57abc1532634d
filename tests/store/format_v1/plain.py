"""The pipeline of fixtures/digits, and the smallest complete example of one.

    audit run --dataset fixtures/digits/test --model fixtures/digits.pt --pipeline pipelines/digits.py

A pipeline file needs one of two names:

    transform   what happens to each picture that --dataset loads: a Compose, a list of stages, or one callable;
                each stage of a Compose is recorded on its own
    dataset     a function `dataset(root)` that builds the whole Dataset, for data which no built-in kind can read

and may have a third:

    model       a function without arguments that builds the network, into which the weights of --model are loaded

To start your own: copy this file, put the transform of your validation loop in the place of this one, and let
`model` build your network. Name functions and classes rather than using lambdas: worker processes must import them.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision.transforms import v2

transform = v2.Compose(
    [
        v2.Grayscale(),
        v2.Resize(16, antialias=True),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.306], std=[0.318]),  # of the training split
    ]
)


class DigitsNet(nn.Module):
    """Two convolutions and two linear layers, for one channel of 16×16."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(24 * 4 * 4, 48)
        self.fc2 = nn.Linear(48, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (N, classes) for pictures of shape (N, 1, 16, 16)."""
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(x.flatten(1)))
        logits: torch.Tensor = self.fc2(x)
        return logits


def model() -> nn.Module:
    """The network that fixtures/digits.pt holds the weights of."""
    return DigitsNet()
