"""A hospital's run with canaries against the plan that the operator signed: its own word is not enough."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_tools import Run
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.charge import charge
from feddrm.contract.schedule import STAGE_TRAIN
from feddrm.contract.signed_plan import sign_plan
from privacy.accounting import claim, epsilon
from privacy.canary import CANARIES, CanaryRun, inserted
from privacy.events import PoissonSubsampledGaussian

SEED = b"s" * 32


@pytest.fixture
def plan(paper: Any) -> Path:
    file: Path = paper.path / "plan.signed"
    file.write_text(paper.plan.signed.to_json(), encoding="utf-8")
    return file


@pytest.fixture
def honest(paper: Any) -> CanaryRun:
    """What the plan's training gives if no canary is heard."""
    cost = charge(paper.plan.plan, STAGE_TRAIN)
    (event,) = cost.events
    return CanaryRun("retina", "first", "a", SEED, event, cost.delta, cost.epsilon, np.zeros(CANARIES))


def with_event(run: CanaryRun, **changes: object) -> CanaryRun:
    """A build that does something else and says so, with the claim that this costs."""
    event = replace(run.event, **changes)
    return replace(run, event=event, claimed=claim(epsilon([event], run.delta).pld))


def judged(run: Run, paper: Any, made: CanaryRun, *arguments: object) -> tuple[int, dict[str, Any]]:
    file = paper.path / "a.canary"
    file.write_bytes(made.encode())
    code, out, err = run("canary", file, "--seed", SEED.hex(), *arguments, "--format", "json")
    assert err == ""
    (found,) = json.loads(out)["runs"]
    return code, found


def test_a_run_of_the_plan_s_training_at_its_charge_passes(paper: Any, run: Run, plan: Path, honest: CanaryRun) -> None:
    code, found = judged(run, paper, honest, "--plan", plan, "--root", paper.root)
    assert (code, found["passed"], found["terms_are_the_plans"], found["departures"]) == (0, True, True, [])


def test_a_weak_build_that_admits_to_it_passes_on_its_own_word_and_fails_against_the_plan(
    paper: Any, run: Run, plan: Path, honest: CanaryRun
) -> None:
    """Hardly any noise: every canary is heard. The file says so, and claims an epsilon that no guesses refute."""
    coins = np.where(inserted(SEED), 1.0, -1.0)
    weak = replace(with_event(honest, noise_multiplier=0.3), scores=coins)
    code, found = judged(run, paper, weak)
    assert (code, found["passed"], found["terms_are_the_plans"], found["correct"]) == (0, True, None, 500)
    code, found = judged(run, paper, weak, "--plan", plan, "--root", paper.root)
    assert (code, found["passed"], found["terms_are_the_plans"]) == (6, False, False)
    assert any(words.startswith("its event is not that of the plan's training") for words in found["departures"])
    # Under the plan's own event and claim the guesses speak.
    code, found = judged(run, paper, replace(honest, scores=coins), "--plan", plan, "--root", paper.root)
    assert (code, found["departures"]) == (6, [])
    assert found["epsilon_above"] > found["claimed"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: with_event(r, noise_multiplier=r.event.noise_multiplier - 0.01), "its event is not"),
        (lambda r: with_event(r, sampling_rate=r.event.sampling_rate * 2), "its event is not"),
        (lambda r: with_event(r, steps=r.event.steps - 5), "its event is not"),
        (lambda r: with_event(r, steps=r.event.steps + 1), "its event is not"),
        (lambda r: replace(r, delta=r.delta * 10), "its delta is"),
        (lambda r: replace(r, claimed=r.claimed + 1e-5), "it claims"),
        (lambda r: replace(r, claimed=50.0), "it claims"),
        (lambda r: replace(r, job="second"), "it is of job second"),
        (lambda r: replace(r, federation="other"), "it is of job first of other"),
        (lambda r: replace(r, silo="mallory"), "the plan does not name mallory"),
    ],
)
def test_whatever_departs_from_the_plan_fails(
    paper: Any, run: Run, plan: Path, honest: CanaryRun, change: Any, said: str
) -> None:
    made = change(honest)
    assert isinstance(made.event, PoissonSubsampledGaussian)
    code, found = judged(run, paper, made, "--plan", plan, "--root", paper.root)
    assert (code, found["passed"]) == (6, False)
    assert any(words.startswith(said) for words in found["departures"])


def test_without_a_plan_the_report_says_whose_word_it_is(paper: Any, run: Run, plan: Path, honest: CanaryRun) -> None:
    file = paper.path / "a.canary"
    file.write_bytes(honest.encode())
    code, out, _ = run("canary", file)
    assert code == 0
    assert "NOTE  event, delta and claim are the hospital's own word" in out
    code, out, _ = run("canary", file, "--plan", plan, "--root", paper.root, "--fingerprint", paper.anchor.fingerprint)
    assert code == 0
    assert "NOTE" not in out
    assert "The file is not signed; made-up scores pass." in out


def test_only_a_plan_that_the_operator_signed_counts(paper: Any, run: Run, plan: Path, honest: CanaryRun) -> None:
    file = paper.path / "a.canary"
    file.write_bytes(honest.encode())
    assert run("canary", file, "--plan", plan)[0] == 2
    assert run("canary", file, "--root", paper.root)[0] == 2
    assert run("canary", file, "--fingerprint", paper.anchor.fingerprint)[0] == 2
    own = sign_plan(paper.plan.plan, Ed25519PrivateKey.generate()).signed
    for text, expected in ((own.to_json(), 6), ("{}", 3), ("name = 'first'", 3)):
        plan.write_text(text, encoding="utf-8")
        code, _, err = run("canary", file, "--plan", plan, "--root", paper.root)
        assert code == expected
        assert "Traceback" not in err
