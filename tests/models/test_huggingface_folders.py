"""Folders of Hugging Face's `save_pretrained`: model, processor as stages, class names, and no code of their own."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import audit
from audit.engines.local import record_locally
from audit.engines.request import RunRequest
from audit.errors import ModelError, NeedsTrust
from audit.models import load
from audit.models.presets import flatten_preset

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CLASSES = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}


def noise(seed: int, height: int = 20, width: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def classifier(folder: Path, **processor: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL, **CLASSES)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}, **processor).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("processor", "stages"),
    [
        ({}, ["Resize", "RescaleAndNormalize"]),
        ({"do_normalize": False}, ["Resize", "Rescale"]),
        ({"do_rescale": False, "do_normalize": False}, ["Resize"]),
    ],
)
def test_the_processor_is_laid_out_as_stages(tmp_path: Path, processor: Any, stages: list[str]) -> None:
    loaded = load(str(classifier(tmp_path / "vit", **processor)))
    assert (loaded.arch, loaded.classes, loaded.num_classes) == ("ViTForImageClassification", ["cat", "dog"], 2)
    assert not loaded.module.training
    found = flatten_preset(loaded.preset)
    assert [name for name, _ in found] == stages
    whole = transformers.AutoImageProcessor.from_pretrained(tmp_path / "vit")
    value: Any = noise(7)
    expected = whole(value, return_tensors="pt")["pixel_values"][0]
    for _, stage in found:
        value = stage(value)
    assert torch.equal(value, expected)


def test_a_run_gives_what_transformers_gives(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "vit")
    for number in range(4):
        place = tmp_path / "data" / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        noise(number, 20 + number).save(place / f"{number}.png")
    done = record_locally(
        RunRequest(dataset=str(tmp_path / "data"), model=str(folder), store=str(tmp_path / "lineage"), workers=0)
    )
    assert (done.status, done.classes) == ("complete", ["cat", "dog"])
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    store = audit.open(tmp_path / "lineage")
    for source, logits in store.sql("SELECT source, logits FROM lineage").fetchall():
        with Image.open(tmp_path / "data" / source) as picture, torch.no_grad():
            expected = model(**processor(picture, return_tensors="pt")).logits[0]
        assert torch.allclose(torch.tensor(logits), expected, atol=1e-6)
    (parameters,) = store.sql("SELECT parameters FROM stages WHERE name = 'Resize'").fetchall()[0]
    assert json.loads(parameters)["size"] == {"height": 16, "width": 16}
    replayed = store.replay()
    assert (replayed.checked, replayed.identical) == (4, 4)


def test_hidden_states_are_outputs_of_the_model(tmp_path: Path) -> None:
    """The folder's config asks for them; what the model calls logits is not doubted, whatever their values."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=16, patch_size=8, output_hidden_states=True, **SMALL, **CLASSES)
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.2, 0.4]))
    model.save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "dog").mkdir()
    for number in range(8):
        noise(number).save(tmp_path / "data" / ("cat", "dog")[number % 2] / f"{number}.png")
    done = audit.run(
        tmp_path / "data", model=tmp_path / "vit", store=tmp_path / "lineage", workers=0, batch_size=5, capture="full"
    )
    assert (done.status, done.output, done.warnings) == ("complete", "logits", [])
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "vit")
    with audit.open(tmp_path / "lineage") as store:
        trace = store.trace(index=6)
        given = processor(Image.open(tmp_path / "data" / str(trace.sample["source"])), return_tensors="pt")
        with torch.no_grad():
            expected = model(**given).hidden_states[1][0]
        torch.testing.assert_close(trace.output("hidden_states.1"), expected)


def test_other_tasks(tmp_path: Path) -> None:
    pictures = torch.rand(2, 3, 32, 32)
    config = transformers.SegformerConfig(
        num_encoder_blocks=1, depths=[1], sr_ratios=[1], hidden_sizes=[8], num_attention_heads=[1], patch_sizes=[3],
        strides=[2], mlp_ratios=[1], decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    transformers.SegformerForSemanticSegmentation(config).save_pretrained(tmp_path / "masks")
    assert load(str(tmp_path / "masks")).module(pictures).shape == (2, 3, 32, 32)
    boxed = transformers.YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=5, **SMALL, **CLASSES)
    transformers.YolosForObjectDetection(boxed).save_pretrained(tmp_path / "boxes")
    transformers.YolosImageProcessor().save_pretrained(tmp_path / "boxes")
    found = load(str(tmp_path / "boxes")).module(pictures)
    assert len(found) == 2
    assert found[0].keys() == {"boxes", "labels", "scores"}


def test_a_folder_with_code_of_its_own_needs_trust(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "mine.Config"}}))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(NeedsTrust, match="auto_map"):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


_CODE = """
import transformers


class Config(transformers.ViTConfig):
    model_type = "mine"


class Model(transformers.ViTForImageClassification):
    config_class = Config
"""


