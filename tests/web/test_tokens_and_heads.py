"""Runs of texts: the tokens of a sequence and every graded output are on the page of a sample, in a notebook and a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

import audit
from audit.report.trace_text import trace_tree
from audit.web.app import build

CODE = """
import torch
from torch import nn

TEXTS = ["the harbour was quiet", "a sharp wind came down", "she wrote the letter twice"]
WORDS = sorted({word for text in TEXTS for word in text.split()})

def numbers(text):
    found = [WORDS.index(word) for word in text.split()][:4]
    return torch.tensor(found)

class Texts(torch.utils.data.Dataset):
    def __len__(self): return len(TEXTS)
    def __getitem__(self, index):
        x = numbers(TEXTS[index])
        return x, torch.cat([x[1:], torch.tensor([-100])])

class Moods(Texts):
    def __getitem__(self, index): return numbers(TEXTS[index]), {"mood": index % 2, "length": float(len(TEXTS[index]))}

class Next(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(len(WORDS), len(WORDS))
    def forward(self, x): return 4 * self.words(x)

class Both(Next):
    def forward(self, x):
        seen = super().forward(x).mean(1)
        return {"mood": seen[:, :2], "length": seen[:, 2]}

def texts(): return Texts()
def moods(): return Moods()
def next_words(): return Next().eval()
def both(): return Both().eval()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    code = folder / "texts_and_heads.py"
    code.write_text(CODE)
    common: dict[str, Any] = {"store": folder / "lineage", "workers": 0, "trust": True}
    audit.run(f"{code}:texts", model=f"{code}:next_words", output="tokens", name="tokens", **common)
    output = {"mood": "logits", "length": "regression"}
    audit.run(f"{code}:moods", model=f"{code}:both", output=output, name="heads", **common)
    return folder / "lineage"


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    with TestClient(build(str(place)), base_url="http://localhost") as opened:
        yield opened


def printed(place: Path, run: str, index: int) -> str:
    console = Console(record=True, width=160)
    with audit.open(place) as store:
        console.print(trace_tree(store.trace(run, index=index)))
    return console.export_text()


def test_the_tokens_of_a_sequence(client: TestClient, place: Path) -> None:
    with audit.open(place) as store:
        rows = store.sql("SELECT * FROM tokens WHERE index = 1 ORDER BY position").dicts()
        html = str(store.trace("tokens", index=1)._repr_html_())
    found = client.get("/run/tokens/trace/1?format=json").json()
    assert [one["target"] for one in found["tokens"]] == [row["target"] for row in rows]
    assert found["sequence"]["graded"] == len(rows) == 3
    page = client.get("/run/tokens/trace/1").text
    for row in rows:
        said = f"position {row['position']}: wanted {row['target']}, predicted {row['predicted']}"
        assert said in page
        assert said in html
    right = sum(row["correct"] for row in rows)
    assert page.count(f"{right} of 3 tokens right") == 2, "at the top, and above the tokens"
    assert "audit did not record the text that a number stands for" in page
    text = printed(place, "tokens", 1)
    assert f"{right} of 3 right" in text
    worst = max(rows, key=lambda row: row["loss"])
    assert f"position {worst['position']} wanted {worst['target']}" in text
    assert "call.numbers numbers" in text, "the path of a stage and its name are apart"


def test_worst_sequences_lead_to_their_samples(client: TestClient) -> None:
    panel = client.get("/run/tokens/panel/counts").text
    assert "Worst sequences" in panel
    assert "/trace/1" in panel


def test_every_graded_output_is_shown(client: TestClient, place: Path) -> None:
    found = client.get("/run/heads/trace/1?format=json").json()
    assert (found["label"], found["prediction"]["head"]) == (1, "mood")
    assert [one["is_label"] for one in found["bars"] if one["number"] == 1] == [True]
    assert found["other_predictions"][0]["head"] == "length"
    page = client.get("/run/heads/trace/1").text
    assert "All predictions" in page
    assert "length" in page
    panel = client.get("/run/heads/panel/counts").text
    assert "Graded outputs" in panel
    text = printed(place, "heads", 1)
    assert "Both mood, call 0" in text
    assert text.count("←") == 1
