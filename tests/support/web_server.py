"""The web app in a process of its own."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warm_programs import warm_python
from webstores import ROOT


@contextmanager
def serve_store(place: Path, *options: str) -> Iterator[str]:
    """`serve` in a process of its own; gives its address, and ends it."""
    keywords = ", ".join(("port=0", *options))
    # The processes that it starts, for queries and for replays, need not load their libraries again.
    code = f"import sys; sys.executable = {warm_python()!r}; from audit.web.server import serve; "
    code += f"serve({str(place)!r}, {keywords}, ready=lambda a: print(a.url, flush=True))"
    process = subprocess.Popen([warm_python(), "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        for _ in range(150):
            try:
                urllib.request.urlopen(address, timeout=5)
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