def test_the_digest_of_a_trusted_folder_covers_its_code(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    mine = {"AutoConfig": "mine.Config", "AutoModelForImageClassification": "mine.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": mine, "model_type": "mine"}))
    (folder / "mine.py").write_text(_CODE)
    before = load(str(folder), trust=True).digest
    assert load(str(folder), trust=True).digest == before
    (folder / "mine.py").write_text(f"{_CODE}\n# changed\n")
    assert load(str(folder), trust=True).digest != before


def test_a_backbone_that_a_folder_names_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a user's machine, which is not offline: the attempt itself would show."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: pytest.fail(f"it contacts {host}"))
    folder = classifier(tmp_path / "detr")
    named = {"backbone": "somebody/resnet", "use_timm_backbone": False, "use_pretrained_backbone": True}
    config = {"architectures": ["DetrForObjectDetection"], "model_type": "detr", "num_labels": 2, **named}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot load"):
        load(str(folder))
    assert constants.HF_HUB_OFFLINE is False, "what the user's own code may do is as it was"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "cannot load"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not a configuration"),
        (lambda folder: (folder / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}'), "cannot run"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "is an adapter"),
    ],
)
def test_bad_folders_are_a_sentence(tmp_path: Path, change: Any, message: str) -> None:
    folder = classifier(tmp_path / "vit")
    change(folder)
    with pytest.raises(ModelError, match=message):
        load(str(folder))


def test_weights_that_would_be_random_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = classifier(tmp_path / "vit")
    weights = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in weights.items() if "classifier" not in name}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="lacks weights"):
        load(str(folder))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "anna", "lives", "in", "rome", "good", "bad", "film"]


def bert(folder: Path, kind: str) -> Path:
    """Save a small model of texts with its tokenizer."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **SMALL, **CLASSES)
    getattr(transformers, f"BertFor{kind}")(config).save_pretrained(folder)
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def test_texts_are_classified_with_the_tokenizer_as_a_stage(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "SequenceClassification")
    (tmp_path / "texts.csv").write_text("text,label\ngood film,cat\nbad,dog\nanna lives in rome,cat\n")
    store = str(tmp_path / "lineage")
    done = record_locally(RunRequest(dataset=str(tmp_path / "texts.csv"), model=str(folder), store=store, workers=0))
    assert (done.status, done.samples, done.task) == ("complete", 3, "classification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    with audit.open(store) as opened:
        assert [row[0] for row in opened.sql("SELECT name FROM stages ORDER BY stage").fetchall()][-1] == "TokenizeText"
        found = opened.sql("SELECT logits FROM predictions ORDER BY index").fetchall()
        assert opened.replay().identical == 3
    for (logits,), text in zip(found, ["good film", "bad", "anna lives in rome"], strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).logits[0]
        assert torch.allclose(torch.tensor(logits), expected, atol=1e-6)


def test_tokens_are_classified_with_the_tokenizer_as_a_stage(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "TokenClassification")
    (tmp_path / "texts.txt").write_text("anna lives in rome\ngood film\n")
    store = str(tmp_path / "lineage")
    done = record_locally(RunRequest(dataset=str(tmp_path / "texts.txt"), model=str(folder), store=store, workers=0))
    assert (done.status, done.samples, done.output, done.task) == ("complete", 2, "tokens", "tokens")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForTokenClassification.from_pretrained(folder).eval()
    with audit.open(store) as opened:
        found = opened.sql("SELECT index, position, predicted, target, correct FROM tokens ORDER BY ALL").fetchall()
        assert opened.replay().identical == 2
    expected = []
    for index, text in enumerate(["anna lives in rome", "good film"]):
        with torch.no_grad():
            best = model(**tokenizer(text, return_tensors="pt")).logits[0].argmax(1).tolist()
        expected += [(index, position, number, None, None) for position, number in enumerate(best)]
    assert found == expected


def test_tokens_are_graded_where_the_dataset_has_their_targets(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert", "TokenClassification")
    (tmp_path / "data.py").write_text(
        "import torch\nclass Tagged:\n    def __len__(self): return 2\n"
        "    def __getitem__(self, n): return torch.tensor([2, 5, 6 + n, 3]), torch.tensor([-100, 1, 0, -100])\n"
        "def dataset(root): return Tagged()\n"
    )
    store = str(tmp_path / "lineage")
    request = RunRequest(
        dataset=str(tmp_path), model=str(folder), store=store, workers=0, pipeline=str(tmp_path / "data.py")
    )
    done = record_locally(request)
    assert done.status == "complete"
    with audit.open(store) as opened:
        found = opened.sql("SELECT index, position, target FROM tokens ORDER BY ALL").fetchall()
    assert found == [(0, 1, 1), (0, 2, 0), (1, 1, 1), (1, 2, 0)]
