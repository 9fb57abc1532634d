"""A store from a stranger: reading it executes nothing, and deriving again asks first.

Canaries are planted everywhere that a store, a configuration or the working directory can name code: each writes a
file when it is executed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE
from starlette.testclient import TestClient
from torch.utils.data import DataLoader, Dataset
from webstores import begin, write_samples

import audit
from audit import recording_key
from audit.cli.main import cli
from audit.errors import AuditError, CodeNotTrusted, NeedsTrust
from audit.sources.trust import CodeChangedWarning, find_changed_code, is_recorded_here, sign_recipe
from audit.store.write.writer import RunWriter
from audit.web.app import build

#: Programs that were started and hosts that were contacted, while a test listens.
_noticed: list[str] | None = None
_WATCHED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if _noticed is not None and (event in _WATCHED or (event == "import" and "evil" in str(arguments[0]))):
        _noticed.append(f"{event} {arguments}")


sys.addaudithook(_notice)


class Canary:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path(self.path), "unpickled"))


class Numbers(Dataset):  # type: ignore[type-arg]
    """A loop's own dataset."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def change_recipe(store: Path, run_id: str, recipe: dict[str, Any]) -> None:
    """Rewrite a run's recipe, as anyone who hands out the store can."""
    writer = RunWriter.resume(str(store), run_id)
    writer.run.recipe = recipe
    writer.finish("complete")


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on another user reads, who has recorded something of their own."""
    place = tmp_path / "stranger"
    monkeypatch.setenv("XDG_DATA_HOME", str(place))
    assert recording_key.sign(b"something")
    return place


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, kept as digests alone so that every value would have to be derived; and code that must not run."""
    folder = tmp_path_factory.mktemp("trust")
    other = folder / "other.py"
    other.write_text(Path(PIPELINE).read_text().replace("v2.Resize(16", "v2.Resize(15"))
    for name, pipeline in (("a", PIPELINE), ("b", other)):
        audit.run(DIGITS, pipeline=pipeline, store=folder / "lineage", workers=0, limit=3, name=name, capture="digest")
    (folder / "evil.py").write_text(
        f"open({str(folder / 'RAN')!r}, 'w').write('imported')\n"
        "transform = [abs]\ndef dataset(root=None): return [1]\ndef model(): return None\n"
    )
    torch.save({"state_dict": {}, "extra": Canary(folder / "RAN")}, folder / "evil.pt")
    return folder


def hostile_recipes(folder: Path) -> st.SearchStrategy[dict[str, Any]]:
    """Recipes that name a canary in any of their places, with and without signatures that this user did not make."""
    evil = str(folder / "evil.py")
    named = st.sampled_from(
        [
            *(evil, f"{evil}:dataset", f"{evil}:model", "evil:dataset", str(folder / "evil.pt")),
            *("s3://evil/x", "hf:evil/x", "torchvision:evil", "timm/hf-hub:evil/x", "file://evil/x", "//evil/x"),
        ]
    )
    maybe = st.none() | named
    return st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["run", "loop", None]),
            "dataset": st.just(str(DIGITS)) | named,
            "pipeline": maybe,
            "model": maybe,
            "arch": maybe,
            "trust": st.booleans(),
            "builders": st.none() | st.lists(st.fixed_dictionaries({"split": st.none(), "builder": named}), max_size=2),
            "signature": st.none() | st.text(max_size=5) | st.just("00" * 32),
            "files": st.none() | st.just({evil: None}),
        }
    )


def read_everything(store: Path, run: str, out: Path) -> None:
    """Everything that reads and nothing that derives, through the library; a refusal is an answer too."""
    with audit.open(store) as opened:
        found = opened.trace(run, index=1)
        readings: list[Callable[[], Any]] = [
            lambda: opened.sql("FROM lineage").fetchall(),
            lambda: found.as_json(),
            lambda: found.preview(1),
            lambda: found._repr_html_(),
            lambda: opened.diff("b", run).as_json(),
            lambda: opened.check(run, record=False),
            lambda: opened.report(str(out), run, baseline="b"),
            lambda: opened.verify(),
            lambda: opened.runs(),
        ]
        for reading in readings:
            reading()
        # What derives refuses instead.
        for deriving in (
            lambda: found.value(1),
            lambda: opened.replay(run, workers=0),
            lambda: opened.replay(run, workers=0, model=True),
        ):
            try:
                deriving()
            except AuditError:
                continue


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reading_a_store_runs_no_code(material: Path, stranger: Path, tmp_path: Path, data: st.DataObject) -> None:
    store = material / "lineage"
    with audit.open(store) as opened:
        run_id = opened.run("a").run_id
    before = list(sys.path)
    change_recipe(store, run_id, data.draw(hostile_recipes(material)))
    global _noticed
    _noticed = []
    try:
        read_everything(store, run_id, tmp_path / "report.html")
        assert _noticed == []
    finally:
        _noticed = None
    assert not (material / "RAN").exists()
    assert sys.path == before


