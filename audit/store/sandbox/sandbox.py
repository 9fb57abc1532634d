"""Run a query that nobody has read: in a child process with no file but the store, limits, and a deadline.

DuckDB's own lock-down is not enough (see docs/adr/0003-untrusted-queries.md): a statement that is typed SELECT
may write, its memory limit covers one allocator of several, and an interrupt may be ignored. So the
kernel says no: `jail` confines the child before DuckDB starts a thread, and this side kills it at the
deadline. What the child answers is read as JSON and as bytes, never unpickled.

It refuses to be a second query language: a query goes in as it is, rows or a file come out.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from audit.errors import QueryError
from audit.store.filesystem import filesystem_for, local_path
from audit.store.manifest import read_manifests
from audit.store.read.part_digests import check_parts, list_checked_parts
from audit.store.read.rows import Row, as_rows
from audit.store.sandbox.worker import LENGTH, receive, receive_exactly, send

Form = Literal["rows", "csv", "parquet"]

_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL")
_KEPT_FOR_REMOTE = (
    *("AWS_", "AZURE_", "GOOGLE_", "GCSFS_", "STORAGE_EMULATOR_HOST"),
    *("HOME", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_LARGEST_BODY = 512 * 2**20
#: A process that ends within so many seconds of being asked may have been dead before.
_AT_ONCE = 1.0


@dataclass(slots=True)
class Answer:
    """What a confined query gave: rows, or a file's bytes."""

    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    more: bool = False
    seconds: float = 0.0
    body: bytes = b""
    #: Landlock's ABI in the child; 0 where the kernel has none and only DuckDB's lock-down and the limits held.
    confined: int = 0
    #: The parts that the child checked against their digests, because this process had not.
    checked: list[str] = field(default_factory=list)

    def typed_rows(self, row: type[Row]) -> list[Row]:
        """Return the rows as a TypedDict or dataclass that has exactly their columns."""
        return as_rows(row, self.columns, self.rows)


#: So many queries run at the same time.
_MOST_QUERIES = 2


class Sandbox:
    """Confined queries over one store. Starts its process at the first query; `close` ends it."""

    def __init__(self, location: str, *, seconds: float = 20.0, memory: int = 2 * 2**30, landlock: bool = True) -> None:
        path = local_path(location)
        self.location = location if path is None else os.path.abspath(path)
        self.seconds = seconds
        self._settings = {"location": self.location, "seconds": seconds, "memory": memory, "landlock": landlock}
        self._slots = threading.BoundedSemaphore(_MOST_QUERIES)
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def query(
        self,
        *queries: str,
        runs: Sequence[str] | None = None,
        parameters: Sequence[Any] = (),
        form: Form = "rows",
        limit: int = 1_000,
        seconds: float | None = None,
    ) -> Answer:
        """Return the answer to the first of `queries` that DuckDB can bind; QueryError with DuckDB's message otherwise."""
        seconds = seconds or self.seconds
        request: dict[str, Any] = {
            "queries": queries,
            "runs": runs,
            "parameters": list(parameters),
            "form": form,
            "limit": limit,
            "checked": list_checked_parts(self.location),
        }
        if not self._slots.acquire(timeout=seconds):
            raise QueryError("Other queries are still running.", hint="Wait for them, or try again.")
        try:
            answer = self._ask(request, seconds)
        finally:
            self._slots.release()
        if answer.checked:
            threading.Thread(
                target=self._check_too, args=[answer.checked], name="audit-part-check", daemon=True
            ).start()
        return answer

    def _check_too(self, paths: Sequence[str]) -> None:
        """Check here what a child checked, so that the next one need not; a child that ran a query is not believed."""
        filesystem = filesystem_for(self.location)
        with self._checking:
            check_parts(filesystem, read_manifests(filesystem)[0], set(paths))

    def start(self) -> None:
        """Start the process now rather than at the first query."""
        with self._lock:
            self._ensure_fork_server()

    def close(self) -> None:
        """End the process and every query that runs in it."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._fork_server is not None:
                try:
                    self._fork_server.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    self._fork_server.kill()
                    self._fork_server.wait()
            self._fork_server = self._control = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], allowed: float) -> Answer:
        deadline = time.monotonic() + allowed
        for is_last in (False, True):
            asked = time.monotonic()
            try:
                return self._ask_once(request, deadline)
            except TimeoutError:
                raise QueryError(
                    f"The query was stopped: it took longer than {allowed:g} seconds.",
                    hint="Narrow it (a WHERE, a LIMIT), or run it without a time limit: audit sql QUERY",
                ) from None
            except (EOFError, OSError, ValueError):
                # A process that was dead before it was asked shows at once; then the query is not to blame.
                if is_last or time.monotonic() - asked > _AT_ONCE:
                    raise QueryError(
                        "The query's process ended: it used more memory or time than is allowed.",
                        hint="Narrow it (a WHERE, a LIMIT), or run it without limits: audit sql QUERY",
                    ) from None
        raise AssertionError("unreachable")

    def _ask_once(self, request: dict[str, Any], deadline: float) -> Answer:
        ours, theirs = socket.socketpair()
        with ours:
            pid = self._hand_over(theirs)
            try:
                send(ours, request)
                return self._read(ours, deadline)
            finally:
                self._kill(pid)

    def _read(self, ours: socket.socket, deadline: float) -> Answer:
        timer = threading.Timer(max(0.01, deadline - time.monotonic()), _shut, [ours])
        timer.daemon = True
        timer.start()
        try:
            header = receive(ours)
            if "error" in header:
                raise QueryError(str(header["error"]), hint=header.get("hint"))
            size = int(header.pop("bytes", 0))
            if size > _LARGEST_BODY:
                raise EOFError("the answer is longer than the limit")
            return Answer(**header, body=receive_exactly(ours, size))
        except (EOFError, OSError):
            if time.monotonic() >= deadline - 0.005:
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()

    def _hand_over(self, theirs: socket.socket) -> int:
        """Give one end of a connection to the child that is ready; its process id."""
        with self._lock, theirs:
            for attempt in (0, 1):
                control = self._ensure_fork_server()
                try:
                    socket.send_fds(control, [b"Q" + bytes(8)], [theirs.fileno()])
                    return int(LENGTH.unpack(receive_exactly(control, LENGTH.size))[0])
                except (OSError, EOFError):
                    self._fork_server = None  # it was killed from outside: start another, once
                    if attempt:
                        raise QueryError("The process for queries could not be started.") from None
        raise AssertionError("unreachable")

    def _kill(self, pid: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.sendall(b"K" + LENGTH.pack(pid))

    def _ensure_fork_server(self) -> socket.socket:
        if self._fork_server is not None and self._fork_server.poll() is None and self._control is not None:
            return self._control
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._fork_server = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "audit.store.sandbox.worker",
                    json.dumps(self._settings),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which ends this in its own order
            )
        self._control = ours
        return ours

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of the child. They hold nothing that a query could give away; one thread for libraries that would start more before the fork."""
        remote = _KEPT_FOR_REMOTE if local_path(self.location) is None else ()
        kept = {k: v for k, v in os.environ.items() if k in _KEPT_VARIABLES or (remote and k.startswith(remote))}
        single = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        return {**kept, **single, "TZ": "UTC", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
