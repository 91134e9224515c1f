"""Every kind of model: its tensors, its partition, and what the plan refuses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from kinds import IMAGE, KINDS, MakePlan
from pydantic import ValidationError

from feddrm.contract import plan as plan_module
from feddrm.contract import seal_tables
from feddrm.contract.errors import InputError
from feddrm.contract.models import PARTITIONS
from feddrm.contract.plan import Plan
from feddrm.contract.sections import Queries
from feddrm.contract.signed_plan import sign_plan
from feddrm.method.coarse import Grid
from feddrm.method.layout import embedding_width, initial_model, initial_personal, layout_of
from feddrm.method.update import to_float, trunk_tensors

torch = pytest.importorskip("torch", reason="the silo extra is not installed")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402

from feddrm.method.model import Embedder, Predictor, build, embed_each, load_vectors  # noqa: E402


def records(plan: Plan, count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    # What an extractor gives is normalised, so that a quarter is its deviation.
    most = 0.25 if plan.model.kind == "frozen" else 1.0
    return np.random.default_rng(seed).uniform(-most, most, (count, plan.width)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_has_the_layout_s_tensors_and_its_embedding(make_kind: MakePlan, kind: str) -> None:
    plan = make_kind(kind)
    layout = layout_of(plan)
    module = build(plan)
    assert [name for name, _ in module.named_parameters()] == [tensor.name for tensor in layout.tensors]
    assert plan.parameters == layout.shared_size + layout.personal_size
    load_vectors(module, layout, initial_model(layout, bytes(32)), initial_personal(layout, bytes(32)))
    features = records(plan, 5)
    phi = embed_each(module, features)
    assert phi.shape == (5, embedding_width(plan))
    assert np.isfinite(phi).all()
    assert len(np.unique(phi, axis=0)) == 5
    whole = module.embed(torch.from_numpy(features)).detach().numpy()
    assert np.allclose(whole, phi, atol=1e-5), "a record's embedding depends on the others"


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights_keep_signals_alive(make_kind: MakePlan, kind: str) -> None:
    layout = layout_of(make_kind(kind))
    parts = layout.split(to_float(initial_model(layout, bytes(32))))
    for tensor in layout.of("shared"):
        values = parts[tensor.name]
        if tensor.initial == "uniform":
            assert 0 < np.abs(values).max() <= tensor.fan_in**-0.5
        else:
            assert (values == (1.0 if tensor.name.endswith("weight") else 0.0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_coarse_embeddings_tell_records_apart_within_public_bounds(make_kind: MakePlan, kind: str) -> None:
    plan = make_kind(kind).model_copy(update={"queries": Queries(embedding_bits=8)})
    layout = layout_of(plan)
    trunk = trunk_tensors(layout, initial_model(layout, bytes(32)))
    phi = Embedder.from_tensors(plan, trunk).embed(records(plan, 200))
    grid = Grid.of(plan, trunk)
    assert grid.width == embedding_width(plan)
    assert (phi <= grid.bounds + 1e-6).mean() > 0.99
    assert len(set(grid.encode(phi))) > 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", PARTITIONS)
def test_every_method_is_a_partition_of_the_same_tensors(make_kind: MakePlan, kind: str, method: str) -> None:
    if method in ("lg-fedavg", "fedbn") and kind in ("linear", "mlp", "frozen"):
        pytest.skip("has no such tensors")
    plan = make_kind(kind, personal=PARTITIONS[method])
    layout = layout_of(plan)
    personal = {tensor.name for tensor in layout.of("personal")}
    expected = {
        "feddrm": {"target_head.weight", "target_head.bias"},
        "fedavg": set(),
        "fedper": {"target_head.weight", "target_head.bias"},
        "fedrep": {"target_head.weight", "target_head.bias"},
        "lg-fedavg": {tensor.name for tensor in layout.part("trunk")},
        "fedbn": {tensor.name for tensor in layout.tensors if tensor.initial != "uniform"}
        | {tensor.name.removesuffix("weight") + "bias" for tensor in layout.tensors if tensor.initial == "one"},
        "local": {tensor.name for tensor in layout.tensors},
    }[method]
    assert personal == expected
    shared, own = initial_model(layout, bytes(32)), initial_personal(layout, bytes(32))
    assert len(shared) + len(own) == plan.parameters
    # Whatever is whose, the whole network begins with the same weights.
    usual = layout_of(make_kind(kind))
    probabilities = [
        Predictor(make_kind(kind, personal=patterns), *vectors).predict(records(plan, 3)).probabilities
        for patterns, vectors in (
            (PARTITIONS[method], (shared, own)),
            (PARTITIONS["feddrm"], (initial_model(usual, bytes(32)), initial_personal(usual, bytes(32)))),
        )
    ]
    assert np.array_equal(*probabilities)
    assert (layout.fingerprint() == usual.fingerprint()) == (personal == {"target_head.weight", "target_head.bias"})


def test_fingerprints_tell_architectures_apart_that_have_the_same_tensors(make_kind: MakePlan) -> None:
    """16 x 17 and 17 x 16 pixels, say: the same shapes of tensors, another meaning."""
    small = IMAGE | {"height": 16, "width": 17}
    turned = IMAGE | {"height": 17, "width": 16}
    one, other = (layout_of(make_kind("lenet_gn", image=image)) for image in (small, turned))
    assert one.tensors == other.tensors
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["target_hed.*"], 'model.personal: "target_hed.*" matches no tensor'),
        (["trunk.*norm*"], 'model.personal: "trunk.*norm*" matches no tensor'),
        (["TRUNK"], "pattern"),
        (["trunk.[0]"], "pattern"),
        (["*"] * 65, "at most 64"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(make_kind: MakePlan, patterns: list[str], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_kind("mlp", personal=patterns)
    assert said in str(caught.value)


def test_what_cannot_be_routed_is_not_signed(make_kind: MakePlan) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for method in ("lg-fedavg", "fedbn", "local"):
        with pytest.raises(InputError, match="no querier could be routed"):
            sign_plan(make_kind("lenet_gn", personal=PARTITIONS[method]), key)
    for method in ("feddrm", "fedavg"):
        sign_plan(make_kind("lenet_gn", personal=PARTITIONS[method]), key)


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("lenet_gn", {"image": IMAGE | {"height": 15}}, "images of at least 16 x 16"),
        ("resnet18_gn", {"image": IMAGE | {"width": 8}}, "images of at least 16 x 16"),
        ("lenet_gn", {"image": None}, "needs images: give schema.image"),
        ("resnet18_gn", {"image": None}, "needs images: give schema.image"),
        ("mlp", {"image": IMAGE | {"upper": 0}}, "lower must be below upper"),
        ("mlp", {"image": IMAGE | {"name": "id"}}, "patient id id may not be a feature"),
        ("mlp", {"image": IMAGE | {"channels": 16, "height": 1024, "width": 1024}}, "at most 1048576 values"),
        ("lenet_gn", {"image": IMAGE | {"height": 300, "width": 300}}, "a query carries 65536 at most"),
        ("mlp", {"columns": True}, "one of them, and not both"),
        ("mlp", {"image": None, "columns": False}, "one of them, and not both"),
    ],
)
def test_networks_and_records_must_fit(make_kind: MakePlan, kind: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_kind(kind, **changes)
    assert said in str(caught.value)


def test_a_table_wider_than_a_query_is_refused_before_anybody_trains_on_it(make_kind: MakePlan) -> None:
    document = make_kind("mlp", image=None).model_dump(mode="json", by_alias=True)
    column = {"kind": "categorical", "categories": [str(number) for number in range(1000)]}
    document["schema"]["columns"] = [{**column, "name": f"column {number}"} for number in range(80)]
    with pytest.raises(ValidationError, match="schema: 80080 numbers a record, and a query carries 65536"):
        Plan.model_validate_json(json.dumps(document))


def test_what_a_plan_allows_is_what_queries_and_the_routing_fit_take(make_kind: MakePlan) -> None:
    assert plan_module.MAXIMUM_WIDTH == seal_tables.MAXIMUM_WIDTH
    frozen = make_kind("frozen", image=IMAGE | {"height": 300, "width": 300})
    assert frozen.width == 7
    document = make_kind("linear", image=IMAGE | {"height": 160, "width": 160}).model_dump(mode="json", by_alias=True)
    Plan.model_validate(document)
    document["routing_fit"] = {
        "sums": 2, "noise_multiplier": 4.0, "step_size": 1.0,
        "public_sizes": dict.fromkeys(document["silos"], 100), "largest_silo": 1000,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="the embedding may have at most 16384"):
        Plan.model_validate(document)


def test_fields_at_their_defaults_leave_no_key_in_what_is_signed(make_kind: MakePlan) -> None:
    text = make_kind("mlp", personal=("target_head.*",), image=None).body()
    for key in (b"personal", b"image", b"routing_fit"):
        assert key not in text
    assert b'"personal":[]' in make_kind("mlp", personal=()).body()
    assert b"columns" not in make_kind("lenet_gn").body()
