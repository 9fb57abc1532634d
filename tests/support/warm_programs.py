"""`audit`, `python`, `torchrun`, Ray's workers and the processes of pytest-xdist as programs that start at once.

Importing torch and torchvision takes longer than most commands. One process imports them, and each command is a process
forked from it: with its own folder, environment, standard streams, process group and exit status. What only a new interpreter
has (`PYTHONHASHSEED`, entry points of a folder, packages that are hidden) needs `sys.executable` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import json
import multiprocessing.spawn
import os
import random
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

_CLIENT = """#!{python} -IS
import json, os, signal, socket, struct, sys
def is_open(number):
    try:
        return bool(os.fstat(number))
    except OSError:
        return False
streams = [number for number in map(int, os.listdir("/dev/fd")) if is_open(number)]
request = {{"program": "{program}", "arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ), "streams": streams}}
data = json.dumps(request).encode()
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
socket.send_fds(server, [struct.pack("I", len(data))], streams)
server.sendall(data)
(pid,) = struct.unpack("i", server.recv(4))
for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(kind, lambda kind, frame: os.kill(pid, kind))
(status,) = struct.unpack("i", server.recv(4))
if os.WIFSIGNALED(status):
    signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.waitstatus_to_exitcode(status))
"""
#: Standard streams, and what a program inherits besides.
_MOST_STREAMS = 200
_MODULES = (
    "torch",
    "torchvision",
    "numpy",
    "duckdb",
    "pyarrow.dataset",
    "scipy.stats",
    "audit.api",
    "audit.engines.local",
    "audit.web.server",
    # What workers of Ray import besides. Ray itself reads its settings when it is imported: each worker does that.
    "audit.engines.ray.work",
    "google.protobuf.message",
    "jsonschema",
    "pandas",
    "requests",
)


_PROGRAMS = ("audit", "python", "torchrun", "ray-worker")
#: A `python` that has imported what test files import.
_TEST_PROCESS = "test-process"
#: What follows the path of the programs' socket in the path of the socket for test processes.
_OF_TESTS = ".tests"
#: Names the folder of the programs that all processes of a test run share.
_FOLDER_VARIABLE = "AUDIT_TESTS_WARM_PROGRAMS"


def share_warm_programs() -> Callable[[], None]:
    """Let processes that are started from now on share one warm process. Call what is returned to end it."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    os.mkfifo(folder / "user")
    # For reading and writing, or it would wait for somebody who reads. The warm process ends when nobody has it open to write.
    user = os.open(folder / "user", os.O_RDWR)
    os.environ[_FOLDER_VARIABLE] = str(folder)

    def end() -> None:
        os.environ.pop(_FOLDER_VARIABLE, None)
        os.close(user)
        shutil.rmtree(folder, ignore_errors=True)

    return end


@lru_cache(maxsize=1)
def warm_folder() -> Path:
    """Return a folder with the programs; the process behind them ends with this one, or with the one that shares it."""
    if (shared := os.environ.get(_FOLDER_VARIABLE)) is None:
        atexit.register(share_warm_programs())
        shared = os.environ.pop(_FOLDER_VARIABLE)  # only this process knows of it
    folder = Path(shared)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start(folder, [])
    return folder


def warm_test_process(modules: list[str]) -> str:
    """Return the path of a `python` that has imported these modules, too. Call it before any other program is used.

    The programs that tests start do not have these modules: a command must not find what only a test imports.
    """
    folder = Path(os.environ[_FOLDER_VARIABLE])
    _start(folder, modules)
    return str(folder / "test-process")


def _start(folder: Path, modules: list[str]) -> None:
    path = folder / "socket"
    for program in (*_PROGRAMS, _TEST_PROCESS):
        file = folder / program
        socket_path = f"{path}{_OF_TESTS if program == _TEST_PROCESS else ''}"
        file.write_text(_CLIENT.format(python=sys.executable, program=program, path=socket_path))
        file.chmod(0o755)
    command = [sys.executable, __file__, str(path), str(folder / "user"), *modules]
    server = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 600
    while not path.exists():
        assert server.poll() is None, "the process behind the programs ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def warm_audit() -> str:
    """Return the path of `audit`."""
    return str(warm_folder() / "audit")


def warm_python() -> str:
    """Return the path of a `python` that takes a script, `-m MODULE` or `-c PROGRAM`, with arguments, after `-u`, `-P` or neither."""
    return str(warm_folder() / "python")


@contextlib.contextmanager
def warm_spawn() -> Iterator[None]:
    """Fork processes of the start method `spawn` from the warm process: nothing but modules of libraries is there before.

    Their `pid` is that of a process which ends with them.
    """
    resource_tracker.ensure_running()  # by itself: it outlives this
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(warm_python())
    try:
        yield
    finally:
        multiprocessing.set_executable(before)


def warm_ray_worker() -> str:
    """Return the path of a script that starts a worker of Ray, for the option `setup_worker_path` of its nodes."""
    return str(warm_folder() / "ray-worker")


# -- the process behind them -----------------------------------------------------------------------


def _serve(path: str, user: str, modules: list[str]) -> Callable[[], None] | None:
    """Fork a process for each command. Returns what to do in the processes of commands, and None at the end."""
    parent = os.open(user, os.O_RDONLY)
    of_tests = _listen(path + _OF_TESTS)  # what connects waits until everything is imported
    listener = _listen(path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import(_MODULES)
    if modules and os.fork() == 0:
        _import(modules)
        listener, of_tests = of_tests, listener
    of_tests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        waiting: list[Any] = [listener, parent]
        if parent in select.select(waiting, [], [])[0]:
            return None
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        os.close(parent)
        return _begin(connection)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)
    return listener


def _import(modules: Iterable[str]) -> None:
    gc.disable()  # what importing makes stays
    for name in modules:
        with contextlib.suppress(ImportError):  # not every environment has what Ray needs
            __import__(name)
    gc.enable()
    gc.freeze()  # a collection in a child would copy every page


def _begin(connection: socket.socket) -> Callable[[], None]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, 4, _MOST_STREAMS)
    (size,) = struct.unpack("I", head)
    request = json.loads(connection.recv(size, socket.MSG_WAITALL))
    pid = os.fork()
    if pid == 0:
        connection.close()
        return lambda: _run(request, streams)
    for stream in streams:
        os.close(stream)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(struct.pack("i", pid))
    ended = os.pidfd_open(pid)
    waiting: list[Any] = [connection, ended]
    if ended not in select.select(waiting, [], [])[0]:
        # The program was killed: so is what it stands for, with all that it has started.
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(struct.pack("i", status))
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> None:
    os.setsid()
    # Out of the way first: one may have the number that another must get.
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, 2 * _MOST_STREAMS) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(request["streams"], moved, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    is_terminal = os.isatty(1)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=is_terminal)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # as TMPDIR says here
    random.seed()
    sys.modules["numpy"].random.seed()
    _execute(request["program"], request["arguments"])


