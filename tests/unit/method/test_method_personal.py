from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="the silo extra is not installed")
pytest.importorskip("opacus", reason="the silo extra is not installed")

from feddrm.contract.errors import InputError  # noqa: E402
from feddrm.contract.plan import Plan  # noqa: E402
from feddrm.contract.stages import PersonalHead  # noqa: E402
from feddrm.features import Dataset  # noqa: E402
from feddrm.method import personal as personal_module  # noqa: E402
from feddrm.method.layout import initial_model, initial_personal, layout_of  # noqa: E402
from feddrm.method.model import Predictor  # noqa: E402
from feddrm.method.personal import fine_tune  # noqa: E402
from feddrm.method.shared_head import SharedHead  # noqa: E402
from feddrm.method.trainer import TrainingStopped  # noqa: E402

MakePlan = Callable[..., Plan]
MakeEntropy = Callable[[bytes], Callable[[int], bytes]]
Floats = npt.NDArray[np.float64]


def terms(**changes: Any) -> PersonalHead:
    values = {"steps": 1, "sampling_rate": 1.0, "noise_multiplier": 1.0, "clip_norm": 0.5, "learning_rate": 1.0}
    return PersonalHead(**(values | changes))


class Recorder:
    """In the place of the noise source: adds nothing and keeps the clipped sums."""

    def __init__(self) -> None:
        self.sums: list[Floats] = []
        self.stds: list[float] = []

    def add(self, values: npt.ArrayLike, std: float, grid: float) -> Floats:
        self.sums.append(np.array(values, dtype=np.float64))
        self.stds.append(std)
        return self.sums[-1].copy()


class Never:
    def is_set(self) -> bool:
        return False


class Always:
    def is_set(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(personal_module, "GaussianSource", lambda entropy: made)
    return made


def dataset(seed: int, patients: int = 40, records: int = 2) -> Dataset:
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (patients * records, 4)).astype(np.float32)
    return Dataset(
        features,
        (features[:, 0] + features[:, 1] > 0).astype(np.int64),
        [b"%d" % (row % patients) for row in range(len(features))],
    )


def tune(plan: Plan, of: PersonalHead, data: Dataset, entropy: Callable[[int], bytes], stop: Any = None) -> Any:
    layout = layout_of(plan)
    model, personal = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    return fine_tune(plan, of, layout, model, personal, data, 40, entropy, stop or Never())


def accuracy(plan: Plan, personal: Any, data: Dataset) -> float:
    predictor = Predictor(plan, initial_model(layout_of(plan), bytes(32)), personal)
    assert data.targets is not None
    return float((predictor.predict(data.features).classes == data.targets).mean())


