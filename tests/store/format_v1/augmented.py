"""A pipeline with random stages, as the runs of this store recorded it."""

import torch
from torchvision.transforms import v2

transform = v2.Compose(
    [
        v2.Grayscale(),
        v2.RandomApply([v2.RandomRotation(12)], p=0.5),
        v2.Resize(16),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)
