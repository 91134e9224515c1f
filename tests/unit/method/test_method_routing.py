from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from feddrm.contract.errors import MalformedError, UnreachableError
from feddrm.contract.plan import Plan
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.routing import Router, without_priors
from feddrm.method.update import head_tensors, to_float

MakePlan = Callable[..., Plan]
MEANS = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
NAMES = ("site-a", "site-b", "site-c")


def sample(rng: np.random.Generator, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Unit Gaussians at MEANS: log p_k(x) = mu_k . x - |mu_k|^2 / 2 + (the same for all k)."""
    labels = np.repeat(np.arange(3), counts)
    return MEANS[labels] + rng.standard_normal((len(labels), 2)), labels


def fit(x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted multinomial logistic regression by plain gradient descent."""
    w, b = np.zeros((3, 2)), np.zeros(3)
    onehot = np.eye(3)[labels]
    scale = weights / weights.sum()
    for _ in range(400):
        logits = x @ w.T + b
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (p / p.sum(axis=1, keepdims=True) - onehot) * scale[:, None]
        w -= 2.0 * error.T @ x
        b -= 2.0 * error.sum(axis=0)
    return w.astype(np.float32), b.astype(np.float32)


def true_ratios(x: np.ndarray) -> np.ndarray:
    ratios: np.ndarray = x @ MEANS.T - (MEANS**2).sum(axis=1) / 2
    return ratios


def centred(values: np.ndarray) -> np.ndarray:
    shifted: np.ndarray = values - values.mean(axis=1, keepdims=True)
    return shifted


def test_logits_of_silos_that_count_equally_are_log_density_ratios() -> None:
    """Stage 1: very unequal sizes, but each silo's mean counts the same."""
    rng = np.random.default_rng(1)
    counts = [12_000, 1_200, 2_400]
    x, labels = sample(rng, counts)
    w, b = fit(x, labels, 1.0 / np.array(counts)[labels])
    points = rng.uniform(-2, 2, (500, 2)).astype(np.float32)
    ratios = Router(w, b, NAMES).log_ratios(points)
    assert np.abs(centred(ratios) - centred(true_ratios(points))).max() < 0.35


def test_log_sizes_are_subtracted_where_silos_count_by_size() -> None:
    """Stage 2: without the subtraction the large silo would draw queries that resemble others more."""
    rng = np.random.default_rng(2)
    counts = [12_000, 1_200, 2_400]
    x, labels = sample(rng, counts)
    w, b = fit(x, labels, np.ones(len(labels)))
    points = rng.uniform(-2, 2, (500, 2)).astype(np.float32)
    corrected = Router(w, without_priors(b, counts), NAMES)
    assert np.abs(centred(corrected.log_ratios(points)) - centred(true_ratios(points))).max() < 0.35
    best = [NAMES[k] for k in true_ratios(points).argmax(axis=1)]
    right = np.mean([a == (b,) for a, b in zip(corrected.route(points, NAMES), best, strict=True)])
    biased = np.mean([a == (b,) for a, b in zip(Router(w, b, NAMES).route(points, NAMES), best, strict=True)])
    assert right > 0.95 > 0.85 > biased


@pytest.mark.parametrize("sizes", [[1.0, 2.0], [1.0, 2.0, 0.0], [1.0, -1.0, 2.0], [1.0, np.nan, 1.0]])
def test_priors_need_one_positive_weight_each(sizes: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        without_priors(np.zeros(3, dtype=np.float32), sizes)


@pytest.fixture
def router() -> Router:
    weights = np.array([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    return Router(weights, np.zeros(3, dtype=np.float32), NAMES)


def test_the_next_best_takes_over(router: Router) -> None:
    phi = np.array([[1.0, 0.0], [0.0, 5.0]], dtype=np.float32)
    assert router.route(phi, NAMES) == (("site-a",), ("site-c",))
    assert router.route(phi, {"site-b", "site-c"}) == (("site-b",), ("site-c",))
    assert router.route(phi, {"site-b", "a-newcomer"}) == (("site-b",), ("site-b",))


def test_a_decision_needs_somebody_to_ask(router: Router) -> None:
    phi = np.zeros((1, 2), dtype=np.float32)
    for eligible in ((), ("a-newcomer",)):
        with pytest.raises(UnreachableError):
            router.route(phi, eligible)


def test_ties_and_batches_do_not_change_a_decision(router: Router) -> None:
    rng = np.random.default_rng(3)
    assert router.route(np.zeros((1, 2), dtype=np.float32), NAMES) == (("site-a",),)
    phi = rng.standard_normal((64, 2)).astype(np.float32)
    single = tuple(router.route(row[None], NAMES)[0] for row in phi)
    assert router.route(phi, NAMES) == single


def test_no_queries_give_no_routes(router: Router) -> None:
    assert router.route(np.zeros((0, 2), dtype=np.float32), NAMES) == ()


@pytest.mark.parametrize(
    "phi",
    [
        np.zeros(2, dtype=np.float32),
        np.zeros((1, 3), dtype=np.float32),
        np.zeros((1, 2)),
        np.array([[np.nan, 0.0]], dtype=np.float32),
        np.array([[np.inf, 0.0]], dtype=np.float32),
    ],
)
def test_malformed_embeddings_are_refused(router: Router, phi: np.ndarray) -> None:
    """A NaN would win or lose every comparison alike and so route to a fixed silo."""
    with pytest.raises(MalformedError):
        router.route(phi, NAMES)


def test_extreme_finite_embeddings_are_still_routed(router: Router) -> None:
    phi = np.full((1, 2), np.finfo(np.float32).max, dtype=np.float32)
    assert router.route(phi, NAMES) == (("site-a",),)


def test_a_router_refuses_a_head_that_does_not_fit(make_plan: MakePlan) -> None:
    weights, bias = np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.float32)
    with pytest.raises(MalformedError):
        Router(weights, bias, ("site-a", "site-b"))
    with pytest.raises(MalformedError):
        Router(weights, np.array([0, np.nan, 0], dtype=np.float32), NAMES)
    layout = layout_of(make_plan())
    tensors = head_tensors(layout, initial_model(layout, bytes(32)))
    with pytest.raises(MalformedError):
        Router.from_tensors(layout, {"routing_head.weight": tensors["routing_head.weight"]}, NAMES)


def test_the_released_head_is_the_model_s(make_plan: MakePlan) -> None:
    layout = layout_of(make_plan())
    model = initial_model(layout, bytes(32))
    router = Router.from_tensors(layout, head_tensors(layout, model), NAMES)
    assert np.array_equal(router.weights, layout.split(to_float(model))["routing_head.weight"])
    assert router.width == 6


def test_scores_do_not_show_in_a_log(router: Router) -> None:
    assert "3." not in repr(router)


def test_nearly_tied_means_a_ratio_above_the_bound() -> None:
    router = Router(np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32), ("a", "b", "c"))
    phi = np.log(np.array([[1.0, 0.71, 0.1], [0.69, 0.2, 1.0], [0.5, 0.5, 0.5]], dtype=np.float32))
    assert router.nearest(phi, router.silos, 0.7, fitted=False).tolist() == [[0, 1], [2, -1], [0, 1]]
    assert router.nearest(phi, router.silos, 1.0, fitted=False).tolist() == [[0, -1], [2, -1], [0, -1]]
    with pytest.raises(ValueError, match="tie"):
        router.nearest(phi, router.silos, 0.0, fitted=False)


def test_the_first_of_two_is_the_route_and_only_eligible_ones_are_named() -> None:
    generator = np.random.default_rng(3)
    weights, bias = generator.normal(size=(5, 4)).astype(np.float32), generator.normal(size=5).astype(np.float32)
    router = Router(weights, bias, ("a", "b", "c", "d", "e"))
    phi = generator.normal(size=(300, 4)).astype(np.float32)
    for eligible in (("a", "b", "c", "d", "e"), ("b", "d"), ("c",)):
        for fitted in (False, True):
            places = router.nearest(phi, eligible, 0.5, fitted=fitted)
            assert tuple((router.silos[place],) for place in places[:, 0]) == router.route(phi, eligible)
            assert {router.silos[place] for place in places[places >= 0]} <= set(eligible)
    assert (router.nearest(phi, ("c",), 0.01, fitted=False)[:, 1] == -1).all()


def test_a_fitted_heads_logits_are_ratios_times_the_norm() -> None:
    router = Router(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32), ("a", "b"))
    phi = np.array([[10.0, 9.0]], dtype=np.float32)
    # exp(-1) is no tie; the ratio is exp(-1 / ||(10, 9, 1)||).
    assert router.nearest(phi, ("a", "b"), 0.7, fitted=False).tolist() == [[0, -1]]
    assert router.nearest(phi, ("a", "b"), 0.7, fitted=True).tolist() == [[0, 1]]
    assert router.nearest(phi, ("a", "b"), 0.95, fitted=True).tolist() == [[0, -1]]
