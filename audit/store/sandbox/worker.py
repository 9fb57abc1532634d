"""The process in which an untrusted query runs. `sandbox` starts it; nothing else should.

A fork server imports what is needed, starts no thread and runs no query. It keeps one child ready:
forked, confined (Landlock, resource limits, no new privileges), the store open. A query goes to that
child, which answers once and ends; the next is forked meanwhile. So no query meets what another left
behind, and none waits for an interpreter to start.

Messages are JSON after a length. Nothing here unpickles, and the fork server never reads what a child writes.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import importlib
import io
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from typing import Any

from audit import plainjson
from audit.errors import AuditError, QueryError
from audit.output_file import FORMULA
from audit.store.bucket.location import package_of
from audit.store.part_file import write_parquet
from audit.store.read.freshness import commit_state
from audit.store.read.part_digests import list_checked_parts, trust_digests
from audit.store.read.reader import Reader, Relation
from audit.store.sandbox.landlock import restrict

LENGTH = struct.Struct("<Q")
_PARENT_DEATH_SIGNAL = 1
_LONGEST_CELL = 2_000
#: How many processors and how much memory there are; without them DuckDB ends the process when it connects.
_NEEDED_BY_DUCKDB = ("/proc/self/cgroup", "/sys/fs/cgroup", "/sys/devices/system/cpu/online")
#: Where clients of object stores find credentials, the service's address and what proves it.
_NEEDED_BY_CLIENTS = (
    *("~/.aws", "~/.config/gcloud", "~/.azure"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/run/systemd/resolve"),
    *("/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/lib", "/lib", "/lib64"),
)
_LARGEST_FILE = 256 * 2**20


def main() -> None:
    """Fork children, hand queries to them, reap them, and kill them on request; end with the process that started it."""
    settings = json.loads(sys.argv[1])
    _import_what_is_loaded_late(settings["location"])
    control = socket.socket(fileno=int(sys.argv[2]))
    alive: set[int] = set()
    spare = _fork(settings, control, alive)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1.0):
                message, descriptors, _, _ = socket.recv_fds(control, 9, 1)
                if not message:
                    break
                spare = _handle_message(message, descriptors, spare, settings, control, alive)
            _reap(alive)
    _reap(alive)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


_IMPORTED_LATE = (
    *("pytz", "uuid", "decimal", "zoneinfo", "encodings.idna"),
    *("pyarrow.dataset", "pyarrow.pandas_compat", "pyarrow.parquet", "pyarrow.compute"),
    *("PIL.PngImagePlugin", "PIL.JpegImagePlugin", "PIL.WebPImagePlugin"),
)


class _AbsentLibraries:
    """Libraries that are looked for, slow to load and not needed: reported as not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] in ("pandas", "polars", "torch", "tensorflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _import_what_is_loaded_late(location: str) -> None:
    """Import what DuckDB and Arrow import on first use: a confined child cannot read a library."""
    sys.meta_path.insert(0, _AbsentLibraries)
    for name in _IMPORTED_LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for zone in ("UTC", "Etc/UTC"):  # reads a file the first time; the process is known to live in UTC
        with contextlib.suppress(Exception):
            sys.modules["pytz"].timezone(zone)
    if (package := package_of(location)) is not None:
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    if os.path.isdir(location):
        # Reading the manifests imports what our own reader loads late; it starts no thread, unlike a connection.
        with contextlib.suppress(AuditError):
            commit_state(Reader(location))


Spare = tuple[int, socket.socket]


def _handle_message(
    message: bytes, descriptors: list[int], spare: Spare, settings: Any, control: Any, alive: set[int]
) -> Spare:
    if message[:1] == b"K":
        pid = LENGTH.unpack(message[1:])[0]
        _reap(alive)
        if pid in alive:  # still ours, so the number cannot have gone to another process
            os.kill(pid, signal.SIGKILL)
        return spare
    pid, connection = spare
    with contextlib.suppress(OSError):  # a spare that died: the asker sees its connection close
        socket.send_fds(connection, [b"Q"], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.close()
    control.sendall(LENGTH.pack(pid))
    return _fork(settings, control, alive)


def _reap(alive: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            alive.discard(pid)


def _fork(settings: dict[str, Any], control: socket.socket, alive: set[int]) -> Spare:
    ours, theirs = socket.socketpair()
    fork_server = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        alive.add(pid)
        return pid, ours
    code = 1
    try:
        ours.close()
        control.close()
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == fork_server:
            _serve(theirs, settings)
            code = 0
    finally:
        os._exit(code)


def _serve(connection: socket.socket, settings: dict[str, Any]) -> None:
    """Run one child: confine it, open the store, wait for a query, answer it."""
    confined = _confine(settings)
    opened: Reader | AuditError
    try:
        opened = Reader(settings["location"])
        state = commit_state(opened)
        opened.refresh()  # after the look, so that nothing committed in between goes unseen
        opened.sql("SELECT 1")
    except Exception as error:  # kept for the caller, who would otherwise only see the process end
        opened, state = _as_audit_error(error), ()
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        return
    with socket.socket(fileno=descriptors[0]) as asker:
        request = receive(asker)
        try:
            if isinstance(opened, AuditError):
                raise opened
            trust_digests(opened.location, request["checked"])
            if commit_state(opened) != state:
                opened.refresh()
            header, body = _answer(opened, request)
            known_before = {where for where, *_ in request["checked"]}
            header["checked"] = [
                where for where, *_ in list_checked_parts(settings["location"]) if where not in known_before
            ]
        except Exception as error:  # whatever a hostile query provokes is its answer, not a silent end
            known = _as_audit_error(error)
            header, body = {"error": known.message, "hint": known.hint}, b""
        send(asker, {**header, "confined": confined})
        asker.sendall(body)


def _as_audit_error(error: Exception) -> AuditError:
    if isinstance(error, AuditError):
        return error
    if isinstance(error, MemoryError):
        return QueryError("The query needs more memory than is allowed.", hint="Select fewer rows or columns.")
    return QueryError(f"{type(error).__name__}: {error}")


def _confine(settings: dict[str, Any]) -> int:
    """Give up everything but the store, for good; gives Landlock's ABI, 0 where there is none."""
    location = settings["location"]
    _limit(settings)
    if os.path.isdir(location):
        # What is not loaded by now is reported as missing, not as unreadable: libraries cope with the former alone.
        sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "PathFinder"]
        readable = [location]
    else:
        # A client of an object store imports as it goes, and needs the network and its credentials: no other file.
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        libraries = [folder for folder in sys.path if folder != os.getcwd()]  # which `python -m` puts there
        readable = [own, *libraries, *map(os.path.expanduser, _NEEDED_BY_CLIENTS), *_list_named_files()]
    readable = list(filter(os.path.exists, [*readable, *_NEEDED_BY_DUCKDB]))
    return restrict(readable, network=not os.path.isdir(location)) if settings["landlock"] else 0


def _list_named_files() -> list[str]:
    """Return files that the environment names to such a client: AWS_CONFIG_FILE, GOOGLE_APPLICATION_CREDENTIALS…"""
    return [value for value in os.environ.values() if os.path.isabs(value) and os.path.isfile(value)]


def _limit(settings: dict[str, Any]) -> None:
    def limit_resource(what: int, value: int) -> None:
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))

    with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else io.StringIO("0") as own:
        used = int(own.read().split()[0]) * resource.getpagesize()
    limit_resource(resource.RLIMIT_AS, used + settings["memory"])
    limit_resource(resource.RLIMIT_CPU, int(settings["seconds"]) * (os.cpu_count() or 1) + 5)
    limit_resource(resource.RLIMIT_FSIZE, 0)
    limit_resource(resource.RLIMIT_CORE, 0)
    limit_resource(resource.RLIMIT_NOFILE, 4096)


