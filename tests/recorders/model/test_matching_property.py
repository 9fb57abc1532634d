"""Random loops: a stored prediction belongs to the sample whose row produced it, or there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import audit

COUNT, BATCH, WIDTH = 12, 4, 4
FIRST = 64.0


class Identities(Dataset):  # type: ignore[type-arg]
    """Each number of sample n is n + 64: whatever is left of a row names its sample, and twice that is not another sample."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((WIDTH,), index + FIRST), index % 3


class Echo(nn.Module):
    """Answers with the number of the sample that a row was made of; `scale` undoes what the loop multiplied by."""

    scale: float = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().double().reshape(len(x), -1).amax(1) / self.scale
        return torch.stack([rows.float(), torch.zeros(len(x))], dim=1)


class Loop:
    """One batch on its way to the model, another batch of the same loader, and the factor of all values."""

    def __init__(self, x: torch.Tensor, other: torch.Tensor, random: torch.Generator) -> None:
        self.x, self.other, self.random, self.scale = x, other, random, 1.0

    def order(self) -> torch.Tensor:
        return torch.randperm(len(self.x), generator=self.random)

    def mask(self) -> torch.Tensor:
        chosen = torch.rand(len(self.x), generator=self.random) < 0.5
        chosen[0] = True
        return chosen