COMMANDS = [
    ["runs"],
    ["runs", "--json"],
    ["sql", "FROM runs"],
    ["trace", "a", "1", "--json"],
    ["trace", "a", "1", "--pictures"],
    ["trace", "a", "1", "--export", "{out}"],
    ["replay", "a", "--workers", "0"],
    ["replay", "a", "--model", "--workers", "0"],
    ["diff", "b", "a"],
    ["diff", "b", "a", "--derive", "--json"],
    ["check", "a"],
    ["check", "a", "--only", "reproducible"],
    ["report", "a", "-o", "{out}.html"],
    ["export", "a", "--to", "openlineage", "-o", "{out}.json"],
    ["run", "--resume", "a"],
    ["store", "verify"],
    ["store", "compact", "a"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("named", ["pipeline", "dataset", "model", "builders"])
def test_no_command_runs_what_a_store_names(
    material: Path, stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], named: str
) -> None:
    store = tmp_path / "lineage"
    shutil.copytree(material / "lineage", store)
    evil = str(material / "evil.py")
    recipe: dict[str, Any] = {"kind": "run", "dataset": str(DIGITS), "trust": True, "pipeline": None, "model": None}
    named_by = {"pipeline": evil, "dataset": f"{evil}:dataset", "model": str(material / "evil.pt")}
    if named in named_by:
        recipe[named] = named_by[named]
    if named == "builders":
        recipe |= {"kind": "loop", "builders": [{"split": None, "builder": f"{evil}:dataset"}]}
    with audit.open(store) as opened:
        change_recipe(store, opened.run("a").run_id, recipe)
    # Configuration and a plugin in the directory that somebody happens to work in.
    monkeypatch.chdir(material)
    (material / "audit.toml").write_text("[checks.reproducible]\nenabled = true\n")
    done = invoke(*(word.format(out=tmp_path / "out") for word in command), "--store", store)
    assert not (material / "RAN").exists(), done.output
    assert "Traceback" not in done.output
    assert "internal error" not in done.output
    if command[0] == "replay" and (named == "pipeline" or (named == "builders" and "--model" not in command)):
        assert done.exit_code == 1
        assert evil in done.stderr
        assert "--trust" in done.stderr


MISSPELT: dict[str, Callable[[Path], dict[str, Any]]] = {
    # An attribute that no function can have: the module would be imported before it is looked for.
    "arch": lambda evil: {"model": str(CHECKPOINT), "arch": f"{evil}:model-x"},
    "arch of a module": lambda evil: {"model": str(CHECKPOINT), "arch": "evil:model-x"},
    # A file of exactly this name exists, so that it could be taken for weights.
    "arch like a file": lambda evil: {"model": str(CHECKPOINT), "arch": "evil.py:model"},
    # Two spellings of one file.
    "file address": lambda evil: {"dataset": "file://evil:dataset"},
    "number": lambda evil: {"pipeline": 0},
    "list": lambda evil: {"dataset": [str(evil)]},
}


@pytest.mark.parametrize("spelling", MISSPELT)
def test_no_spelling_of_a_name_gets_around_the_question(
    material: Path, stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    store = tmp_path / "lineage"
    shutil.copytree(material / "lineage", store)
    monkeypatch.chdir(material)
    (material / "evil.py:model").write_text("not weights")
    (material / "RAN").unlink(missing_ok=True)
    sys.modules.pop("evil", None)  # so that importing it executes it
    recipe: dict[str, Any] = {"kind": "run", "dataset": str(DIGITS), "pipeline": None, "model": None}
    recipe |= MISSPELT[spelling](material / "evil.py")
    with audit.open(store) as opened:
        change_recipe(store, opened.run("a").run_id, recipe)
    for command in (["diff", "b", "a"], ["replay", "a", "--workers", "0"], ["replay", "a", "--model"]):
        done = invoke(*command, "--store", store)
        assert not (material / "RAN").exists(), done.output
        assert "Traceback" not in done.output
        assert "internal error" not in done.output


def test_a_plugin_in_the_working_directory_is_not_loaded(material: Path, stranger: Path, tmp_path: Path) -> None:
    """`python -m audit` searches the working directory for packages, and entry points in it would be loaded."""
    information = tmp_path / "evil-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    groups = ("checks", "sources", "models", "values", "exporters")
    (information / "entry_points.txt").write_text("".join(f"[audit.{g}]\nevil = planted_plugin\n" for g in groups))
    (tmp_path / "planted_plugin.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')")
    for command in (["check", "b"], ["diff", "a", "b"], ["replay", "b", "--workers", "0", "--trust"]):
        subprocess.run(
            [sys.executable, "-m", "audit", *command, "--store", str(material / "lineage")],
            cwd=tmp_path,
            timeout=300,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(audit.__file__))},
        )
        assert not (tmp_path / "RAN").exists(), command


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\n(code)\n%%EOF\n"


