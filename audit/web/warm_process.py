"""Run the pipeline's code in a process of its own, without waiting for torch to load each time.

One process for each server loads torch at the first request and forks a child for every request (`warm_child`). A child
has a deadline; at the deadline it is killed with everything that it started. When a package was installed or removed
meanwhile, the process is started again: what it has loaded is then not what a new process would load.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

from audit.errors import AuditError
from audit.plainjson import JsonObject
from audit.store.sandbox.worker import LENGTH, receive_exactly, send

SECONDS = 120.0


class WarmProcess:
    """Starts its process at the first request; `close` ends it."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._installed: tuple[tuple[str, int], ...] = ()

    @property
    def is_warm(self) -> bool:
        """Return whether the process runs already, so that a request does not wait for torch to load."""
        return self._process is not None and self._process.poll() is None

    def ask(self, job: str, request: JsonObject, work: str) -> bytes:
        """Return what a child of the process answers. AuditError when it takes too long; `work` names what took too long."""
        deadline = time.monotonic() + self.seconds
        late = AuditError(f"{work} took longer than {self.seconds:.0f} seconds and was stopped.")
        ours, theirs = socket.socketpair()
        with ours:
            try:
                pid = self._hand_over(theirs, deadline)
            except TimeoutError:
                self.close()
                raise late from None
            try:
                send(ours, {"job": job, **request})
                return _read_all(ours, deadline)
            except TimeoutError:
                raise late from None
            except OSError:
                return b""  # it ended before it answered
            finally:
                self._kill(pid)

    def close(self) -> None:
        """End the process and what runs in it."""
        with self._lock:
            self._stop()

    def _hand_over(self, theirs: socket.socket, deadline: float) -> int:
        """Give one end of a connection to a new child; its process id."""
        with self._lock, theirs:
            for is_last in (False, True):
                control = self._ensure_running()
                control.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    socket.send_fds(control, [b"Q" + bytes(8)], [theirs.fileno()])
                    return int(LENGTH.unpack(receive_exactly(control, LENGTH.size))[0])
                except TimeoutError:
                    raise
                except (OSError, EOFError):  # it ended meanwhile, having been idle: start another, once
                    self._stop()
                    if is_last:
                        raise AuditError("The process that runs pipelines could not be started.") from None
        raise AssertionError("unreachable")

    def _kill(self, pid: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.sendall(b"K" + LENGTH.pack(pid))

    def _ensure_running(self) -> socket.socket:
        installed = _list_installed_packages()
        if self.is_warm and self._control is not None and installed == self._installed:
            return self._control
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        single = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        with theirs:
            self._process = subprocess.Popen(
                # -P: modules in the working directory are not ours
                [sys.executable, "-P", "-m", "audit.web.warm_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **single, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which ends this in its own order
            )
        self._control, self._installed = ours, installed
        return ours

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()  # its children end with it
            self._process.wait()
        self._process = self._control = None


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    pieces = bytearray()
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        piece = connection.recv(1 << 20)
        if not piece:
            return bytes(pieces)
        pieces += piece


def _list_installed_packages() -> tuple[tuple[str, int], ...]:
    """Return when each folder of packages changed last: installing, upgrading and removing change it."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(found)