def _answer(reader: Reader, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the first of the queries that DuckDB can bind: a cheap one may be given before one that sees more columns."""
    begun = time.perf_counter()
    queries = request["queries"]
    for position, query in enumerate(queries):
        relation = reader.sql(query, run=request["runs"], parameters=request["parameters"])
        try:
            if request["form"] == "rows":
                answer, body = _rows(relation, request["limit"]), b""
            else:
                answer, body = {}, _file(relation, request["form"])
        except QueryError as error:
            if position + 1 < len(queries) and error.message.startswith("Binder Error"):
                continue
            raise
        return {**answer, "bytes": len(body), "seconds": time.perf_counter() - begun}, body
    raise QueryError("There is no query to run.")


def _rows(relation: Relation, limit: int) -> dict[str, Any]:
    names: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for names, batch in relation.batches(limit + 1):  # noqa: B007 - the names are needed afterwards
        rows = batch
        if rows:
            break
    return {"columns": names, "rows": [[_cell(c) for c in row] for row in rows[:limit]], "more": len(rows) > limit}


def _cell(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 64:
        return f"({len(value):,} bytes)"
    shown = plainjson.as_plain_json(value)
    if isinstance(shown, str) and len(shown) > _LONGEST_CELL:
        return shown[:_LONGEST_CELL] + "…"
    return shown


def _file(relation: Relation, form: str) -> bytes:
    if form == "parquet":
        sink = io.BytesIO()
        write_parquet(relation.arrow(), sink)
        return sink.getvalue()
    text = io.StringIO()
    writer = csv.writer(text)
    for position, (names, rows) in enumerate(relation.batches()):
        if position == 0:
            writer.writerow([_csv_cell(name) for name in names])
        writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
        if text.tell() > _LARGEST_FILE:
            raise QueryError("The answer is larger than 256 MB.", hint="Use `audit sql QUERY -o FILE.parquet` instead.")
    return text.getvalue().encode("utf-8", "backslashreplace")


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, dict, tuple)):
        return plainjson.dumps(value)
    if not isinstance(value, str):
        return str(plainjson.as_plain_json(value))
    # A spreadsheet takes such a text for a formula, and a file's name is anybody's text.
    return f"'{value}" if value.startswith(FORMULA) else value


def send(to: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    data = plainjson.dumps(message).encode()
    to.sendall(LENGTH.pack(len(data)) + data)


def receive(source: socket.socket, most: int = 64 * 2**20) -> dict[str, Any]:
    """Return one message, or EOFError when the other side ended."""
    size = LENGTH.unpack(receive_exactly(source, LENGTH.size))[0]
    if size > most:
        raise EOFError("the message is longer than the limit")
    message = json.loads(receive_exactly(source, size))
    if not isinstance(message, dict):
        raise EOFError("not a message")
    return message


def receive_exactly(source: socket.socket, count: int) -> bytes:
    """Return so many bytes; raise EOFError if fewer come."""
    pieces = bytearray()
    while len(pieces) < count:
        piece = source.recv(min(1 << 20, count - len(pieces)))
        if not piece:
            raise EOFError("the query's process ended")
        pieces += piece
    return bytes(pieces)


if __name__ == "__main__":
    main()