def test_a_stored_picture_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands Encapsulated PostScript to Ghostscript, which executes it."""
    programs, ran, files = tmp_path / "bin", tmp_path / "RAN", tmp_path / "files"
    programs.mkdir()
    files.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\necho ran > {ran}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for index in range(3):
        (files / f"{index}.png").write_bytes(EPS)
    with Image.open(io.BytesIO(EPS)) as picture, pytest.raises(OSError):
        picture.load()
    assert ran.exists(), "the canary works"
    ran.unlink()
    store = tmp_path / "lineage"
    for name in ("a", "b"):
        writer = begin(store, name, classes=["x", "y"])
        rows = [
            {"preview": EPS, "root": str(files), "label": 0, "predicted": i % 2, "probabilities": [0.4, 0.6]}
            for i in range(3)
        ]
        write_samples(writer, rows)
        writer.finish("complete")
    with audit.open(store) as opened:
        opened.trace("a", index=0)._repr_html_()
        opened.check("a", only=("exif_orientation", "alpha_dropped", "near_duplicates", "image_quality"), record=False)
        opened.report(str(tmp_path / "report.html"), "a", baseline="b")
    for command in (
        ["trace", "a", "0", "--pictures"],
        ["check", "a", "--format", "markdown"],
        ["embed", "a", "--layer", "pixels"],
    ):
        assert "internal error" not in invoke(*command, "--store", store).output
    with TestClient(build(str(store)), base_url="http://127.0.0.1") as browser:
        for page in ("gallery/block", "trace/0", "trace/0/steps", "picture/0/0", "source/0"):
            assert browser.get(f"/run/a/{page}").status_code in (200, 404), page
    assert not ran.exists()


def test_stored_pictures_are_opened_in_one_place() -> None:
    package = Path(audit.__file__).parent
    opening = {str(path.relative_to(package)) for path in package.rglob("*.py") if "Image.open(" in path.read_text()}
    # The second one stands for torchvision's own loader, which opens what the user's loop opens.
    assert opening == {"picture_formats.py", "recorders/visit/file_load.py"}


def test_the_machine_that_recorded_derives_without_a_flag(material: Path, tmp_path: Path) -> None:
    """And the same store in another's hands is refused in one sentence that names the file."""
    store = tmp_path / "lineage"
    shutil.copytree(material / "lineage", store)
    assert invoke("replay", "b", "--workers", 0, "--store", store).exit_code == 0
    with audit.open(store) as opened:
        assert is_recorded_here(opened.run("b").recipe)
        assert opened.trace("b", index=0).value(1) is not None
        difference = opened.diff("b", "b").divergences
        assert difference == []


def test_another_user_reads_which_file_would_run(material: Path, stranger: Path) -> None:
    store = material / "lineage"
    other = str(material / "other.py")
    refused = invoke("replay", "b", "--workers", 0, "--store", store)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert other in refused.stderr
    assert "Traceback" not in refused.stderr
    assert invoke("replay", "b", "--workers", 0, "--trust", "--store", store).exit_code == 0
    with audit.open(store) as opened:
        with pytest.raises(CodeNotTrusted) as raised:
            opened.trace("b", index=0).value(1)
        assert raised.value.files == [other]
        assert opened.trace("b", index=0, trust=True).value(1) is not None
        outcome = opened.check("b", only=["reproducible"], record=False).outcomes[0]
        assert (outcome.status, "--trust" in outcome.message) == ("skip", True)
        assert opened.check("b", only=["reproducible"], record=False, trust=True).outcomes[0].status == "pass"


