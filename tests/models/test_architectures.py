"""Architectures are recognised from names and shapes alone, quickly, and never guessed."""

from __future__ import annotations

import sys
import time

import pytest
import torch
from torchvision import models

from audit.errors import UnknownArchitecture
from audit.models.architecture_table import compute, is_current, known_architectures, list_timm_names, table
from audit.models.architectures import find_architecture, misfits, recognise
from audit.models.building import (
    Architecture,
    build,
    build_hollow,
    expected_shapes,
    has_timm,
    shapes_of,
    timm_names,
    torchvision_names,
)

VARIANTS = [
    "resnet18",
    "resnet50",
    "wide_resnet50_2",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "alexnet",
    "vgg11",
    "vgg11_bn",
    "squeezenet1_0",
    "squeezenet1_1",
    "densenet121",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mnasnet0_5",
    "shufflenet_v2_x0_5",
    "efficientnet_b0",
    "efficientnet_b1",
    "regnet_y_400mf",
    "regnet_x_800mf",
    "convnext_tiny",
    "swin_t",
    "swin_v2_t",
    "vit_b_16",
    "vit_b_32",
    "maxvit_t",
    "inception_v3",
    "googlenet",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_recognised_with_any_number_of_classes(name: str) -> None:
    shapes = expected_shapes(Architecture("torchvision", name), 7)
    match = recognise(shapes)
    assert (match.architecture.name, match.num_classes) == (name, 7)


def test_table_covers_the_installed_torchvision() -> None:
    assert {("torchvision", name) for name in torchvision_names()} <= known_architectures()


@pytest.mark.parametrize("name", ["resnet18", "alexnet", "mnasnet1_0", "regnet_y_400mf", "swin_t"])
def test_table_is_what_the_library_builds(name: str) -> None:
    row = next(row for row in table() if (row.library, row.name) == ("torchvision", name))
    assert compute(Architecture("torchvision", name)) == row


def test_weights_that_the_table_does_not_know_import_no_library() -> None:
    libraries = {"torchvision": torchvision_names, "timm": timm_names}
    if not all(map(is_current, libraries)):
        pytest.skip("other versions are installed than those of the table")
    for names in libraries.values():
        names.cache_clear()
    with pytest.raises(UnknownArchitecture):
        recognise({"own.weight": (3, 4)})
    assert [names.cache_info().misses for names in libraries.values()] == [0, 0]


def test_a_name_is_found_or_refused_without_importing_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_current("timm"):
        pytest.skip("another version is installed than that of the table")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    timm_names.cache_clear()
    assert find_architecture("mixnet_s").library == "timm"
    with pytest.raises(UnknownArchitecture, match="mixnet_ss"):
        find_architecture("mixnet_ss")
    assert timm_names.cache_info().misses == 0


@pytest.mark.slow
def test_the_table_names_every_architecture_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    if not is_current("timm"):
        pytest.skip("another version is installed than that of the table")
    monkeypatch.delitem(sys.modules, "timm")
    from_table = list_timm_names()
    monkeypatch.undo()
    assert sorted(from_table) == sorted(timm_names())


def test_no_two_of_torchvision_look_alike() -> None:
    digests = [row.shapes for row in table() if row.library == "torchvision"]
    assert len(digests) == len(set(digests))


def test_recognising_takes_less_than_a_second() -> None:
    shapes = shapes_of(models.resnet18(num_classes=5).state_dict())
    began = time.thread_time()  # what other processes take does not count
    recognise(shapes)
    assert time.thread_time() - began < 1.0


def test_picture_size_of_a_vision_transformer() -> None:
    match = recognise(expected_shapes(Architecture("torchvision", "vit_b_16", {"image_size": 384}), 4))
    assert match.architecture == Architecture("torchvision", "vit_b_16", {"image_size": 384})


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_auxiliary_heads_may_be_absent(name: str) -> None:
    match = recognise(expected_shapes(Architecture("torchvision", name, {"aux_logits": False}), 4))
    assert match.architecture == Architecture("torchvision", name, {"aux_logits": False})


def test_timm_where_torchvision_fits_none() -> None:
    pytest.importorskip("timm")
    match = recognise(expected_shapes(Architecture("timm", "mobilenetv3_small_050"), 4))
    assert match.architecture.library == "timm"


def test_equals_are_listed_not_chosen() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UnknownArchitecture) as caught:
        recognise(expected_shapes(Architecture("timm", "mixnet_s"), 4))
    assert "mixnet_s, tf_mixnet_s" in caught.value.message
    assert "--arch" in str(caught.value.hint)


def test_unknown_weights_name_the_nearest_and_what_does_not_fit() -> None:
    shapes = shapes_of(models.resnet18(num_classes=5).state_dict())
    shapes["conv1.weight"] = (64, 1, 7, 7)
    with pytest.raises(UnknownArchitecture, match=r"Nearest is resnet18, but of another shape: conv1\.weight"):
        recognise(shapes)
    with pytest.raises(UnknownArchitecture, match="are not similar to any"):
        recognise({"zzz.weight": (3, 4)})


@pytest.mark.parametrize(
    ("builder", "task"),
    [
        (lambda: models.video.r3d_18(weights=None), "video"),
    ],
)
def test_models_for_other_tasks(builder: object, task: str) -> None:
    with torch.device("meta"):
        model = builder()  # type: ignore[operator]
    with pytest.raises(UnknownArchitecture, match=f"{task}.* not a classifier"):
        recognise(shapes_of(model.state_dict()))


def test_names() -> None:
    assert find_architecture("resnet18").library == "torchvision"
    with pytest.raises(UnknownArchitecture) as caught:
        find_architecture("resnet_18")
    assert "resnet18" in str(caught.value.hint)
    if not has_timm():
        pytest.skip("timm is not installed")
    assert find_architecture("timm/resnet18").library == "timm"
    assert find_architecture("timm/resnet18").qualified_name == "timm/resnet18"
    assert find_architecture("mixnet_s").qualified_name == "mixnet_s"


def test_misfits_say_the_first_of_each_kind() -> None:
    assert misfits({"a": (1,), "b": (2,)}, {"b": (3,), "c": (1,)}) == (
        "missing: a; unexpected: c; of another shape: b is (3,), not (2,)"
    )
    assert misfits({"a": (1,)}, {"a": (1,)}) == ""


def test_building_leaves_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build(Architecture("torchvision", "squeezenet1_1"), 3)
    build_hollow(Architecture("torchvision", "swin_t"), 3)
    assert torch.equal(before, torch.get_rng_state())