def test_the_head_learns_its_silo_and_the_trunk_stays(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    plan, data = make_plan(hidden=(16,)), dataset(1, patients=400)
    layout = layout_of(plan)
    personal = initial_personal(layout, bytes(32))
    of = terms(steps=60, sampling_rate=0.5, noise_multiplier=0.5, learning_rate=2.0)
    model = initial_model(layout, bytes(32))
    kept = model.copy()
    tuned = fine_tune(plan, of, layout, model, personal, data, 400, make_entropy(b"tune"), Never())
    assert accuracy(plan, tuned, data) > 0.85 > accuracy(plan, personal, data) + 0.1
    assert (model == kept).all()
    assert tuned.shape == personal.shape


@pytest.mark.parametrize("seed", range(3))
def test_without_one_patient_a_step_differs_by_one_clipped_row(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder, seed: int
) -> None:
    plan, of, data = make_plan(), terms(), dataset(seed, patients=70)
    tune(plan, of, data, make_entropy(b"sum"))
    whole = recorder.sums.pop()
    gone = data.patients[seed]
    keep = np.array([patient != gone for patient in data.patients])
    assert data.targets is not None
    rest = Dataset(data.features[keep], data.targets[keep], [p for p in data.patients if p != gone])
    tune(plan, of, rest, make_entropy(b"sum"))
    moved = whole - recorder.sums.pop()
    assert 0 < np.linalg.norm(moved) <= of.clip_norm
    alone = Dataset(data.features[~keep], data.targets[~keep], [gone] * int((~keep).sum()))
    tune(plan, of, alone, make_entropy(b"sum"))
    assert (moved == recorder.sums.pop()).all()


def test_the_noise_is_the_plans_and_every_step_draws_it(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    of = terms(steps=7, sampling_rate=1e-6, noise_multiplier=3.0)
    tune(make_plan(), of, dataset(0, patients=5), make_entropy(b"noise"))
    assert recorder.stds == [1.5] * 7
    assert all(not total.any() for total in recorder.sums)


def test_only_the_target_counts(make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder) -> None:
    # Its gradient in the head is (p - y) phi^T with the bias beside it, as long as nothing is clipped.
    plan, data = make_plan(labels=("a", "b")), dataset(3, patients=1, records=1)
    tune(plan, terms(clip_norm=100.0), data, make_entropy(b"loss"))
    weight, bias = recorder.sums[0][:-2].reshape(2, -1), recorder.sums[0][-2:]
    layout = layout_of(plan)
    predictor = Predictor(plan, initial_model(layout, bytes(32)), initial_personal(layout, bytes(32)))
    assert data.targets is not None
    expected = predictor.predict(data.features).probabilities[0].astype(np.float64)
    expected[data.targets[0]] -= 1
    assert bias == pytest.approx(expected, abs=1e-5)
    assert np.linalg.matrix_rank(weight, tol=1e-5) == 1


def test_a_stop_ends_it_and_unfit_data_are_refused(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    with pytest.raises(TrainingStopped):
        tune(make_plan(), terms(), dataset(0), make_entropy(b"stop"), Always())
    with pytest.raises(InputError):
        tune(make_plan(width=5), terms(), dataset(0), make_entropy(b"width"))
    with pytest.raises(InputError):
        tune(make_plan(), terms(), Dataset(dataset(0).features, None, dataset(0).patients), make_entropy(b"none"))


@pytest.mark.parametrize(
    ("personal", "tensors", "moves"),
    [
        (("target_head.*",), ("*",), {"trunk", "target_head"}),
        ((), ("*",), {"trunk", "target_head"}),
        ((), ("target_head.*",), {"target_head"}),
        (("target_head.*",), ("trunk.*norm*", "target_head.bias"), {"trunk", "target_head"}),
        (("*",), ("target_head.*",), {"target_head"}),
    ],
)
def test_a_silo_tunes_its_own_copies_of_what_is_shared(
    make_kind: MakePlan,
    make_entropy: MakeEntropy,
    recorder: Recorder,
    personal: tuple[str, ...],
    tensors: tuple[str, ...],
    moves: set[str],
) -> None:
    """FedAvg with fine-tuning, and what lies between: the shared vector stays, the own model is another one."""
    of = terms(tensors=tensors, steps=2, clip_norm=5.0)
    plan = make_kind("lenet_gn", personal=personal).model_copy(update={"personal_head": of})
    layout = layout_of(plan)
    model, before = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (20, plan.schema_.width)).astype(np.float32)
    data = Dataset(features, rng.integers(0, 2, 20), [b"%d" % number for number in range(20)])
    shared = model.copy()
    own = fine_tune(plan, of, layout, model, before, data, 20, make_entropy(b"t"), Never())
    assert np.array_equal(model, shared)
    assert own.shape == (sum(tensor.size for tensor in layout.own),)
    first = {**layout.split(model), **layout.split(before, "personal")}
    after = layout.split(own, "personal")
    changed = {name for name, values in after.items() if not np.array_equal(values, first[name])}
    assert changed <= layout.tuned
    assert {name.split(".")[0] for name in changed} == moves
    assert not any(name.startswith("routing_head") for name in layout.tuned)
    for total in recorder.sums:
        assert np.linalg.norm(total) <= 20 * 5.0
    predicted = [Predictor(plan, model, vector).predict(features).probabilities for vector in (before, own)]
    assert not np.allclose(*predicted)
    # A vector of any other length is no silo's.
    with pytest.raises(ValueError, match="personal vector"):
        layout.split(np.append(own, 0), "personal")


@pytest.mark.parametrize("first", [3, 5])
def test_the_head_is_the_mean_of_the_last_ones(make_plan: MakePlan, make_entropy: MakeEntropy, first: int) -> None:
    """The same draws and noise, step by step: k steps leave what the k-th of five leaves, rounded."""
    plan, data, common = make_plan(), dataset(2), {"sampling_rate": 0.5, "momentum": 0.7}
    heads = [tune(plan, terms(steps=steps, **common), data, make_entropy(b"mean")) for steps in range(first, 6)]
    averaged = tune(plan, terms(steps=5, average_from=first, **common), data, make_entropy(b"mean"))
    assert np.abs(averaged - np.mean(heads, axis=0)).max() <= 1
    last = tune(plan, terms(steps=5, **common), data, make_entropy(b"mean"))
    assert (averaged == last).all() == (first == 5)


def test_a_mean_adds_no_step_and_no_noise(make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder) -> None:
    of = terms(steps=7, sampling_rate=1e-6, noise_multiplier=3.0, momentum=0.9, average_from=2)
    tune(make_plan(), of, dataset(0, patients=5), make_entropy(b"noise"))
    assert recorder.stds == [1.5] * 7


def test_momentum_carries_a_step_into_the_next(make_plan: MakePlan, make_entropy: MakeEntropy) -> None:
    """Of two steps the second moves by momentum times the first one more; to 2**-24, the rounding of float32."""
    plan, data = make_plan(), dataset(3)
    start = initial_personal(layout_of(plan), bytes(32))
    one, two = (tune(plan, terms(steps=steps), data, make_entropy(b"v")) for steps in (1, 2))
    carried = tune(plan, terms(steps=2, momentum=0.5), data, make_entropy(b"v"))
    assert np.abs(carried - two - 0.5 * (one - start)).max() <= 8 < np.abs(carried - two).max()


def test_a_head_begins_with_that_of_all_silos(
    make_plan: MakePlan, make_entropy: MakeEntropy, recorder: Recorder
) -> None:
    """At its first step nobody is drawn and no noise is added: what it leaves is what it began with."""
    plan, data = make_plan(hidden=(3,)), dataset(4)
    layout = layout_of(plan)
    model, own = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    weight, bias = np.array([[3.0, -1.0, 0.5], [0.0, 2.0, 0.25]]), np.array([-1.0, 1.0])
    shared = SharedHead(weight, bias, 0.7, 0.3)

    def begun(start: str, head: SharedHead | None) -> Any:
        of = terms(sampling_rate=1e-6, start=start)
        return fine_tune(plan, of, layout, model, own, data, 40, make_entropy(b"none"), Never(), head)

    for start, head in (("trained", shared), ("trained", None), ("shared", None)):
        assert (begun(start, head) == own).all()
    # Logits are those of normalised embeddings, but for sqrt(d + 1) instead of each record's own norm.
    expected = np.concatenate([weight.reshape(-1), bias]) / np.sqrt(4)
    assert np.abs(begun("shared", shared) * 2.0**-24 - expected).max() < 2**-22


def test_a_plan_that_tunes_nothing_of_its_own_is_refused(make_kind: MakePlan) -> None:
    for tensors, said in (
        (["routing_head.*"], "matches no tensor"),
        (["trunk.fc9.*"], "matches no tensor"),
        ([], "1 item"),
    ):
        document = make_kind("lenet_gn").model_dump(mode="json", by_alias=True)
        document["personal_head"] = {
            "steps": 1, "sampling_rate": 0.1, "noise_multiplier": 1.0, "learning_rate": 1.0, "tensors": tensors
        }  # fmt: skip
        with pytest.raises(ValueError, match=f"personal_head.tensors[\\s\\S]*{said}"):
            Plan.model_validate(document)
