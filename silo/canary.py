"""`feddrm-silo canary`: an audit of this installation's trainer, on made-up patients (feddrm.method.canaries)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from feddrm.cli import progress
from feddrm.contract.errors import InputError, UsageError
from feddrm.contract.files import write_new
from feddrm.contract.home import load_silo_home
from privacy.accounting import claim, epsilon
from privacy.canary import SEED_BYTES, CanaryRun
from privacy.events import PoissonSubsampledGaussian
from silo.home import Home
from silo.preflight import load_plan
from silo.workshop import require_torch


def read_seed(text: str | None) -> bytes:
    """The auditor's seed, or a fresh one.

    Raises:
        UsageError: it is not SEED_BYTES bytes in hexadecimal.
    """
    if text is None:
        return secrets.token_bytes(SEED_BYTES)
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES:
        raise UsageError(f"--seed takes {SEED_BYTES} bytes in hexadecimal.", remedy="Leave it out for a fresh one.")
    return seed


def run_canaries(directory: Path, plan_path: Path, out: Path, rounds: int | None, seed: bytes) -> CanaryRun:
    """Train on canaries as the plan says, and write what an auditor judges into `out`.

    Neither records nor ledger of the hospital are opened, and no other process is needed or disturbed.

    Args:
        rounds: of the plan's training; all of them if None.

    Raises:
        InputError: the plan cannot be used or has no such rounds, `out` exists, or this machine is not fit to train.
        MissingExtraError: torch or opacus is not installed.
    """
    member = load_silo_home(directory)
    plan = load_plan(plan_path, member)
    rounds = plan.training.rounds if rounds is None else rounds
    if not 1 <= rounds <= plan.training.rounds:
        raise InputError(f"The plan trains {plan.training.rounds} rounds, so {rounds} of them cannot be audited.")
    if out.exists():
        raise InputError(f"{out} exists already and is not overwritten.")
    require_torch(Home(directory).settings().torch_threads)
    from feddrm.method.canaries import run

    training = plan.training
    event = PoissonSubsampledGaussian(training.noise_multiplier, training.sampling_rate, rounds * training.local_steps)
    delta = plan.privacy.delta
    with progress("Training on canaries", rounds) as bar:
        scores = run(plan, rounds, seed, os.urandom, bar.advance)
    result = CanaryRun(
        federation=plan.federation,
        job=plan.name,
        silo=member.name,
        seed=seed,
        event=event,
        delta=delta,
        claimed=claim(epsilon([event], delta).pld),
        scores=scores,
    )
    write_new(out, result.encode())
    return result
