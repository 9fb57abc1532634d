"""The warm process: it has torch loaded, runs nothing of a pipeline itself, and forks a child for each request.

`warm_process` starts it. A child is forked from a state in which no user code has run, answers once and ends, so that
no verdict can depend on what another replay left behind. The process ends when its server ends, and when nobody asked
for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from audit.store.sandbox.worker import LENGTH, receive
from audit.web import derive_job, replay_job

#: What is done for a request, by its name: each takes the request and returns the bytes of the answer.
JOBS: dict[str, Callable[..., bytes]] = {"replay": replay_job.answer, "derive": derive_job.answer}
#: Loading these takes seconds, using them afterwards does not. None starts a thread of Python's or a pool of torch's.
_LOADED_MODULES = (
    *(
        "numpy.random",
        "torch",
        "torchvision.transforms.v2",
        "torchvision.datasets",
        "pandas",
        "pytz",
        "PIL.JpegImagePlugin",
    ),
    *("pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset", "audit.lineage.replay.replay", "audit.engines.assemble"),
    *("audit.lineage.replay.pipeline", "audit.recorders.loop.recorded_dataset"),
)
_IDLE_SECONDS = 900.0
_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    """Load, then fork, hand over, reap and kill on request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in _LOADED_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    alive: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            has_children = bool(alive)
            if not selector.select(timeout=1.0 if has_children else _IDLE_SECONDS):
                _reap(alive)
                if has_children:
                    continue
                break
            message, descriptors, _, _ = socket.recv_fds(control, 9, 1)
            if not message:
                break
            _reap(alive)
            _handle_message(message, descriptors, control, alive)
    for pid in alive:
        _kill(pid)


def _handle_message(message: bytes, descriptors: list[int], control: socket.socket, alive: set[int]) -> None:
    if message[:1] == b"K":
        pid = LENGTH.unpack(message[1:])[0]
        if pid in alive:  # still ours, so the number cannot have gone to another process
            _kill(pid)
        return
    pid = _fork(descriptors[0], control)
    alive.add(pid)
    os.close(descriptors[0])
    control.sendall(LENGTH.pack(pid))


def _reap(alive: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            alive.discard(pid)


def _kill(pid: int) -> None:
    """End a child and the processes that its pipeline started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # it may not have its own group yet
        os.kill(pid, signal.SIGKILL)


def _fork(descriptor: int, control: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        control.close()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            _serve(descriptor)
            code = 0
    finally:
        os._exit(code)


def _serve(descriptor: int) -> None:
    """Read one request, write its answer."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _reseed()
    with socket.socket(fileno=descriptor) as asker:
        request: dict[str, Any] = receive(asker)
        asker.sendall(JOBS[request.pop("job")](request))


def _reseed() -> None:
    """Give this child numbers of its own where a pipeline seeds nothing, as a new process would have."""
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()


if __name__ == "__main__":
    main()