def _assign(loop: Loop, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    loop.x = change(loop.x)


def _scaled(loop: Loop, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    loop.x = change(loop.x)
    loop.scale *= 2


def _swapped(loop: Loop) -> None:
    loop.x = loop.x.clone()
    loop.x[[0, -1]] = loop.x[[-1, 0]]


def _set_row(loop: Loop) -> None:
    loop.x = loop.x.clone()
    loop.x[0] = loop.x[-1]


def _copied_over(loop: Loop) -> None:
    loop.x = loop.x.clone()
    loop.x.copy_(loop.x[loop.order()].clone())


def _through_numpy(loop: Loop) -> None:
    array = loop.x.detach().numpy().copy()
    loop.x = torch.from_numpy(array[loop.order().numpy()])


def _written_by_numpy(loop: Loop) -> None:
    array = loop.x.detach().numpy()
    array[:] = array[loop.order().numpy()].copy()


def _other_rows(loop: Loop) -> None:
    if loop.other.shape[1:] == loop.x.shape[1:] and loop.scale == 1:
        loop.x = torch.cat([loop.other.to(loop.x.dtype), loop.x])


def _where(loop: Loop) -> None:
    if loop.other.shape == loop.x.shape and loop.scale == 1:
        shape = (len(loop.x),) + (1,) * (loop.x.dim() - 1)
        loop.x = torch.where(loop.mask().reshape(shape), loop.x, loop.other.to(loop.x.dtype))


def _out(loop: Loop) -> None:
    result = torch.empty_like(loop.x)
    torch.index_select(loop.x, 0, loop.order(), out=result)
    loop.x = result


def _data(loop: Loop) -> None:
    loop.x = loop.x.clone()
    loop.x.data = loop.x.data[loop.order()]


STEPS: dict[str, Callable[[Loop], None]] = {
    "permuted": lambda loop: _assign(loop, lambda x: x[loop.order()]),
    "selected": lambda loop: _assign(loop, lambda x: x.index_select(0, loop.order())),
    "masked": lambda loop: _assign(loop, lambda x: x[loop.mask()]),
    "flipped": lambda loop: _assign(loop, lambda x: x.flip(0)),
    "rolled": lambda loop: _assign(loop, lambda x: x.roll(1, 0)),
    "sorted": lambda loop: _assign(loop, lambda x: x[x.reshape(len(x), -1)[:, 0].argsort(descending=True)]),
    "gathered": lambda loop: _assign(
        loop, lambda x: x.gather(0, loop.order().reshape(-1, *[1] * (x.dim() - 1)).expand_as(x))
    ),
    "multiplied": lambda loop: _assign(
        loop, lambda x: torch.tensordot(torch.eye(len(x), dtype=x.dtype)[loop.order()], x, dims=1)
    ),
    "cast": lambda loop: _assign(loop, lambda x: x.to(torch.float64)),
    "half": lambda loop: _assign(loop, lambda x: x.half()),
    "integers": lambda loop: _assign(loop, lambda x: x.long()),
    "chunked": lambda loop: _assign(loop, lambda x: torch.cat(list(x.chunk(2))[::-1])),
    "split": lambda loop: _assign(loop, lambda x: torch.cat([*x.split(1)][::-1])),
    "unbound": lambda loop: _assign(loop, lambda x: torch.stack([x.unbind()[n] for n in loop.order().tolist()])),
    "listed": lambda loop: _assign(loop, lambda x: torch.stack([x[n] for n in loop.order().tolist()])),
    "repeated": lambda loop: _assign(loop, lambda x: x.repeat_interleave(2, 0)),
    "tiled": lambda loop: _assign(loop, lambda x: x.repeat(2, *[1] * (x.dim() - 1))),
    "half of them": lambda loop: _assign(loop, lambda x: x[: max(1, len(x) // 2)]),
    "every other": lambda loop: _assign(loop, lambda x: x[::2]),
    "narrowed": lambda loop: _assign(loop, lambda x: x.narrow(0, len(x) // 2, len(x) - len(x) // 2)),
    "scaled": lambda loop: _scaled(loop, lambda x: x * 2),
    "scaled in place": lambda loop: _scaled(loop, lambda x: x.clone().mul_(2)),
    "padded": lambda loop: _assign(loop, lambda x: functional.pad(x, (0, 1))),
    "one axis more": lambda loop: _assign(loop, lambda x: x.unsqueeze(1)),
    "flattened": lambda loop: _assign(loop, lambda x: x.flatten(1)),
    "viewed": lambda loop: _assign(loop, lambda x: x.reshape(len(x), -1, 1)),
    "turned twice": lambda loop: _assign(loop, lambda x: x.transpose(0, -1).contiguous().transpose(0, -1)),
    "turned and flipped": lambda loop: _assign(loop, lambda x: x.transpose(0, -1).flip(-1).transpose(0, -1)),
    "folded": lambda loop: _assign(loop, lambda x: x.reshape(-1, *x.shape[1:]).view_as(x).clone()),
    "part of it": lambda loop: _assign(loop, lambda x: x[..., :1]),
    "clamped": lambda loop: _assign(loop, lambda x: x.clamp(min=0)),
    "swapped in place": _swapped,
    "a row in place": _set_row,
    "copied over itself": _copied_over,
    "through numpy": _through_numpy,
    "written by numpy": _written_by_numpy,
    "another batch": _other_rows,
    "a mask of two": _where,
    "into a tensor": _out,
    "new data": _data,
}


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=st.lists(st.lists(st.sampled_from(sorted(STEPS)), max_size=5), min_size=4, max_size=6),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_prediction_is_that_of_the_sample_whose_row_made_it(plans: list[list[str]], shuffle: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        with audit.record(Path(folder), capture="digest") as run:
            loader = run.loader(
                DataLoader(
                    Identities(), batch_size=BATCH, shuffle=shuffle, generator=torch.Generator().manual_seed(seed)
                )
            )
            model: Any = run.model(Echo())
            rows = 0
            for plan in plans:
                batches = iter(loader)
                other = next(batches)[0]
                for x, _ in batches:
                    loop = Loop(x, other, random)
                    for step in plan:
                        STEPS[step](loop)
                    model.scale = loop.scale
                    rows += len(model(loop.x))
        with audit.open(folder) as store:
            found = store.sql("SELECT index, logits[1] FROM predictions").fetchall()
            assert len(found) <= rows
            assert [(index, echoed) for index, echoed in found if round(echoed - FIRST) != index] == [], plans
            if all(step in _FOLLOWED for plan in plans for step in plan):
                assert len(found) == rows, f"some rows of {plans} are not matched"


#: Steps that are always followed: none of them may lose a sample.
_FOLLOWED = frozenset(
    ["permuted", "selected", "flipped", "rolled", "cast", "chunked", "split", "half of them", "every other", "scaled"]
)
