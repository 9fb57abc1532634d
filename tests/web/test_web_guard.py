"""Who may ask: names, origins, tokens, and what every answer forbids the browser."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from places import PYTHON
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from webstores import ROOT, begin, write_samples

from audit.errors import StoreNotFound, UsageError
from audit.web.app import ROUTES, build
from audit.web.guard import is_loopback
from audit.web.protocol import PatientProtocol
from audit.web.server import serve

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("guard") / "lineage"
    writer = begin(place, "one", classes=["a", "b"])
    write_samples(writer, [{"label": 0, "predicted": 1, "label_name": "a"}])
    writer.finish("complete")
    return place


@pytest.fixture(scope="module")
def local(place: Path) -> Iterator[TestClient]:
    with TestClient(build(str(place)), base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.fixture(scope="module")
def remote(place: Path) -> Iterator[TestClient]:
    app = build(str(place), hosts=["example.test"], token=TOKEN, replay=False)
    with TestClient(app, base_url="http://example.test", follow_redirects=False) as client:
        yield client


@pytest.mark.workers
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8765", "[::1]:8765", "LOCALHOST"])
def test_our_names(local: TestClient, host: str) -> None:
    assert local.get("/", headers={"host": host}).status_code == 200


@pytest.mark.workers
@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.test",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "evil.test:8765",
            "",
            "127.0.0.1@evil.test",
            "10.0.0.1",
        ),
        *(
            "localhost:8765:evil",
            "localhost/evil",
            "0.0.0.0",
            "127.0.0.2",
            "localhost evil",
            "[::1]evil",
            "xn--localhost-.test",
        ),
    ],
)
def test_other_names_are_refused(local: TestClient, host: str) -> None:
    """A name that was made to resolve to this machine (DNS rebinding) is not ours."""
    assert local.get("/", headers={"host": host}).status_code == 421


@pytest.mark.workers
@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "http://127.0.0.1:1", "https://localhost", "file://", "http://"]
)
def test_other_origins_are_refused(local: TestClient, origin: str) -> None:
    assert local.get("/", headers={"origin": origin}).status_code == 403
    assert local.post("/run/latest/trace/0/replay", headers={"origin": origin}).status_code == 403


@pytest.mark.workers
def test_what_does_something_needs_an_origin(local: TestClient) -> None:
    assert local.post("/run/latest/trace/0/replay").status_code == 403
    for site in ("cross-site", "same-site", "none"):
        assert local.post("/run/latest/trace/0/replay", headers={"sec-fetch-site": site}).status_code == 403


@pytest.mark.workers
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_can_link_here_but_not_embed(local: TestClient, site: str) -> None:
    navigate = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert local.get("/", headers=navigate).status_code == 200
    for mode, destination in (("no-cors", "image"), ("cors", "empty"), ("no-cors", "script"), ("navigate", "iframe")):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": destination}
        assert local.get("/run/latest/picture/0/0", headers=headers).status_code == 403


@pytest.mark.workers
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(local: TestClient, method: str) -> None:
    assert local.request(method, "/").status_code == 405


@pytest.mark.workers
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/sql?q=nope", "/nope", "/static/app.js", "/run/latest/picture/0/0", "/run/nope", "/static/../app.py"),
        *("/run/one/panel/unknown", "/run/one/map/points", "/run/one/value/0/99", "/compare/result"),
    ],
)
def test_every_answer_carries_the_policy(local: TestClient, path: str) -> None:
    headers = local.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.workers
def test_an_error_that_no_page_catches_carries_the_policy(place: Path) -> None:
    def fail(_: Request) -> Response:
        raise RuntimeError("a fault of ours")

    app = build(str(place))
    app.router.routes.insert(0, Route("/fail", fail))
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        answer = client.get("/fail")
        assert answer.status_code == 500
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert client.get("/run/one/panel/unknown").status_code == 404


async def _exchange(app: Starlette, send: bytes, wait: float) -> tuple[bytes, bool]:
    """Return what a server answers within a time, and whether it then ended the connection."""
    server = uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, port=0, lifespan="off", log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
    await loop.sock_sendall(client, send)
    await asyncio.sleep(wait)
    ended = not server.server_state.connections
    answer = b""
    with contextlib.suppress(OSError, TimeoutError):
        answer = await asyncio.wait_for(loop.sock_recv(client, 65536), 1)
    client.close()
    server.should_exit = True
    await serving
    return answer, ended


def _run(exchange: Coroutine[Any, Any, tuple[bytes, bool]]) -> tuple[bytes, bool]:
    """Run it in a thread: a browser of another test has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, exchange).result()


