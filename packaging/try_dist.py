"""Try the built wheel in a clean environment of each Python that is found: `make try-dist`.

For each interpreter: install the wheel with the versions of constraints.txt, record the digits, replay them, and run the
tests of the sdist that need no large optional package. torch is large, so one environment exists at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
TESTS = ("tests/values", "tests/recorders", "tests/lineage", "tests/store", "tests/sources", "tests/models")
QUICK = "not ray and not buckets and not browser and not workers and not slow"


def main() -> None:
    """Try each interpreter in turn, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this version (repeatable)")
    parser.add_argument("--second", action="store_true", help="only the newest one beside this Python; none is fine")
    parser.add_argument("--tests", action=argparse.BooleanOptionalAction, default=True, help="run the sdist's tests")
    options = parser.parse_args()
    found = [version for version in options.python or VERSIONS if interpreter(version)]
    if options.second:
        found = [version for version in found if version != f"{sys.version_info.major}.{sys.version_info.minor}"][-1:]
        if not found:
            print("no second Python was found: the wheel was not tried")
            return
    if not found:
        sys.exit("no Python of 3.11 to 3.13 was found")
    for version in found:
        with tempfile.TemporaryDirectory() as folder:
            try_python(str(interpreter(version)), Path(folder), tests=options.tests)
        print(f"Python {version}: passed")


def interpreter(version: str) -> str | None:
    """Give the path of an interpreter that starts, or None."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python{version}")]
    starts = (str(path) for path in paths if path and not subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL))
    return next(starts, None)


def try_python(python: str, folder: Path, *, tests: bool) -> None:
    """Install the wheel for one interpreter, and use it."""
    wheel, sdist = find_newest("*.whl"), find_newest("*.tar.gz")
    run([python, "-m", "venv", folder / "venv"])
    inside = folder / "venv" / "bin" / "python"
    packages = [f"{wheel}[checks,safetensors,pandas,sign]", "pytest", "hypothesis", "psutil", "scikit-learn", "pyyaml"]
    packages += ["httpx2", "opencv-python-headless"]
    run([inside, "-m", "pip", "install", "-qq", "-c", REPOSITORY / "constraints.txt", *packages])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(unpacked / "audit")  # the installed package is what is tried
    audit = [folder / "venv" / "bin" / "audit"]
    digits = ["--dataset", "fixtures/digits/test", "--model", "fixtures/digits.pt", "--pipeline", "pipelines/digits.py"]
    run([*audit, "run", *digits, "--store", folder / "store"], cwd=unpacked)
    run([*audit, "replay", "latest", "--store", folder / "store"], cwd=unpacked)
    if tests:
        run([inside, "-m", "pytest", "-q", "-m", QUICK, "--ignore=tests/store/bucket", *TESTS], cwd=unpacked)


def find_newest(pattern: str) -> Path:
    """Give the newest built file of a kind."""
    files = sorted((REPOSITORY / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
    return files[-1] if files else sys.exit("nothing is built: run `make dist` first")


def run(words: list[object], cwd: Path | None = None) -> None:
    """Run a command without this environment's own paths, and stop where it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([str(word) for word in words], cwd=cwd, env=clean, check=True)


if __name__ == "__main__":
    main()
