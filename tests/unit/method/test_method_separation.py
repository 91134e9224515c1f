"""Records keep apart in a network's gradients: one thread, checked machines, odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from trainer_tools import (
    MakeEntropy,
    MakePlan,
    Recorder,
    batch,
    dataset,
    engine,
    torch,
)

from feddrm.contract.errors import InputError
from feddrm.method.blocks import block_for
from feddrm.method.dpsgd import DpSgd
from feddrm.method.layout import layout_of
from feddrm.method.model import build
from feddrm.method.trainer import Trainer


def test_gradients_are_computed_by_one_thread(make_plan: MakePlan) -> None:
    stepper, module = engine(make_plan(), Recorder())
    seen: list[tuple[int, int]] = []
    module.trunk[0].register_forward_hook(  # type: ignore[index, union-attr, operator]
        lambda layer, inputs, output: seen.append((torch.get_num_threads(), len(output)))
    )
    torch.set_num_threads(2)
    for rows in (0, 1, 36):
        stepper.step(*batch(dataset(1), slice(rows)), 0)
    assert seen == [(1, block_for(1.0))] * 3
    assert torch.get_num_threads() == 2


class Sloppy(nn.Module):
    """A network that adds, to each record's embedding, something that is not the record's own."""

    def __init__(self, blur: Callable[[Any], Any]) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.blur = blur

    def forward(self, features: Any) -> tuple[Any, Any]:
        phi = self.trunk(features)
        phi = torch.tanh(phi + self.blur(phi).detach())
        return phi[:, :2], phi[:, 2:]


@pytest.mark.parametrize(
    "blur",
    [
        lambda phi: 1e-6 * torch.arange(len(phi))[:, None],
        lambda phi: phi.mean(dim=0),
        lambda phi: 1e-6 * phi.roll(1, dims=0),
        lambda phi: 1e-6 * phi[-1:],
    ],
    ids=["place", "mean", "neighbour", "last"],
)
def test_a_machine_on_which_records_touch_each_other_does_not_train(
    make_plan: MakePlan, blur: Callable[[Any], Any]
) -> None:
    """Last bits are enough to refuse; the cause, here a sloppy network, could as well be a matrix kernel."""
    with pytest.raises(InputError, match="records beside it"):
        DpSgd(Sloppy(blur), make_plan().training, divisor=1.0, noise=Recorder()).check_rows(4, 2)
    DpSgd(Sloppy(lambda phi: 0.1 * phi), make_plan().training, divisor=1.0, noise=Recorder()).check_rows(4, 2)


def test_a_trainer_checks_the_machine_first(
    make_plan: MakePlan, make_entropy: MakeEntropy, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan()
    checked: list[tuple[int, int]] = []
    monkeypatch.setattr(DpSgd, "check_rows", lambda self, width, classes: checked.append((width, classes)))
    Trainer(plan, layout_of(plan), dataset(1), 0, 10, make_entropy(b"k"))
    assert checked == [(4, 2)]


@pytest.mark.parametrize("width", [1, 5, 16, 31, 130])
@pytest.mark.parametrize("hidden", [(1,), (3, 2), (7, 5), (64,), (130, 17)])
def test_networks_of_odd_shapes_keep_records_apart(make_plan: MakePlan, width: int, hidden: tuple[int, ...]) -> None:
    """Without padding, rows of odd length have gradients of other bits at other places of a block."""
    plan = make_plan(width=width, hidden=hidden, labels=("a", "b", "c"))
    DpSgd(build(plan), plan.training, divisor=1.0, noise=Recorder()).check_rows(width, 3)
