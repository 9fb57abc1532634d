"""What is not a model is refused with a sentence, and code in a file does not run unless it is trusted."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from audit.errors import AuditError, ModelError, NeedsTrust, UsageError
from audit.models import load


class Canary:
    """Unpickling one creates the file that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.path), "w"))


def check_refused(spec: object, *said: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(str(spec))
    error = caught.value
    assert error.hint
    assert "Traceback" not in str(error)
    assert "\n" not in error.message
    for text in said:
        assert text in str(error)
    return error


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return buffer.getvalue()


BAD: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "is empty"),
    ("random", lambda: bytes(range(200, 256)) * 20, "binary data"),
    ("json", lambda: json.dumps({"a": 1}).encode(), "looks like JSON"),
    ("text", lambda: b"epoch,loss\n1,2\n", "looks like text"),
    ("png", lambda: _png(), "PNG picture"),
    ("zip", lambda: zipped(readme=b"hello"), "not one that PyTorch wrote"),
    ("half a zip", lambda: zipped(readme=b"hello" * 99)[:200], "truncated zip"),
    ("lfs", lambda: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ("one byte", lambda: b"\x80", "binary data"),
]


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(("content", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_files_that_are_no_model(content: Callable[[], bytes], said: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content())
    check_refused(tmp_path / "model.pt", said)


def test_what_is_no_file(tmp_path: Path, weights: Path) -> None:
    check_refused(tmp_path / "nothing.pt", "There is no file")
    check_refused(tmp_path, "is a directory")
    check_refused(weights.parent, "weights.pt: pass one")
    os.mkfifo(tmp_path / "fifo")
    check_refused(tmp_path / "fifo", "not a regular file")
    check_refused("nul\0byte")


@pytest.mark.parametrize("keep", [10, 1000, 0.5, 0.99])
def test_truncated_checkpoint(keep: float, weights: Path, tmp_path: Path) -> None:
    data = weights.read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    check_refused(tmp_path / "cut.pt", "truncated")


def test_truncated_legacy_checkpoint(mobilenet: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(mobilenet.state_dict(), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:40_000])
    check_refused(path)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda tail: b"\x80\x02" + tail)))
def test_any_bytes_give_an_error_of_ours(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(data)
    with pytest.raises(AuditError):
        load(str(tmp_path / "any"))


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_changed_byte_loads_or_gives_an_error_of_ours(at: int, value: int, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "small.pt")
    data = bytearray((tmp_path / "small.pt").read_bytes())
    data[at % len(data)] = value
    (tmp_path / "small.pt").write_bytes(data)
    with pytest.raises(AuditError):  # intact, it fits no architecture
        load(str(tmp_path / "small.pt"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"epoch": 3, "lr": 0.1}, "without weights: its entries are 'epoch', 'lr'"),
        ({}, "without weights"),
        ([1, 2], "holds a list"),
        (torch.zeros(3), "holds a Tensor"),
        ({"a.weight": torch.zeros(3, 4)}, "model.pt (1 tensors, a.weight (3, 4)) fit no known architecture"),
        ({1: torch.zeros(3)}, "without weights"),
    ],
)
def test_dicts_that_are_no_checkpoint(content: object, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pt")
    check_refused(tmp_path / "model.pt", said)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_code_does_not_run(legacy: bool, mobilenet: nn.Module, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "model.pt"
    content = {"state_dict": mobilenet.state_dict(), "extra": Canary(canary)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(NeedsTrust) as caught:
        load(str(path))
    assert not canary.exists()
    assert "execute code" in caught.value.message
    assert "--trust" in str(caught.value.hint)
    assert load(str(path), trust=True).arch == "mobilenet_v3_small"
    assert canary.exists()


def test_plain_pickle_does_not_run(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps({"model": Canary(canary)}))
    with pytest.raises(NeedsTrust, match="a Python pickle"):
        load(str(path))
    assert not canary.exists()
    with pytest.raises(ModelError, match="without weights"):
        load(str(path), trust=True)
    assert canary.exists()


def test_whole_module_needs_trust(mobilenet: nn.Module, tmp_path: Path) -> None:
    torch.save(mobilenet, tmp_path / "model.pt")
    with pytest.raises(NeedsTrust, match="MobileNetV3"):
        load(str(tmp_path / "model.pt"))


class Scripted(nn.Module):
    """A module whose TorchScript writes a file as it is loaded."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.zeros(1), self.path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_torchscript_does_not_run(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "weights.safetensors"  # the extension lies
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Scripted(str(canary))).save(str(path))  # type: ignore[no-untyped-call]
    with pytest.raises(NeedsTrust, match="a TorchScript archive"):
        load(str(path))
    assert not canary.exists()
    load(str(path), trust=True)
    assert canary.exists()


def test_exported_program_does_not_run(tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / "weights.pt"
    whole = tmp_path / "whole.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith(".pt"):  # the sample inputs, which are a pickle
                buffer = io.BytesIO()
                torch.save(((Canary(canary),), {}), buffer)
                data = buffer.getvalue()
            target.writestr(name, data)
    with pytest.raises(NeedsTrust, match="an exported PyTorch program"):
        load(str(path))
    assert not canary.exists()


def test_devices(weights: Path) -> None:
    with pytest.raises(UsageError, match="'toaster'"):
        load(str(weights), device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="--device cpu"):
            load(str(weights), device="cuda")


@pytest.mark.parametrize(
    ("code", "spec", "said"),
    [
        ("def model(): return 3", "net.py:model", "returned a int, not an nn.Module"),
        ("def other(): pass", "net.py", "has no 'model'. It defines other"),
        ("model = 3", "net.py:model", "is a int, not a function"),
        ("1 / 0", "net.py:model", "net.py:1: ZeroDivisionError: division by zero"),
        ("def model(:", "net.py:model", "SyntaxError"),
        ("import sys; sys.exit(3)", "net.py:model", "SystemExit"),
        ("def model(size): return size", "net.py:model", "TypeError"),
        ("", "missing.py:model", "there is no file"),
        ("", "no_such_module_here:model", "There is no Python module"),
    ],
)
def test_functions_that_build_no_model(code: str, spec: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(code)
    check_refused(tmp_path / spec if ".py" in spec else spec, said)


def test_unknown_architecture_name(weights: Path) -> None:
    with pytest.raises(ModelError, match="Did you mean mobilenet_v3_small"):
        load(str(weights), arch="mobilenet_v3_smal")


def test_an_archive_of_an_unknown_version_is_a_sentence(tmp_path: Path) -> None:
    """Python's zip reader raises NotImplementedError for it."""
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.zeros(2)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 6] = 209  # the version that is needed to extract the first member
    path.write_bytes(data)
    with pytest.raises(ModelError):
        load(str(path))


@pytest.mark.parametrize(
    ("built", "said"), [("nn.LazyLinear(3)", "a lazy module"), ("nn.Linear(2, 3, device='meta')", "meta device")]
)
def test_a_function_whose_model_has_no_weights_yet(built: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(f"from torch import nn\n\n\ndef make():\n    return nn.Sequential({built})\n")
    check_refused(f"{path}:make", "The weight 0.weight of the model has no values", said)
