"""Stores, a served app and a browser, each made once."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from photo_store import record_photos
from warm_programs import warm_python
from web_server import serve_store
from webstores import ROOT, begin, record_digits, record_training

#: Files that look at the processes of an app themselves.
COLD = ("test_warm_process", "test_web_sandbox")
NEAREST = "v2.Resize(16, antialias=True)", "v2.Resize(16, interpolation=v2.InterpolationMode.NEAREST)"


@pytest.fixture(scope="module", autouse=True)
def warm_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """The processes that an app starts, for queries and for replays, need not load their libraries again."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption("--no-processes") and request.module.__name__ not in COLD:
            patch.setattr(sys, "executable", warm_python())
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs that differ in one stage, one that kept digests alone, one of which a file was edited, one with epochs."""
    folder = tmp_path_factory.mktemp("web")
    place = folder / "lineage"
    other = folder / "nearest.py"
    other.write_text((ROOT / "pipelines" / "digits.py").read_text().replace(*NEAREST))
    edited = folder / "edited" / "0"
    edited.mkdir(parents=True)
    for source in sorted((ROOT / "fixtures" / "digits" / "test" / "0").iterdir())[:3]:
        shutil.copy(source, edited)
    record_digits(
        place,
        {"name": "edited", "dataset": str(edited.parent), "model": None, "limit": None},
        {"name": "digest", "limit": 40, "capture": "digest"},
        {"name": "baseline"},
        {"name": "nearest", "pipeline": str(other)},
    )
    shutil.copy(next(iter((ROOT / "fixtures" / "digits" / "test" / "1").iterdir())), sorted(edited.iterdir())[1])
    record_training(place)
    return place


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of real photographs: runs `photos`, `nearest`, `digests` and `training`."""
    return record_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def gallery_site(photos: Path) -> Iterator[str]:
    """The address of the served photographs; its pages may write."""
    with serve_store(photos, "write=True") as address:
        yield address


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without a run."""
    place = tmp_path_factory.mktemp("empty") / "lineage"
    writer = begin(place, "gone")
    run = writer.finish("complete")
    shutil.rmtree(place / "runs" / run.run_id)
    return place


@pytest.fixture(scope="session")
def site(digits: Path) -> Iterator[str]:
    """The address of the served digits."""
    with serve_store(digits) as address:
        yield address


#: One process shows all pages, one after the other: to start another for each costs a quarter of what a page does.
CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu"),
    *("--renderer-process-limit=1", "--disable-site-isolation-trials", "--in-process-gpu"),
]


#: The first that is found is used. The shell has no window, not even one that is never shown: a page costs two thirds.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
#: The browser and its pages.
_OPEN = contextlib.ExitStack()


@pytest.fixture(scope="session")
def browser() -> Any:
    """Headless Chromium; skips, visibly, where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    running = _OPEN.enter_context(playwright.sync_playwright())
    made = running.chromium.launch(executable_path=found, args=CHROMIUM)
    _OPEN.callback(made.close)
    return made


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the browser after the last test of this folder: while it is open, no test can call `asyncio.run`."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _OPEN.close()


VIEWPORT = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def window(browser: Any) -> Any:
    """One page for all tests: to open one costs more than most of them. It hears complaints, requests and injected calls."""
    context = browser.new_context(viewport=VIEWPORT)
    _OPEN.callback(context.close)
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    opened.complaints, opened.asked, opened.hits = [], [], []
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.on("dialog", lambda dialog: (opened.hits.append(dialog.message), dialog.dismiss()))
    opened.expose_function("hit", lambda *what: opened.hits.append(what))
    return opened


@pytest.fixture
def page(window: Any) -> Iterator[Any]:
    """The page, as if fresh; whatever the console or a script complains of, and whatever was injected and ran, fails the test."""
    for collected in (window.complaints, window.asked, window.hits):
        collected.clear()
    yield window
    window.goto("about:blank")
    window.set_viewport_size(VIEWPORT)
    window.emulate_media(color_scheme="light")
    assert window.hits == []
    # A picture that is not stored, a run that is not there: what was asked for is missing, and that is not a defect of the page.
    assert [text for text in window.complaints if not any(code in text for code in ("400", "404", "422"))] == []
