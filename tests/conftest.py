"""Real parts, small: pictures in class folders, checkpoints, stores. No mocks anywhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")


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
    """Writes a pipeline file; each gets a name of its own, as Python imports a name once."""

    def write(text: str) -> Path:
        path = tmp_path / f"pipeline_{tmp_path.name.replace('-', '_')}_{len(list(tmp_path.glob('pipeline_*.py')))}.py"
        path.write_text(
            "import random\nimport numpy as np\nimport torch\nfrom torchvision import transforms\nfrom torchvision.transforms import v2\n"
            + text
        )
        return path

    return write


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
