"""Models of transformers, called with one tensor of samples and giving what is graded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Boxes below this score are left out, as torchvision's detectors do it.
_LEAST_SCORE = 0.05


class HuggingFaceModule(nn.Module):
    """A model of transformers and the processor that goes with it."""

    #: What its output means, where that is known from the architecture.
    output: str | None = None

    def __init__(self, model: Any, processor: Any = None) -> None:
        super().__init__()
        self.model = model
        self.processor = processor


class ImageClassifier(HuggingFaceModule):
    """Gives the logits of pictures, and whatever else the model returns."""

    def forward(self, pictures: torch.Tensor) -> Any:
        return self.model(pixel_values=pictures)


class TextClassifier(HuggingFaceModule):
    """Gives the logits of texts as token numbers (N, T), and whatever else the model returns."""

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(input_ids=tokens)


class TokenClassifier(HuggingFaceModule):
    """Gives the scores (N, T, C) of each token of texts as token numbers (N, T)."""

    output = "tokens"

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(input_ids=tokens).logits


class Segmenter(HuggingFaceModule):
    """Gives the scores of each pixel, at the size of the picture as the processor's own last step does it."""

    def forward(self, pictures: torch.Tensor) -> Any:
        scores = self.model(pixel_values=pictures).logits
        return functional.interpolate(scores, size=pictures.shape[-2:], mode="bilinear", align_corners=False)


class ObjectDetector(HuggingFaceModule):
    """Gives boxes in pixels of the pictures, as the processor's own last step does it."""

    def forward(self, pictures: torch.Tensor) -> Any:
        sizes = [tuple(pictures.shape[-2:])] * len(pictures)
        output = self.model(pixel_values=pictures)
        return self.processor.post_process_object_detection(output, threshold=_LEAST_SCORE, target_sizes=sizes)


#: By what the name of an architecture says after `For`.
MODULES: dict[str, type[HuggingFaceModule]] = {
    "ImageClassification": ImageClassifier,
    "SemanticSegmentation": Segmenter,
    "ObjectDetection": ObjectDetector,
    "SequenceClassification": TextClassifier,
    "TokenClassification": TokenClassifier,
}
