"""Ray and the local engine: the same rows, digest for digest, whichever process makes them, also if one dies meanwhile."""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from page_blocks import link_fixtures, page_blocks
from PIL import Image
from places import REPOSITORY
from ray_material import find_unlisted, node_options, ray_nodes, rows_of, state_of, write_material
from warm_programs import warm_audit

import audit
from audit.cli.main import cli
from audit.engines.ray.cluster import ClusterCapacity
from audit.engines.run import resume_run
from audit.errors import ModelError, PipelineError, RecordingError, UsageError
from audit.records import Progress

pytest.importorskip("ray.data")
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    """An S3 server that this process and all that it starts know from the environment; None where it cannot be started."""
    try:
        import boto3  # noqa: F401
        from object_service import Service

        service = Service()
    except ImportError:
        yield None
        return
    with service.set_environment():
        yield service
    service.close()


#: Where Ray keeps its files when nobody says otherwise: perhaps those of a cluster that somebody is using.
DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "ray"
BEFORE = state_of(DEFAULT_FOLDER)


@pytest.fixture(scope="module")
def nodes(service: Any) -> Iterator[Any]:
    """One cluster for all tests here. Its workers have the environment that it was started in."""
    with ray_nodes(2) as cluster:
        yield cluster


def test_the_cluster_keeps_to_its_own_folder(nodes: Any) -> None:
    assert state_of(DEFAULT_FOLDER) == BEFORE
    assert Path(nodes.head_node.get_temp_dir_path()).parent == Path(os.environ["RAY_TMPDIR"])


def test_rows_are_those_of_the_local_engine(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store = pictures(count=22), tmp_path / "lineage"
    (images / "class_1" / "img_004.png").write_bytes(b"no picture")
    pipeline, checkpoint = write_material(tmp_path)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 4, "seed": 7}
    local = audit.run(images, workers=0, name="local", **options)
    expected = rows_of(store, local.run_id)
    assert (len(expected["samples"]), len(expected["predictions"])) == (22, 21)
    chosen = {"capture": "full", "capture_where": "NOT correct"}
    expected_chosen = rows_of(store, audit.run(images, workers=0, **options, **chosen).run_id)
    assert 0 < len(expected_chosen["payloads"]) < len(expected["payloads"])
    # Three models here, one where a run is resumed, two where a node is killed.
    remote = audit.run(images, engine="ray", actors=3, name="ray", **options, **chosen)
    assert (remote.status, remote.samples, remote.failed) == ("complete", 22, 1)
    assert (remote.graded, remote.wrong, remote.accuracy) == (local.graded, local.wrong, local.accuracy)
    assert rows_of(store, remote.run_id) == expected_chosen
    assert find_unlisted(store, remote.run_id) == []
    with audit.open(store) as opened:
        assert opened.verify() == []
        difference = opened.diff("local", "ray")
        assert (difference.matched, difference.first_divergent_stage, difference.regressions) == (22, {}, 0)


