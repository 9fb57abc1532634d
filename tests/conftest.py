"""Real parts, small: pictures in class folders, checkpoints, stores. No mocks anywhere."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_programs
from examples import register_profiles
from imported_modules import SLOW_PACKAGES, modules_of, test_files
from PIL import Image
from processes import forbid_processes, needs_a_package
from slow_tests import SlowTestMeter, SlowTestWriter, mark_slow
from work_units import make_scheduler, put_long_units_first

os.environ.setdefault("OMP_NUM_THREADS", "1")

register_profiles()

#: The least free space, in bytes, of a file system in memory that is used for temporary files.
_ENOUGH = 4 << 30

# A shell ignores SIGINT for what it starts in the background, and every child inherits that. A handler of our own is
# not inherited: the programs that tests start have the default one again.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-processes", action="store_true", help="skip every test that starts a process or needs a package"
    )
    parser.addoption("--write-slow-tests", action="store_true", help="write which of the chosen tests take long")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        _keep_temporary_files_in_memory(config)
    if config.getoption("--write-slow-tests"):
        is_worker = hasattr(config, "workerinput")
        if is_worker or not config.getoption("-n", None):
            config.pluginmanager.register(SlowTestMeter())
        if not is_worker:
            config.pluginmanager.register(SlowTestWriter())
    if config.getoption("--no-processes") and (hasattr(config, "workerinput") or not config.getoption("-n", None)):
        forbid_processes()  # not where pytest-xdist itself has to start the workers
    elif config.getoption("-n", None):
        config.add_cleanup(warm_programs.share_warm_programs())
        _fork_test_processes(config)


def _fork_test_processes(config: pytest.Config) -> None:
    """Let pytest-xdist fork its processes from one that has imported what the tests do: importing takes most of collecting."""
    files = [file for file in test_files(config) if not pytest_ignore_collect(file, config)]
    first = [] if config.getoption("--no-processes") else SLOW_PACKAGES
    python = warm_programs.warm_test_process([*first, *modules_of(files)])
    config.option.tx = [f"popen//python={python}" for _ in config.option.tx]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage among modules: what importing them makes stays, and to look through it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries report what is left at the end


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--no-processes") and collection_path.suffix == ".py" and needs_a_package(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--write-slow-tests"):
        mark_slow(items)
    put_long_units_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Tests that start no processes share nothing that is expensive: one by one they fill all processes to the end.
    return None if config.getoption("--no-processes") else make_scheduler(config, log)


def _keep_temporary_files_in_memory(config: pytest.Config) -> None:
    """Put the temporary folders on a file system in memory if there is one: a store waits for the disk at each commit."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ENOUGH:
        folder = tempfile.mkdtemp(prefix="audit-tests-", dir=memory)
        config.option.basetemp = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home folder: no test reads the settings of the user who runs it, or leaves anything there."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.delenv(name, raising=False)
        yield home


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The key of a user who records in these tests, apart from the key of the user who runs them."""
    place = tmp_path_factory.mktemp("xdg")
    before = os.environ.get("XDG_DATA_HOME")
    os.environ["XDG_DATA_HOME"] = str(place)
    yield place
    if before is None:
        del os.environ["XDG_DATA_HOME"]
    else:
        os.environ["XDG_DATA_HOME"] = before


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed torch, if it is imported: models of random weights are then the same in every run of a test."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of class folders with small, all different pictures."""

    def make(count: int = 12, classes: int = 3, size: tuple[int, int] = (24, 18), name: str = "images") -> Path:
        root = tmp_path / name
        for number in range(count):
            folder = root / f"class_{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            generator = np.random.default_rng(number)
            data = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(data).save(folder / f"img_{number:03d}.png")
        return root

    return make


@pytest.fixture
def write_pipeline(tmp_path: Path) -> Callable[..., Path]:
    """Writes a pipeline file that takes pictures in their own mode; each gets a name of its own, as Python imports a name once."""

    def write(text: str) -> Path:
        path = tmp_path / f"pipeline_{tmp_path.name.replace('-', '_')}_{len(list(tmp_path.glob('pipeline_*.py')))}.py"
        path.write_text(
            "mode = 'keep'\nimport random\nimport numpy as np\nimport torch\nfrom torchvision import transforms\nfrom torchvision.transforms import v2\n"
            + text
        )
        return path

    return write


@pytest.fixture
def warm_spawn() -> Iterator[None]:
    """Workers of the start method `spawn` that need not import torch; test_watchdog.py and test_observing.py have cold ones."""
    with warm_programs.warm_spawn():
        yield


@pytest.fixture
def folder_on_disk() -> Iterator[Path]:
    """A temporary folder outside of /dev/shm, for tests that fill or replace /dev/shm."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here: " + mounted.stderr.decode().strip())
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
