"""Bind the socket first, so that a port in use gives a clear error, then serve until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from audit.errors import UsageError
from audit.extras import missing_extra


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server can be reached, and with which token."""

    host: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """Return what to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


def serve(
    location: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    replay: bool | None = None,
    trust: bool = False,
    write: bool = False,
    ready: Callable[[Address], None] | None = None,
) -> None:
    """Serve a store until interrupted. An address other than loopback always needs a token; the default is random."""
    try:
        import jinja2  # noqa: F401 - missing, it would be noticed only at the first page
        import uvicorn

        from audit.web.app import build
        from audit.web.guard import is_loopback
        from audit.web.protocol import PatientProtocol
    except ModuleNotFoundError as error:
        raise (missing_extra(error, "audit ui") or error) from None
    local = is_loopback(host)
    if not local and token is None:
        token = secrets.token_urlsafe(24)
    if token is not None and len(token) < 16:
        raise UsageError("The token is too short to be safe.", hint="Use 16 characters or more, or omit --token.")
    with _bind(host, port) as listening:
        where = Address(host, listening.getsockname()[1], token)
        wildcard = host in ("0.0.0.0", "::")
        names = [host, socket.gethostname()] if not local else [host]
        app = build(
            location,
            hosts=names,
            any_address=wildcard,
            token=token,
            replay=local if replay is None else replay,
            trust=trust,
            write=write,
        )
        if ready is not None:
            ready(where)
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise UsageError(
                f"The port {port} of {host} is in use, perhaps by another `audit ui`.",
                hint=f"Choose another with --port {port + 1}, or --port 0 for any that is free.",
            ) from None
        raise UsageError(
            f"The server cannot listen on {host}:{port}: {error}.", hint="Choose another with --host and --port."
        ) from None
    return listening
