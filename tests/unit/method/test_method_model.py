from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch", reason="neither the silo nor the query extra is installed")

from feddrm.contract.errors import MalformedError  # noqa: E402
from feddrm.contract.plan import Plan  # noqa: E402
from feddrm.method.layout import initial_model, initial_personal, layout_of  # noqa: E402
from feddrm.method.model import Embedder, Predictor, build, embed_each, load, load_vectors, read  # noqa: E402
from feddrm.method.update import to_float, trunk_tensors  # noqa: E402

MakePlan = Callable[..., Plan]
Array = npt.NDArray[np.float32]


def rows(count: int, width: int = 4) -> Array:
    return np.random.default_rng(1).standard_normal((count, width)).astype(np.float32)


def by_hand(plan: Plan, features: Array) -> tuple[Array, npt.NDArray[np.float64]]:
    """Embedding and target probabilities in numpy, from the vectors alone."""
    layout = layout_of(plan)
    shared = layout.split(to_float(initial_model(layout, bytes(32))))
    personal = layout.split(to_float(initial_personal(layout, bytes(32))), "personal")
    phi = features.astype(np.float64)
    for index in range(len(plan.model.hidden)):
        phi = np.maximum(phi @ shared[f"trunk.{index}.weight"].T + shared[f"trunk.{index}.bias"], 0)
    logits = phi @ personal["target_head.weight"].T + personal["target_head.bias"]
    odds = np.exp(logits)
    return phi.astype(np.float32), odds / odds.sum(axis=1, keepdims=True)


def vectors(plan: Plan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    layout = layout_of(plan)
    return initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))


@pytest.mark.parametrize("hidden", [(6,), (7, 5), ()])
def test_silo_and_querier_compute_what_the_vectors_say(make_plan: MakePlan, hidden: tuple[int, ...]) -> None:
    plan = make_plan(hidden=hidden, labels=("a", "b", "c"))
    features = rows(20)
    phi, probabilities = by_hand(plan, features)
    model, personal = vectors(plan)
    embedded = Embedder.from_tensors(plan, trunk_tensors(layout_of(plan), model)).embed(features)
    assert embedded.dtype == np.float32
    assert np.allclose(embedded, phi, atol=1e-6)
    prediction = Predictor(plan, model, personal).predict(features)
    assert np.allclose(prediction.probabilities, probabilities, atol=1e-6)
    assert prediction.classes.tolist() == probabilities.argmax(axis=1).tolist()


def test_vectors_survive_loading_and_reading(make_plan: MakePlan) -> None:
    plan = make_plan()
    layout = layout_of(plan)
    module = build(plan)
    load_vectors(module, layout, *vectors(plan))
    model, personal = vectors(plan)
    assert np.array_equal(read(module, layout, "shared"), to_float(model).astype(np.float64))
    assert np.array_equal(read(module, layout, "personal"), to_float(personal).astype(np.float64))


def test_large_inputs_go_through_in_batches(make_plan: MakePlan) -> None:
    plan = make_plan()
    predictor = Predictor(plan, *vectors(plan))
    features = rows(20_000)
    whole = predictor.predict(features)
    assert np.allclose(whole.probabilities[-3:], predictor.predict(features[-3:]).probabilities, atol=1e-6)
    assert len(whole.classes) == 20_000


@pytest.mark.parametrize("hidden", [(6,), (31, 17, 5)])
def test_an_embedding_of_its_own_is_the_same_in_any_company(make_plan: MakePlan, hidden: tuple[int, ...]) -> None:
    plan = make_plan(hidden=hidden, width=15)
    module = build(plan)
    load_vectors(module, layout_of(plan), *vectors(plan))
    features = rows(67, 15)
    whole = embed_each(module, features)
    assert np.array_equal(whole[::-1], embed_each(module, features[::-1].copy()))
    assert np.array_equal(whole[[3, 50]], embed_each(module, features[[3, 50]]))
    assert np.array_equal(whole[1:], embed_each(module, features[1:]))
    assert np.allclose(whole, module.embed(torch.from_numpy(features)).detach().numpy(), atol=1e-6)
    assert embed_each(module, features[:0]).shape == (0, hidden[-1])
    with pytest.raises(MalformedError):
        embed_each(module, features[:, :3])


def test_without_hidden_layers_the_embedding_is_the_features(make_plan: MakePlan) -> None:
    plan = make_plan(hidden=())
    assert layout_of(plan).part("trunk") == ()
    features = rows(5)
    module = build(plan)
    load_vectors(module, layout_of(plan), *vectors(plan))
    assert np.array_equal(embed_each(module, features), features)
    assert np.array_equal(Embedder.from_tensors(plan, {}).embed(features), features)
    with pytest.raises(MalformedError):
        Embedder.from_tensors(plan, {"trunk.0.weight": features})


def test_no_rows_give_no_rows(make_plan: MakePlan) -> None:
    plan = make_plan()
    model, personal = vectors(plan)
    assert Predictor(plan, model, personal).predict(rows(0)).probabilities.shape == (0, 2)
    assert Embedder.from_tensors(plan, trunk_tensors(layout_of(plan), model)).embed(rows(0)).shape == (0, 6)


@pytest.mark.parametrize(
    "bad", [rows(2, 5), rows(2)[0], rows(2).astype(np.float64), np.full((1, 4), np.nan, np.float32)]
)
def test_malformed_features_are_refused(make_plan: MakePlan, bad: npt.NDArray[np.floating]) -> None:
    """A sealed request may hold anything."""
    plan = make_plan()
    model, personal = vectors(plan)
    with pytest.raises(MalformedError):
        Predictor(plan, model, personal).predict(bad)
    with pytest.raises(MalformedError):
        Embedder.from_tensors(plan, trunk_tensors(layout_of(plan), model)).embed(bad)


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_from_a_message_are_accepted(make_plan: MakePlan) -> None:
    plan = make_plan()
    features = np.frombuffer(rows(3).tobytes(), dtype=np.float32).reshape(3, 4)
    assert not features.flags.writeable
    assert len(Predictor(plan, *vectors(plan)).predict(features).classes) == 3


def test_a_trunk_of_another_plan_is_refused(make_plan: MakePlan) -> None:
    other = make_plan(hidden=(9,))
    tensors = trunk_tensors(layout_of(other), initial_model(layout_of(other), bytes(32)))
    with pytest.raises(MalformedError):
        Embedder.from_tensors(make_plan(), tensors)


def test_load_checks_names_and_shapes(make_plan: MakePlan) -> None:
    module = build(make_plan())
    with pytest.raises(KeyError):
        load(module, {"elsewhere": rows(1)})
    with pytest.raises(ValueError, match="shape"):
        load(module, {"trunk.0.weight": rows(1)})


def test_vectors_of_another_length_are_refused(make_plan: MakePlan) -> None:
    plan = make_plan()
    model, personal = vectors(plan)
    with pytest.raises(ValueError, match="shape"):
        Predictor(plan, model[:-1], personal)
    with pytest.raises(ValueError, match="shape"):
        Predictor(plan, model, personal[:-1])