def _large(_: Request) -> Response:
    return Response(bytes(64 * 2**20))


def _small(_: Request) -> Response:
    return Response(b"small")


_ROUTES = [Route("/large", _large), Route("/small", _small)]


@pytest.mark.parametrize(
    ("request_", "ended"),
    [
        (b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n", True),  # never reads the answer
        (b"GET /small HTTP/1.1\r\nhost: loc", True),  # never completes the request
        (b"GET /small HTTP/1.1\r\nhost: localhost\r\n\r\n", False),
    ],
)
def test_a_client_that_keeps_the_server_waiting_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, request_: bytes, ended: bool
) -> None:
    monkeypatch.setattr("audit.web.protocol.PATIENCE", 0.4)
    assert _run(_exchange(Starlette(routes=_ROUTES), request_, 1.2))[1] == ended


def test_what_is_not_http_is_refused_with_the_policy() -> None:
    answer, _ = _run(_exchange(Starlette(routes=_ROUTES), b"\x16\x03\x01 not http\r\n\r\n", 0.3))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy: default-src 'none'" in answer


@pytest.mark.workers
@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2fconfig.py",
        "/static//etc/passwd",
        "/static/pages/..%5c..%5capp.py",
    ],
)
def test_static_files_stay_inside(local: TestClient, path: str) -> None:
    assert local.get(path).status_code == 404


def test_no_address_takes_a_path() -> None:
    """No route has a parameter that could hold a slash."""
    assert not [route for route in ROUTES if ":path" in getattr(route, "path", "")]


@pytest.mark.workers
def test_a_token_is_needed_elsewhere(remote: TestClient) -> None:
    for path in ("/", "/static/app.js", "/sql?q=SELECT+1", "/?token=wrong", f"/?token={TOKEN}x"):
        assert remote.get(path).status_code == 401, path
    first = remote.get(f"/sql?q=SELECT+1&token={TOKEN}")
    assert first.status_code == 303
    assert first.headers["location"] == "/sql?q=SELECT+1"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert remote.get("/").status_code == 200  # the cookie was kept
    remote.cookies.clear()
    assert remote.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert remote.get(f"/%2fevil.test/?token={TOKEN}").headers["location"] == "/evil.test/"


@pytest.mark.workers
def test_replay_is_off_elsewhere(remote: TestClient) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "origin": "http://example.test"}
    answer = remote.post("/run/latest/trace/0/replay", headers=headers)
    assert answer.status_code == 400
    assert "Replay is disabled" in answer.text


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.test", False),
    ],
)
def test_loopback(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_a_port_in_use_is_a_sentence(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="in use") as caught:
            serve(str(place), port=taken.getsockname()[1])
        assert "--port" in (caught.value.hint or "")


@pytest.mark.workers
def test_another_address_gets_a_token(place: Path) -> None:
    code = f"from audit.web.server import serve; serve({str(place)!r}, host='0.0.0.0', port=0, ready=lambda a: (print(a.url, flush=True), exit()))"
    done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "?token=" in done.stdout
    with pytest.raises(UsageError, match="too short"):
        serve(str(place), token="short")


def test_no_store_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        serve(str(tmp_path / "nothing"), port=0)
