"""Which engine does the work. Each is imported only when it is chosen."""

from __future__ import annotations

from typing import Any

from audit.engines.request import RunRequest
from audit.records import Run


def run(request: RunRequest) -> Run:
    """Record a new run with the engine that the request names."""
    if request.engine == "ray":
        from audit.engines.ray.run import run as run_on_ray

        return run_on_ray(request)
    from audit.engines.local import run as run_locally

    return run_locally(request)


def resume(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run with any engine, whichever began it."""
    if changes.get("engine") == "ray":
        from audit.engines.ray.run import resume as resume_on_ray

        return resume_on_ray(store, reference, **changes)
    from audit.engines.local import resume as resume_locally

    return resume_locally(store, reference, **changes)