def test_a_spent_budget_ends_the_round(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store = pictures(count=22), tmp_path / "lineage"
    for number, path in enumerate(sorted(images.rglob("*.png"))):
        if number not in (0, 7, 14, 21):  # those that the estimate is made from
            with Image.open(path) as picture:
                picture.resize((96, 72)).save(path)
    pipeline, _ = write_material(tmp_path)
    options: dict[str, Any] = {"pipeline": pipeline, "store": store, "batch_size": 2, "capture_budget": 520_000}
    remote = audit.run(images, engine="ray", **options)
    assert (remote.status, remote.samples) == ("complete", 22)
    assert str(remote.capture).startswith("full (auto")
    assert any("budget was reached" in warning for warning in remote.warnings)
    local = audit.run(images, workers=0, **options)
    digests = "SELECT index, stage, digest FROM stage_outputs ORDER BY ALL"
    with audit.open(store) as opened:
        assert opened.sql(digests, run=remote.run_id).fetchall() == opened.sql(digests, run=local.run_id).fetchall()
        levels = opened.sql("SELECT DISTINCT payload FROM stage_outputs", run=remote.run_id).fetchall()
    assert {"full", "preview"} <= {level for (level,) in levels}


def test_a_node_is_killed_in_the_middle(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store = pictures(count=60), tmp_path / "lineage"
    pipeline, checkpoint = write_material(tmp_path, pause=0.02)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 2}
    local = audit.run(images, workers=0, **options)
    lost = nodes.add_node(num_cpus=1, **node_options())
    killed: list[int] = []

    def progress(now: Progress) -> None:
        if not killed and now.done >= 6:
            killed.append(now.done)
            nodes.remove_node(lost, allow_graceful=False)

    remote = audit.run(images, engine="ray", actors=2, progress=progress, **options)
    assert killed
    assert killed[0] < 60
    assert (remote.status, remote.samples) == ("complete", 60)
    assert rows_of(store, remote.run_id) == rows_of(store, local.run_id)
    assert find_unlisted(store, remote.run_id) == []


def test_recorders_and_models_are_killed_while_they_work_in_a_bucket(
    nodes: Any, service: Any, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    """Pictures and store in a bucket, whose credentials reach the workers through the environment and go nowhere else."""
    if service is None:
        pytest.skip("needs boto3 and moto[server]")
    import boto3
    from object_service import KEY, SECRET

    bucket, client, present = service.bucket(), boto3.client("s3"), tmp_path / "present"
    for path in (images := pictures(count=40)).rglob("*.png"):
        client.upload_file(str(path), bucket, f"images/{path.relative_to(images)}")
    present.mkdir()
    pipeline, checkpoint = write_material(tmp_path, pause=0.02, pids=present)
    dataset, store = f"s3://{bucket}/images", f"s3://{bucket}/lineage"
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": store, "batch_size": 2}
    local = audit.run(dataset, workers=0, **options)
    for left in present.iterdir():
        left.unlink()
    killed: list[str] = []

    def progress(now: Progress) -> None:
        for role in ("recorder", "model") if not killed and 0 < now.done < 40 else ():
            one = next(present.glob(f"{role}-*"))
            os.kill(int(one.name.partition("-")[2]), signal.SIGKILL)
            killed.append(role)

    remote = audit.run(dataset, engine="ray", actors=1, progress=progress, **options)
    assert killed == ["recorder", "model"]
    assert (remote.status, remote.samples) == ("complete", 40)
    assert rows_of(store, remote.run_id) == rows_of(store, local.run_id)
    assert find_unlisted(store, remote.run_id) == []
    listed = client.list_objects_v2(Bucket=bucket, Prefix="lineage/")["Contents"]
    kept = [client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read() for entry in listed]
    logs = [path.read_bytes() for path in Path(nodes.head_node.get_logs_dir_path()).rglob("*") if path.is_file()]
    assert logs
    assert not [text for text in kept + logs if SECRET.encode() in text or KEY.encode() in text]


def test_a_sample_that_kills_its_worker_is_a_failed_row(
    nodes: Any, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(count=9), tmp_path / "lineage"
    trap = images / "class_2" / "img_005.png"
    colour = (255, 0, 254)
    with Image.open(trap) as picture:
        picture.putpixel((0, 0), colour)
        picture.save(trap)
    pipeline, _ = write_material(tmp_path, trap=colour)
    done = audit.run(images, engine="ray", pipeline=pipeline, store=store, batch_size=3, capture="digest")
    assert (done.status, done.samples, done.failed) == ("complete", 9, 1)
    with audit.open(store) as opened:
        assert opened.sql("SELECT source, failed_stage FROM failures").fetchall() == [("class_2/img_005.png", "worker")]
        assert opened.sql(
            "SELECT count(DISTINCT index), count(DISTINCT (batch, position)) FROM samples"
        ).fetchone() == (
            9,
            9,
        )


def interrupt_at(count: int) -> Callable[[Progress], None]:
    def progress(now: Progress) -> None:
        if now.done >= count:
            raise KeyboardInterrupt

    return progress


def resumed_by_command(store: Path, run_id: str, cluster: str) -> None:
    """From another process, which finds the cluster by itself."""
    command = ["run", "--store", str(store), *f"--resume {run_id} --engine ray --address auto --actors 1".split()]
    environment = os.environ | {"RAY_ADDRESS": cluster}
    done = subprocess.run([warm_audit(), *command], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("first", "then"), [("local", "ray"), ("ray", "local")])
def test_a_run_is_resumed_by_the_other_engine(
    nodes: Any, first: str, then: str, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(count=31), tmp_path / "lineage"
    pipeline, checkpoint = write_material(tmp_path)
    options: dict[str, Any] = {"pipeline": pipeline, "store": store, "batch_size": 3}
    options["model"] = checkpoint if then == "ray" else None
    whole = audit.run(images, workers=0, **options)
    begun = audit.run(images, engine=first, progress=interrupt_at(9), workers=0, **options)
    assert begun.status == "interrupted"
    assert 9 <= begun.samples < 31
    assert find_unlisted(store, begun.run_id) == []
    if then == "ray":
        resumed_by_command(store, begun.run_id, nodes.address)
    else:
        resume_run(str(store), begun.run_id)
    with audit.open(store) as opened:
        done = opened.run(begun.run_id)
    assert (done.status, done.samples) == ("complete", 31)
    assert (done.graded, done.wrong, done.accuracy) == (whole.graded, whole.wrong, whole.accuracy)
    assert rows_of(store, done.run_id) == rows_of(store, whole.run_id)
    with audit.open(store) as opened:
        assert opened.verify() == []


CALLS = """
import torch
from torch import nn

class Own:
    def __init__(self):
        self.aug = {"flat": nn.Flatten(0)}
        self.target_transform = None
    def __len__(self):
        return 12
    def scale(self, x):
        return x / 2
    def rare(self, x):
        return x + torch.rand(1)
    def __getitem__(self, index):
        x = self.aug["flat"](torch.full((2, 3), float(index)))
        if index == 10:
            x = self.rare(x)
        return self.scale(x), index % 2

def dataset(root):
    return Own()
"""


def test_stages_that_a_dataset_calls_are_found(nodes: Any, tmp_path: Path) -> None:
    """In every process, with the ordinals that the local engine gives them; also a stage that one sample alone has."""
    pipeline, store = tmp_path / "calls.py", tmp_path / "lineage"
    pipeline.write_text(CALLS)
    options = {"pipeline": pipeline, "store": store, "batch_size": 2, "capture": "full"}
    there = audit.run(tmp_path, engine="ray", name="there", **options)
    here = audit.run(tmp_path, workers=0, name="here", **options)
    assert (there.status, there.samples, there.unrecorded) == (here.status, 12, here.unrecorded) == ("complete", 12, [])
    ask = "SELECT index, o.stage, s.path, o.name, o.digest FROM stage_outputs o JOIN stages s USING (run_id, stage)"
    with audit.open(store) as opened:
        found = {run: opened.sql(f"{ask} ORDER BY ALL", run=run).fetchall() for run in ("here", "there")}
        paths = {path for _, _, path, _, _ in found["there"]}
        assert paths == {"0", "call.aug.flat", "call.rare", "call.scale"}
        without = {run: [(index, path, *rest) for index, _, path, *rest in rows] for run, rows in found.items()}
        assert sorted(without["there"]) == sorted(without["here"])
        order = [path for index, _, path, _, _ in found["there"] if index == 10]
        assert order == ["0", "call.aug.flat", "call.rare", "call.scale"]
        replayed = opened.replay("there", trust=True)
        assert (replayed.identical, replayed.checked) == (12, 12)


def test_several_graded_outputs(nodes: Any, tmp_path: Path) -> None:
    code = tmp_path / "two_heads.py"
    code.write_text(
        "import torch\nfrom torch import nn\n"
        "class Own:\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, index): return torch.full((3,), float(index)), {'a': index % 2, 'b': index / 2}\n"
        "def items(): return Own()\n"
        "class Both(nn.Module):\n"
        "    def __init__(self): super().__init__(); torch.manual_seed(0); self.last = nn.Linear(3, 3)\n"
        "    def forward(self, x): y = self.last(x); return {'a': y[:, :2], 'b': y[:, 2]}\n"
        "def both(): return Both().eval()\n"
    )
    options: dict[str, Any] = {"model": f"{code}:both", "trust": True, "store": tmp_path / "lineage", "batch_size": 4}
    output = {"a": "logits", "b": "regression"}
    runs = [
        audit.run(f"{code}:items", output=output, **options, **engine) for engine in ({"workers": 0}, {"engine": "ray"})
    ]
    query = "SELECT index, head, call, label, predicted, correct, loss, target, output FROM predictions ORDER BY ALL"
    with audit.open(tmp_path / "lineage") as store:
        local, remote = (store.sql(query, run=run.run_id).fetchall() for run in runs)
    assert len(local) == 12
    assert remote == local
    assert runs[0].recipe["heads"] == runs[1].recipe["heads"] == {"Both.a": "logits", "Both.b": "regression"}


def test_an_output_of_another_form_in_one_batch(nodes: Any, tmp_path: Path) -> None:
    code = tmp_path / "another_form.py"
    code.write_text(
        "import torch\nfrom torch import nn\n"
        "class Own:\n"
        "    def __len__(self): return 12\n"
        "    def __getitem__(self, index): return torch.full((3,), float(index)), index % 3\n"
        "def items(): return Own()\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self): super().__init__(); torch.manual_seed(0); self.last = nn.Linear(1, 1)\n"
        "    def forward(self, x): return x if x[0, 0] != 8 else (x, x * 2)\n"
        "def odd(): return Odd().eval()\n"
    )
    store = tmp_path / "lineage"
    run = audit.run(f"{code}:items", model=f"{code}:odd", trust=True, store=store, batch_size=4, engine="ray", actors=1)
    assert run.status == "complete"
    assert [one for one in run.warnings if one.startswith("4 samples have no prediction (index 8, 9, 10, 11): ")]
    with audit.open(store) as opened:
        assert opened.sql("SELECT list(index ORDER BY index) FROM predictions").fetchall() == [([*range(8)],)]
        ports = "SELECT port, list(index ORDER BY index) FROM outputs GROUP BY port ORDER BY port"
        assert opened.sql(ports).fetchall() == [("0", [8, 9, 10, 11]), ("1", [8, 9, 10, 11])]


def test_a_model_that_fails_ends_the_run_with_its_sentence(
    nodes: Any, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline, checkpoint = write_material(tmp_path)
    pipeline.write_text(pipeline.read_text().replace("self.head(self.conv(x)", "self.conv(self.conv(x)"))
    with pytest.raises(ModelError, match=r"could not be run on a batch of \(4, 3, 18, 24\)"):
        audit.run(
            pictures(count=8),
            engine="ray",
            pipeline=pipeline,
            model=checkpoint,
            store=tmp_path / "lineage",
            batch_size=4,
            capture="digest",
        )
    with audit.open(tmp_path / "lineage") as opened:
        (run,) = opened.runs()
    assert run.status == "failed"
    assert "could not be run" in run.warnings[-1]


def test_a_run_without_a_good_sample_has_failed(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    images, store = pictures(count=6), tmp_path / "lineage"
    pipeline, _ = write_material(tmp_path)
    for path in images.rglob("*.png"):
        path.write_bytes(b"no picture")
    options: dict[str, Any] = {"engine": "ray", "pipeline": pipeline, "store": store, "batch_size": 3}
    run = audit.run(images, capture="digest", **options)
    assert (run.status, run.samples, run.failed) == ("failed", 6, 6)
    (images / "class_0" / "img_000.png").unlink()
    Image.new("RGB", (24, 18)).save(images / "class_0" / "img_000.png")
    assert audit.run(images, capture="digest", **options).status == "complete"
    assert audit.run(images, capture="digest", max_failures="50%", **options).status == "failed"


def test_what_does_not_fit_the_cluster(nodes: Any, pictures: Callable[..., Path], tmp_path: Path) -> None:
    pipeline, checkpoint = write_material(tmp_path)
    options: dict[str, Any] = {"pipeline": pipeline, "model": checkpoint, "store": tmp_path / "lineage"}
    with pytest.raises(UsageError, match=r"2 × 1 GPUs do not fit .* have none\. Leave --gpus-per-actor out"):
        audit.run(pictures(), engine="ray", actors=2, gpus_per_actor=1, **options)
    with pytest.raises(UsageError, match="are options of the engine ray"):
        audit.run(pictures(), actors=2, **options)
    with pytest.raises(UsageError, match=r"gpus_per_actor cannot be 1\.5"):
        audit.run(pictures(), engine="ray", gpus_per_actor=1.5, **options)
    assert not (tmp_path / "lineage").exists()


def test_how_many_models_fit_the_machines() -> None:
    """A model is on one machine: GPUs of two do not add up."""
    assert [ClusterCapacity(cores).actors(None, 0) for cores in (1, 7, 8)] == [1, 1, 2]
    room = ClusterCapacity(16, (4.0, 1.0, 0.0))
    assert (room.actors(None, 1), room.actors(None, 2), room.actors(None, 0.5), room.actors(3, 1)) == (5, 2, 10, 3)
    for asked, each, text in (
        (3, 2, r"3 × 2 GPUs do not fit .* have 4 \+ 1\. Give --actors 2"),
        (None, 5, r"1 × 5 GPUs do not fit"),
    ):
        with pytest.raises(UsageError, match=text):
            room.actors(asked, each)
    with pytest.raises(UsageError, match="no core"):
        ClusterCapacity(0, (8.0,)).actors(None, 1)


def test_what_goes_wrong_in_a_worker_is_reported_with_its_place(
    nodes: Any, pictures: Callable[..., Path], tmp_path: Path
) -> None:
    images, store = pictures(count=6), tmp_path / "lineage"
    sound, _ = write_material(tmp_path)
    options: dict[str, Any] = {"engine": "ray", "store": store, "batch_size": 2, "limit": 4}
    elsewhere = sound.with_name(f"{sound.stem}_elsewhere.py")
    elsewhere.write_text(
        f"{sound.read_text()}\nif os.getpid() != {os.getpid()}:\n    raise RuntimeError('no licence')\n"
    )
    with pytest.raises(PipelineError, match=r"no licence.*Reported by a Ray worker on "):
        audit.run(images, pipeline=elsewhere, **options)
    failing = sound.with_name(f"{sound.stem}_failing.py")
    failing.write_text(
        sound.read_text().replace("def shifted(array):", "def shifted(array):\n    assert len(array) != 9, 'odd'")
    )
    with Image.open(path := sorted(images.rglob("*.png"))[1]) as picture:
        picture.resize((24, 9)).save(path)
    options |= {"pipeline": failing, "capture": "full"}
    done = audit.run(images, **options)
    assert (done.status, done.samples, done.failed) == ("complete", 4, 1)
    local = audit.run(images, **options | {"engine": "local", "workers": 0})
    assert rows_of(store, done.run_id) == rows_of(store, local.run_id)
    with pytest.raises(RecordingError, match="failed at shifted: AssertionError: odd"):
        audit.run(images, strict=True, **options)


def assert_succeeds(line: str) -> str:
    """Run a command of audit in this process, and return what it prints."""
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_of_the_how_to_page(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank writes a run of its own into one store, with its rank on the rows.

    Command and training use the cluster that runs here; test_ray_command.py has one that `audit run` starts.
    """
    pytest.importorskip("tensorboardX")
    blocks = page_blocks((REPOSITORY / "docs" / "howto" / "ray.md").read_text(encoding="utf-8"))
    link_fixtures(tmp_path, REPOSITORY)
    monkeypatch.chdir(tmp_path)
    (script,) = (block for block in blocks if block.title == "train_ray.py")
    Path("train_ray.py").write_text(script.text)
    run, train, listing = (line for block in blocks if block.language == "sh" for line in block.text.splitlines())
    assert_succeeds(run)
    import ray

    ray.shutdown()  # the program connects by itself
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setattr(sys, "argv", shlex.split(train.replace("$PWD", str(tmp_path)))[1:])
    runpy.run_path(sys.argv[0], run_name="__main__")
    assert all(name in assert_succeeds(listing) for name in ("on-ray", "rank-0", "rank-1"))
    with audit.open(tmp_path / "lineage") as opened:
        runs = sorted((run.name, run.status, run.samples) for run in opened.runs())
        assert runs == [("on-ray", "complete", 64), ("rank-0", "complete", 32), ("rank-1", "complete", 32)]
        ranks = opened.sql(
            "SELECT rank, count(*) FROM samples WHERE rank IS NOT NULL GROUP BY rank ORDER BY 1"
        ).fetchall()
        assert ranks == [(0, 32), (1, 32)]
        (outcome,) = opened.check("rank-0", only=["coverage"]).outcomes
    assert outcome.status == "pass", "each sample was drawn by one rank"
