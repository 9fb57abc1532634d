"""What observing, previewing and encoding the five stage outputs of one sample cost.

Best of many on one core, in microseconds, for the values that Resize(256), CenterCrop(224), ToTensor and Normalize
make of a 500×375 picture. Run it with OMP_NUM_THREADS=1: `python -m bench.values`.
"""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from audit import values
from audit.values import native as loops


def best(action: Callable[[], object], seconds: float = 0.6) -> float:
    """The fastest of as many calls as fit, in microseconds: noise only ever adds."""
    fastest, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        action()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest * 1e6


def picture() -> bytes:
    """A JPEG with large soft shapes and the noise of a real sensor."""
    rng = np.random.default_rng(0)
    soft = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.clip(np.asarray(soft) + rng.normal(0, 6, (375, 500, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def stages(data: bytes) -> dict[str, object]:
    """The five stage outputs."""
    loaded = Image.open(io.BytesIO(data)).convert("RGB")
    resized = v2.functional.resize(loaded, [256])
    cropped = v2.functional.center_crop(resized, [224, 224])
    unit = torch.from_numpy(np.asarray(cropped).copy()).permute(2, 0, 1).contiguous().float().div(255)
    scaled = v2.functional.normalize(unit, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return {"load": loaded, "Resize": resized, "CenterCrop": cropped, "ToTensor": unit, "Normalize": scaled}


def observe_without_extension(value: object) -> object:
    """Observing as it is where the extension was not built."""
    kept, loops.native = loops.native, None
    try:
        return values.observe(value)
    finally:
        loops.native = kept


def main() -> None:
    torch.set_num_threads(1)
    data = picture()
    outputs = stages(data)
    plain = best(lambda: stages(data))
    columns: dict[str, Callable[[object], object]] = {
        "digest": values.digest,
        "observe": values.observe,
        "by numpy": observe_without_extension,
        "preview": values.preview,
        "encode": values.encode,
    }
    print(f"{'stage':12}" + "".join(f"{name:>10}" for name in columns) + f"{'bytes':>10}{'stored':>9}  encoding")
    totals = dict.fromkeys(columns, 0.0)
    for stage, value in outputs.items():
        times = {name: best(functools.partial(action, value)) for name, action in columns.items()}
        for name, spent in times.items():
            totals[name] += spent
        kind, encoded = values.encode(value)
        size = values.fingerprint(value)[1]
        row = "".join(f"{spent:10.1f}" for spent in times.values())
        print(f"{stage:12}{row}{size:10}{len(encoded.data) / size:9.1%}  {kind}: {encoded.encoding}")
        values.decode(kind, encoded)
    print(f"{'together':12}" + "".join(f"{spent:10.1f}" for spent in totals.values()))
    print(f"the pipeline itself: {plain:.0f} µs")


if __name__ == "__main__":
    main()
