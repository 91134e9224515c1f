"""Three small hospitals with images, by processes: a LeNet through every stage, then a public extractor's model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feddrm.contract.signed_plan import verify_plan
from feddrm.demo.federation import Federation, Hospital
from feddrm.demo.processes import SILO, CommandFailedError, Processes
from feddrm.features import encode, read_table
from feddrm.method.layout import layout_of
from feddrm.method.model import build, load_vectors
from feddrm.method.update import to_float
from silo.state import State

NAMES = ("north", "east", "south")
PATIENTS = 60
SIDE = 16


def plan_text(roster_version: int) -> str:
    sizes = "\n".join(f"{name} = {PATIENTS}" for name in NAMES)
    return f"""\
federation = "images"
name = "image-job"
roster_version = {roster_version}
silos = {json.dumps(list(NAMES))}

[model]
kind = "lenet_gn"
channels = [4, 8]
hidden = 16
units = 8
personal = ["target_head.*"]

[training]
rounds = 2
local_steps = 4
head_steps = 1
proximal_mu = 0.1
momentum = 0.5
decay = "cosine"
sampling_rate = 0.5
clip_norm = 1.0
noise_multiplier = 1.2
target_weight = 0.5
learning_rate = 0.2

[training.ewc]
strength = 0.1
memory = 2

[routing_fit]
sums = 2
noise_multiplier = 4.0
step_size = 16.0
clip_norm = 0.7
shared_target = true

[routing_fit.public_sizes]
{sizes}

[personal_head]
steps = 2
sampling_rate = 0.5
noise_multiplier = 2.0
learning_rate = 0.2
start = "shared"

[evaluation]
noise_multiplier = 2.0
held_out = 0.3

[privacy]
delta = 1e-5

[secure_aggregation]
threshold = 3
minimum_cohort = 3
colluders = 1
clip = 4.0
fraction_bits = 20

[deadlines]
gather_seconds = 30
train_seconds = 60
step_seconds = 15

[schema]
patient = "person"

[schema.target]
kind = "classes"
column = "finding"
values = ["clear", "spot"]

[schema.image]
name = "scan"
channels = 1
height = {SIDE}
width = {SIDE}
lower = 0
upper = 255
"""


def write_images(path: Path, seed: int, people: int, *, targets: bool = True) -> None:
    """Scans of one scanner: its own brightness, and a bright spot or none."""
    rng = np.random.default_rng(seed)
    scans = rng.integers(0, 60, (people, SIDE, SIDE)) + 40 * seed
    spots = rng.integers(0, 2, people)
    scans[spots == 1, 5:9, 5:9] += 80
    arrays = {"scan": scans.astype(np.uint8)}
    if targets:
        arrays["person"] = np.array([f"person-{seed}-{number // 2}" for number in range(people)])
        arrays["finding"] = np.array(["clear", "spot"])[spots]
    np.savez_compressed(path, **arrays)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def check_answers(
    federation: Federation, questions: Path, answers: list[dict[str, Any]], own: list[dict[str, Any]]
) -> None:
    """All hospitals hold the same target head of all silos; what they answer is the mixture of it and their own heads,
    computed here from what they hold."""
    held: dict[str, tuple[Any, Any]] = {}
    for name in NAMES:
        state = State.read(federation.home(name) / "state" / "agent.db")
        release, job = state.last_release(), state.last_job()
        assert release is not None
        assert job is not None
        models = state.release_models(release)
        assert models is not None
        held[name], plan = (
            models,
            verify_plan(job.signed, federation="images", operator=bytes.fromhex(federation.operator_key)).plan,
        )
        state.close()
    layout = layout_of(plan)
    assert all((held[name][0] == held["north"][0]).all() for name in NAMES)
    assert len(held["north"][0]) == layout.shared_size + 2 * (8 + 1)
    assert len({held[name][1].tobytes() for name in NAMES}) == 3
    module = build(plan).eval()
    features = encode(read_table(questions), plan.schema_, targets=False).features
    head = held["north"][0][layout.shared_size :].reshape(2, 9) / 2**24
    # Two steps of little noise: each own head is still near that of all silos, with which it began.
    began = head / np.sqrt(9)
    for name in NAMES:
        tensors = layout.split(to_float(held[name][1]), "personal")
        tuned = np.column_stack([tensors["target_head.weight"], tensors["target_head.bias"]])
        assert 0 < np.abs(tuned - began).mean() < 0.5 * np.abs(began).mean(), (tuned, began)
    apart = []
    for rows, part in ((answers, 0.7), ([{**row, "silos": ["north"]} for row in own], 0.3)):
        for row in rows:
            (silo,) = row["silos"]
            model, personal = held[silo]
            load_vectors(module, layout, model[: layout.shared_size], personal)
            with torch.inference_mode():
                phi = module.embed(torch.from_numpy(features[row["row"] - 1 : row["row"]]))
                mine = softmax(module.target(phi).numpy().astype(np.float64))
            normalised = np.append(phi.numpy()[0].astype(np.float64), 1.0)[None]
            shared = softmax(normalised / np.linalg.norm(normalised) @ head.T)
            expected = ((1 - part) * mine + part * shared)[0]
            assert row["label"] == ("clear", "spot")[int(expected.argmax())]
            assert abs(row["probability"] - expected.max()) < 1e-4
            apart.append(np.abs(mine - shared).max())
    assert max(apart) > 1e-3


def frozen_plan(roster_version: int, digest: str) -> str:
    """A round of training and a sum of the fit, on what an extractor of this SHA-256 makes of the same images."""
    text = plan_text(roster_version)
    model = f'kind = "frozen"\nsha256 = "{digest}"\nform = "torchscript"\nfeatures = 12\nhidden = [4]\n'
    training = text[text.index("[training]") : text.index("[training.ewc]")].replace("rounds = 2", "rounds = 1")
    fit = text[text.index("[routing_fit]") : text.index("[personal_head]")].replace("sums = 2", "sums = 1")
    head = text[: text.index("[model]")].replace("image-job", "frozen-job")
    return f"{head}[model]\n{model}\n{training}{fit}{text[text.index('[privacy]') :]}"


def until(federation: Federation, state: str) -> dict[str, Any]:
    """Watch until a silo is in this state, or the job ends."""
    for status in federation.watch():
        if state in (status["state"], *(silo["state"] for silo in status["silos"])):
            return status
    return federation.status()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Running, and without a job."""
    directory = tmp_path_factory.mktemp("images")
    for seed, name in enumerate(NAMES):
        write_images(directory / f"{name}.npz", seed, 2 * PATIENTS)
    write_images(directory / "questions.npz", 2, 5, targets=False)
    with Processes(directory / "logs") as processes:
        hospitals = [Hospital(name, directory / f"{name}.npz", "person", PATIENTS, 200.0) for name in NAMES]
        federation = Federation(directory, processes, "images", hospitals)
        federation.found()
        federation.enrol(["clinic"])
        for name in NAMES:
            policy = federation.home(name) / "local" / "policy.toml"
            text = policy.read_text().replace('models = ["mlp"]', 'models = ["lenet_gn", "frozen"]')
            policy.write_text(text.replace("life_delta = 1e-5", "life_delta = 2e-5"))
            data = federation.home(name) / "local" / "data.toml"
            data.write_text(data.read_text() + 'extractor = "encoder.pt"\n')
        federation.start_coordinator()
        for name in NAMES:
            federation.start_silo(name)
        yield federation