def test_a_diff_of_another_users_runs_says_what_it_did_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "lineage"
    for factor in (1, 2):
        pipeline = tmp_path / f"scaled_{factor}.py"
        pipeline.write_text(f"def scaled(value): return value\ntransform = [len, lambda value: value * {factor}]\n")
        text = tmp_path / "words.txt"
        text.write_text("one\nthree\n")
        audit.run(text, pipeline=pipeline, store=store, workers=0, capture="digest", name=f"x{factor}")
    with audit.open(store) as opened:
        difference = opened.diff("x1", "x2").divergences[0].difference
        assert difference is not None
        assert difference.max == 3.0, "recorded here: derived without being asked"
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "nobody"))
        refused = opened.diff("x1", "x2").divergences[0].difference
        assert refused is not None
        assert refused.max is None
        assert "--trust" in (refused.why or "")
        allowed = opened.diff("x1", "x2", trust=True).divergences[0].difference
        assert allowed is not None
        assert allowed.max == 3.0


def test_changed_code_is_reported_before_it_runs(tmp_path: Path) -> None:
    store, pipeline, text = tmp_path / "lineage", tmp_path / "changing.py", tmp_path / "words.txt"
    text.write_text("one\nthree\n")
    pipeline.write_text("transform = [len]\n")
    audit.run(text, pipeline=pipeline, store=store, workers=0, capture="digest")
    pipeline.write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\ntransform = [len]\n")
    sys.modules.pop("changing", None)
    with audit.open(store) as opened:
        assert find_changed_code(opened.run().recipe) == [str(pipeline)]
        # Nobody asked for code to be run: what changed since is not.
        opened.diff("latest", "latest")
        assert opened.check(only=["reproducible"], record=False).outcomes[0].status == "skip"
        assert not (tmp_path / "RAN").exists()
        with pytest.warns(CodeChangedWarning, match=r"changing\.py has changed since"):
            opened.replay(workers=0)
    assert (tmp_path / "RAN").exists()
    reported = invoke("replay", "--workers", 0, "--store", store)
    assert f"audit: {pipeline} has changed since the run" in reported.stderr


def test_trust_in_a_recipe_counts_only_for_the_file_that_was_loaded(tmp_path: Path) -> None:
    model, folder = tmp_path / "whole.pt", tmp_path / "pictures"
    shutil.copytree(DIGITS / "0", folder / "0")
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16, 10)), model)
    store = tmp_path / "lineage"
    with pytest.raises(NeedsTrust):
        audit.run(folder, pipeline=PIPELINE, model=model, store=store, workers=0, limit=2)
    audit.run(folder, pipeline=PIPELINE, model=model, store=store, workers=0, limit=2, trust=True)
    with audit.open(store) as opened:
        assert opened.replay(workers=0, model=True).passed, "this machine trusted this very file"
        torch.save(Canary(tmp_path / "RAN"), model)
        with pytest.raises(NeedsTrust):
            opened.replay(workers=0, model=True)
        assert not (tmp_path / "RAN").exists()


def test_a_signature_covers_all_that_names_code() -> None:
    recipe = sign_recipe({"kind": "run", "dataset": "x", "pipeline": None, "seed": 1})
    assert is_recorded_here(recipe)
    assert is_recorded_here({**recipe, "layers": ["fc"], "loaders": []}), "facts that name no code may be added"
    for key in ("kind", "dataset", "pipeline", "model", "arch", "trust", "builders", "code", "files"):
        assert not is_recorded_here({**recipe, key: "other"}), key
    for forged in (None, "", "0" * 64, 1, ["x"], "é"):
        assert not is_recorded_here({**recipe, "signature": forged})


def test_a_loop_of_ones_own_is_signed(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    with audit.record(store, capture="digest") as run:
        for _ in run.loader(DataLoader(Numbers(), batch_size=2), builder=Numbers):
            pass
    with audit.open(store) as opened:
        assert is_recorded_here(opened.run().recipe)
        assert opened.replay(workers=0).passed


def test_the_key_is_private_and_needs_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    signature = recording_key.sign(b"message")
    path = Path(recording_key.key_path())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(os.listdir(path.parent)) == ["recipe.key"]
    assert recording_key.is_signed(b"message", signature)
    path.chmod(0o644)
    assert not recording_key.is_signed(b"message", signature), "others may have read it"
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    assert recording_key.sign(b"message") is None
    text, store = tmp_path / "words.txt", tmp_path / "lineage"
    text.write_text("one\n")
    pipeline = tmp_path / "homeless.py"
    pipeline.write_text("transform = [len]\n")
    assert audit.run(text, pipeline=pipeline, store=store, workers=0).status == "complete"
    refused = invoke("replay", "--workers", 0, "--store", store)
    assert refused.exit_code == 1
    assert "/proc/nowhere/audit/recipe.key" in refused.stderr
    assert json.loads(invoke("replay", "--workers", 0, "--trust", "--json", "--store", store).stdout)["identical"] == 1
