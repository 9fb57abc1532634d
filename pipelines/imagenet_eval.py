"""Evaluate an ImageNet classifier as torchvision does, and record every picture on its way.

    audit run --dataset imagenet/val --model resnet18.pth --pipeline pipelines/imagenet_eval.py
    python pipelines/imagenet_eval.py --dataset imagenet/val --model resnet18.pth

Both do the same: the first leaves the loop to audit, the second is a loop of your own with three lines added to it.
`imagenet/val` is a folder of class folders. Their names in sorted order must be the order of the classes that the model
was trained on; for ImageNet's n01440764 … n15075141 they are.

Without arguments it runs on twenty pictures of fixtures/digits and on weights of chance: a test that all is in place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import audit

HERE = Path(__file__).resolve().parent

# The steps of ResNet18_Weights.IMAGENET1K_V1.transforms(), written out, so that each can be seen and changed.
transform = v2.Compose(
    [
        v2.RGB(),
        v2.Resize(256, antialias=True),
        v2.CenterCrop(224),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)


def model(classes: int = 1000) -> nn.Module:
    """The network that the weights of --model are loaded into."""
    return models.resnet18(num_classes=classes)


def main() -> None:
    """The same evaluation as a loop of one's own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--dataset", default=str(HERE.parent / "fixtures" / "digits" / "test"))
    parser.add_argument("--model", help="a state dict for resnet18; else weights of chance")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--store", default="lineage")
    given = parser.parse_args()

    folder = ImageFolder(given.dataset, transform=transform)
    torch.manual_seed(0)
    network = model(classes=1000 if given.model else len(folder.classes))
    if given.model:
        network.load_state_dict(torch.load(given.model, weights_only=True))
    network.eval()

    evenly = range(0, len(folder), max(1, len(folder) // given.limit))
    loader = DataLoader(Subset(folder, list(evenly)[: given.limit]), batch_size=given.batch_size)
    with audit.record(given.store, name="imagenet-eval") as run, torch.inference_mode():
        loader = run.loader(loader, split="val")
        network = run.model(network)
        for pictures, _ in loader:
            network(pictures)

    with audit.open(given.store) as store:
        row = store.run(run.run_id)
        print(f"{row.samples} pictures, {row.wrong} wrong; one of them, from its file to its prediction:")
        store.trace(run.run_id, index=0).show()


if __name__ == "__main__":
    main()
