"""Stage 0 of a dataset that loads each sample from a path: the file is read once, and what is hashed is what is decoded."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from audit.recorders.visit.planned_stage import stage_plan
from audit.recorders.visit.visit import Visit
from audit.recorders.visit.visit_source import HASHED_LATER
from audit.values import native as loops
from audit.values.rgb import as_rgb

_FOLDER = "torchvision.datasets.folder"
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


def path_loader(target: Any) -> Callable[..., Any]:
    """Return what calls a loader that is given a path: compiled for torchvision's own, where it can be."""
    if loops.native is None or not _is_torchvisions(target):
        return load_path
    loader = (os.open, _READ_ONLY, os.read, *_torchvision_loader(), HASHED_LATER)
    return functools.partial(loops.native.run_load, stage_plan(load_path, 0, "load"), loader)


def _is_torchvisions(target: Any) -> bool:
    if getattr(target, "__module__", "") != _FOLDER:
        return False
    # `default_loader` calls this function by its name, and the user may have put another one there.
    return getattr(sys.modules[_FOLDER].pil_loader, "__module__", "") == _FOLDER


def load_path(visit: Visit, target: Any, args: Any, kwargs: Any) -> Any:
    """Call a loader that is given a path: torchvision's own decodes the very buffer that is hashed."""
    path = args[0] if args else None
    if isinstance(path, str):
        try:
            data = read_whole(path)
        except OSError as error:
            visit.fail("load", error)
            raise
        visit.hash_source(data, path)
        if _is_torchvisions(target):
            backend, decode = _torchvision_loader()
            if backend() == "PIL":
                return visit.load(decode, (data, path), {})
    return visit.load(target, args, kwargs)


def read_whole(path: str) -> bytes:
    """Return the content of a file, with as few calls of the system as possible."""
    file = os.open(path, _READ_ONLY)
    try:
        size = os.fstat(file).st_size
        data = os.read(file, size + 1)
        # Where it grew meanwhile, is not a plain file, or is larger than one call reads.
        while len(data) != size and (more := os.read(file, 1 << 20)):
            data += more
        return data
    except OSError as error:
        # As `open` says it, of a folder for example.
        error.filename = path
        raise
    finally:
        os.close(file)


@functools.cache
def _torchvision_loader() -> tuple[Callable[[], str], Callable[[bytes, str], Any]]:
    """Return what says how torchvision loads pictures, and what loads them so from memory with Pillow."""
    import torchvision
    from PIL import Image

    def decode_rgb(data: bytes, path: str) -> Any:
        content = io.BytesIO(data)
        try:
            return as_rgb(Image.open(content))
        except Exception as error:
            # The text names the file object: it shall name the one that torchvision would have opened.
            opened = f"<_io.BufferedReader name={path!r}>"
            error.args = tuple(
                one.replace(repr(content), opened) if isinstance(one, str) else one for one in error.args
            )
            raise

    return torchvision.get_image_backend, decode_rgb
