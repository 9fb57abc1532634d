"""Which engine does the work. Each is imported only when it is chosen."""

from __future__ import annotations

from typing import Any

from audit.engines.request import RunRequest
from audit.records import Run


def record_run(request: RunRequest) -> Run:
    """Record a new run with the engine that the request names."""
    if request.engine == "ray":
        from audit.engines.ray.run import record_on_ray

        return record_on_ray(request)
    from audit.engines.local import record_locally

    return record_locally(request)


def resume_run(store: str, reference: str | None, **changes: Any) -> Run:
    """Continue an interrupted run with any engine, whichever began it."""
    if changes.get("engine") == "ray":
        from audit.engines.ray.run import resume_on_ray

        return resume_on_ray(store, reference, **changes)
    from audit.engines.local import resume_locally

    return resume_locally(store, reference, **changes)