def _execute(program: str, arguments: list[str]) -> None:
    if program == "audit":
        sys.path[0] = os.getcwd()
        sys.argv = ["audit", *arguments]
        from audit.__main__ import main

        main()
    elif program == "torchrun":
        os.environ["PYTHON_EXEC"] = str(Path(sys.argv[1]).with_name("python"))  # its processes are forked, too
        sys.argv = ["torchrun", *arguments]
        runpy.run_module("torch.distributed.run", run_name="__main__")
    elif program == "ray-worker":
        _run_ray_worker(arguments)
    elif arguments[0] == "-B":  # multiprocessing passes it on where PYTHONDONTWRITEBYTECODE is set
        _execute(program, arguments[1:])
    elif arguments[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        _execute(program, arguments[1:])
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        del sys.modules["__main__"].__file__  # processes that it starts must not import this file as their main module
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif arguments[:2] == ["-P", "-m"]:
        sys.argv = arguments[2:]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _run_ray_worker(arguments: list[str]) -> None:
    """Do what Ray's own setup_worker.py does, which starts another interpreter for the worker."""
    given = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    context = json.loads(given.get("--serialized-runtime-env-context") or "{}")
    assert not context.get("command_prefix"), "this worker needs Ray's own script"
    os.environ.update(context.get("env_vars") or {})
    ours = ("--serialized-runtime-env-context=", "--language=")
    sys.argv = [argument for argument in arguments if not argument.startswith(ours)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _exit_status(command: Callable[[], None]) -> int:
    """Run a command as an interpreter does, up to what it does at its exit."""
    try:
        command()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    command = _serve(sys.argv[1], sys.argv[2], sys.argv[3:])
    if command is None:
        os._exit(0)
    else:
        status = _exit_status(command)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        # Without taking the interpreter apart, which would touch every page of memory that is shared.
        os._exit(status)