def test_hospitals_with_images_train_a_lenet_and_answer(federation: Federation) -> None:
    questions = federation.directory / "questions.npz"
    federation.start_job(plan_text(federation.roster_version))
    assert until(federation, "release ready")["state"] == "release ready"
    federation.publish()
    answers = federation.ask("clinic", questions)
    own = federation.processes.run_json("silo.cli", "predict", federation.home("north"), questions)["rows"]
    check_answers(federation, questions, answers, own)
    assert [row["row"] for row in answers] == [1, 2, 3, 4, 5]
    assert {silo for row in answers for silo in row["silos"]} <= set(NAMES)
    assert {row["label"] for row in answers} <= {"clear", "spot"}


def test_a_public_extractors_model_needs_the_plans_file_everywhere(federation: Federation) -> None:
    """A hospital with another file declines in words; once the right one is in its place it takes part."""
    torch.manual_seed(0)
    public, other = federation.directory / "public.pt", federation.directory / "other.pt"
    for file, width in ((public, 12), (other, 11)):
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, width), torch.nn.Tanh())
        torch.jit.script(network.eval()).save(str(file))
    for name in NAMES:
        source = other if name == "north" else public
        (federation.home(name) / "local" / "encoder.pt").write_bytes(source.read_bytes())
    digest = hashlib.sha256(public.read_bytes()).hexdigest()
    federation.start_job(frozen_plan(federation.roster_version, digest))
    assert until(federation, "declined: policy")["state"] == "gathering"
    said = federation.processes.run_json(SILO, "status", federation.home("north"))["declined"]["detail"]
    found = hashlib.sha256(other.read_bytes()).hexdigest()
    assert f"encoder.pt is not the plan's extractor: its SHA-256 is {found}, the plan's {digest}" in said
    assert "name it by extractor in local/data.toml" in said
    (federation.home("north") / "local" / "encoder.pt").write_bytes(public.read_bytes())
    status = until(federation, "release ready")
    assert status["state"] == "release ready"
    assert all(len(entry["survivors"]) == 3 for entry in status["history"])
    federation.publish()
    questions = federation.directory / "questions.npz"
    with pytest.raises(CommandFailedError, match=r"(?s)exit code 3.*other\.pt is not the plan's .*--extractor FILE"):
        federation.ask("clinic", questions, "--extractor", other)
    answers = federation.ask("clinic", questions, "--extractor", public)
    assert [row["row"] for row in answers] == [1, 2, 3, 4, 5]
    assert {row["label"] for row in answers} <= {"clear", "spot"}
