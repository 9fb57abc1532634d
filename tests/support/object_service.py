"""A real S3 server on loopback (moto's), and a proxy before it that counts what passes and fails on demand.

Not a mock: every request goes over HTTP to a server that keeps objects, and what is asserted is what that server holds.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from audit.store.filesystem import filesystem_for

SECRET = "hunter2hunter2hunter2"
KEY = "AKIAEXAMPLEEXAMPLE00"

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{key} may not, says {key}</Message></Error>"
_CODES = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    403: "AccessDenied",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass
class Fault:
    """What happens to the next requests that match: a status, with or without the request's effect, or no reply."""

    method: str
    ending: str
    status: int = 0
    #: The request reaches the server first.
    arrives: bool = False
    #: The reply comes only after so many seconds.
    delay: float = 0.0
    #: The connection ends in the middle of the reply.
    cut: bool = False
    times: int = 1


@dataclass(frozen=True)
class WrittenVisit:
    """One request as the server saw it."""

    method: str
    path: str
    status: int
    sent: int


class Service:
    """The server, the proxy, and what passed through it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self.behind = self._moto.get_host_and_port()
        self.faults: list[Fault] = []
        self.seen: list[WrittenVisit] = []
        self.lock = threading.Lock()
        self._numbers = itertools.count()
        owner = self

        class Handler(_Handler):
            service = owner

        self._proxy = _Proxy(("127.0.0.1", 0), Handler)
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._proxy.server_port}"

    @contextlib.contextmanager
    def set_environment(self) -> Iterator[None]:
        """In the block this process, and all that it starts, know the service from the environment."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", self.endpoint)
            patch.setenv("AWS_ACCESS_KEY_ID", KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield

    def bucket(self) -> str:
        """A new, empty bucket."""
        name = f"bucket-{next(self._numbers)}"
        connection = http.client.HTTPConnection(*self.behind)
        connection.request("PUT", f"/{name}", headers={"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/x/s3"})
        assert connection.getresponse().status == 200
        connection.close()
        return name

    def fault(self, method: str, ending: str, **what: Any) -> None:
        """Let the next request of that method, whose path ends so, fail."""
        with self.lock:
            self.faults.append(Fault(method, ending, **what))

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The fault that is meant for this request, if there is one."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and path.partition("?")[0].endswith(fault.ending):
                    fault.times -= 1
                    return fault
        return None

    def requests(self, method: str, part: str = "") -> list[WrittenVisit]:
        """What passed so far."""
        with self.lock:
            return [seen for seen in self.seen if seen.method == method and part in seen.path]

    def forget(self) -> None:
        """Begin to count again, without faults."""
        with self.lock:
            self.seen.clear()
            self.faults.clear()

    def close(self) -> None:
        """Stop both servers."""
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.stop()


def winners(place: str) -> list[bytes]:
    """Eight writers create the same object at once: what those wrote that were reported to have made it."""
    won: list[bytes] = []

    def compete(number: int) -> None:
        try:
            filesystem_for(place).create("prize", b"%d" % number)
            won.append(b"%d" % number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=compete, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def make_old(place: str, path: str) -> None:
    """Let a lease look as if its holder had not renewed it for longer than it lasts."""
    import boto3

    client = boto3.client("s3")
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    where = {"Bucket": bucket, "Key": f"{prefix}/{path}"}
    lease = json.loads(client.get_object(**where)["Body"].read())
    client.put_object(**where, Body=json.dumps(lease | {"seconds": -1}).encode())


class _Proxy(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that was killed, or did not wait, is not an error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def _serve(self) -> None:
        body = self._body()
        fault = self.service.take_fault(self.command, self.path)
        if fault is not None and fault.status and not fault.arrives:
            self._error(fault.status)
            return
        connection = http.client.HTTPConnection(*self.service.behind)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault is not None and fault.status:
            self._error(fault.status)
        elif fault is not None and not fault.delay and not fault.cut:
            self.close_connection = True  # the reply is lost
        else:
            time.sleep(fault.delay if fault is not None else 0)
            self._reply(answer.status, answer.getheaders(), data, cut=fault is not None and fault.cut)

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length")
        return self.rfile.read(int(length)) if length else None

    def _error(self, status: int) -> None:
        content = _ERROR.format(code=_CODES[status], key=KEY).encode()
        self._reply(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))], content)

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
        with self.service.lock:
            self.service.seen.append(WrittenVisit(self.command, self.path, status, len(data)))
        try:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            if not any(name.lower() == "content-length" for name, _ in headers):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut
        except OSError:
            self.close_connection = True  # who asked did not wait

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""
