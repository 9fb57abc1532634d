"""Text as a pipeline: a sentence becomes words, the words subwords, the subwords numbers of one length, and a class.

    python pipelines/text_tokens.py
    audit trace text-tokens 3                 # the sentence, its words, its pieces, its numbers, its class
    audit run --dataset reviews.tsv --pipeline pipelines/text_tokens.py

Each step is a class with a name, so that each is a stage of its own. Nothing but `transform` on the dataset is needed
for that: the steps do not know that they are watched. `dataset` reads a file of lines `label<TAB>sentence`; without such a
file it takes the sentences below.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

import audit

CLASSES = ["negative", "positive"]
SENTENCES = [
    (0, "the plot was dull and the acting was painful"), (1, "a wonderful film with great acting"),
    (0, "boring, slow and far too long"), (1, "funny, warm and beautifully told"),
    (0, "i regret every minute of this painful mess"), (1, "the best film of the year"),
    (0, "a dull story told badly"), (1, "great story, great music, great fun"),
    (0, "the worst acting of the year"), (1, "i enjoyed every minute"),
    (0, "painfully slow and badly acted"), (1, "a beautiful and funny story"),
]  # fmt: skip
#: Pieces that words are cut into, longest first; letters catch the rest.
PIECES = [
    *("great", "paint", "beaut", "wonder", "pain", "dull", "slow", "best", "worst", "film", "acting", "story", "bore"),
    *("fun", "bad", "enjoy", "regret", "told", "ful", "ing", "ly", "ed", "the", "and", "of", "est"),
]
VOCABULARY = {
    piece: number for number, piece in enumerate(["<pad>", "<unknown>", *PIECES, *"abcdefghijklmnopqrstuvwxyz"])
}


class Words:
    """A sentence to its words, in lower case."""

    def __call__(self, sentence: str) -> list[str]:
        return re.findall(r"[a-z]+", sentence.lower())


class Subwords:
    """Each word to known pieces, the longest that fits first."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = sorted(pieces, key=lambda piece: -len(piece))

    def __call__(self, words: list[str]) -> list[str]:
        return [piece for word in words for piece in self._cut(word)]

    def _cut(self, word: str) -> list[str]:
        cut: list[str] = []
        while word:
            piece = next((piece for piece in self.pieces if word.startswith(piece)), word[0])
            cut.append(piece)
            word = word[len(piece) :]
        return cut


class Numbers:
    """Pieces to their numbers in the vocabulary."""

    def __call__(self, pieces: list[str]) -> torch.Tensor:
        return torch.tensor([VOCABULARY.get(piece, 1) for piece in pieces], dtype=torch.long)


class Pad:
    """As many numbers as the model wants: cut off, or filled up with 0."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        padded = torch.zeros(self.length, dtype=torch.long)
        padded[: min(len(numbers), self.length)] = numbers[: self.length]
        return padded


steps = Compose([Words(), Subwords(PIECES), Numbers(), Pad(24)])


class Sentences(Dataset[tuple[torch.Tensor, int]]):
    """Labelled sentences."""

    classes = CLASSES

    def __init__(self, rows: Sequence[tuple[int, str]]) -> None:
        self.rows = rows
        self.transform = steps

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label, sentence = self.rows[index]
        return self.transform(sentence), label


def dataset(root: str) -> Sentences:
    """The sentences of a file, or the ones above where there is no such file."""
    if not os.path.isfile(root):
        return Sentences(SENTENCES)
    with open(root, encoding="utf-8") as lines:
        pairs = [line.rstrip("\n").split("\t", 1) for line in lines if line.strip()]
    return Sentences([(int(label), sentence) for label, sentence in pairs])


class Classifier(nn.Module):
    """The mean of the pieces' vectors, and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(len(VOCABULARY), 16, mode="mean", padding_idx=0)
        self.head = nn.Linear(16, len(CLASSES))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Logits (N, 2) for numbers (N, 24)."""
        logits: torch.Tensor = self.head(self.embedding(numbers))
        return logits


def model() -> nn.Module:
    """The network that the weights of --model are loaded into."""
    return Classifier()


def main() -> None:
    """Train on the sentences, then show one of them on its way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--dataset", default="the sentences above")
    parser.add_argument("--store", default="lineage")
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(dataset(given.dataset), batch_size=4, shuffle=True)
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    with audit.record(given.store, name="text-tokens") as run:
        loader, network = run.loader(loader, split="train"), run.model(network)
        for _ in run.epochs(given.epochs):
            for numbers, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(numbers), labels).backward()
                optimizer.step()

    with audit.open(given.store) as store:
        store.trace(run.run_id, index=3).show()


if __name__ == "__main__":
    main()
