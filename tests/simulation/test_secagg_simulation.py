"""Random interleavings of delivery, loss, duplication, crash and restart; silo i contributes 2**i, so that any double
count or omission shows. A seed that ever fails becomes a test of its own.

    python tests/simulation/test_secagg_simulation.py 10000 20000

runs the worlds of these seeds and prints how they went.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from secagg_tricks import TRICKS
from secagg_world import World


def run(seeds: range, weather: str = "") -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        try:
            World(seed, outcomes, weather).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return outcomes


def everywhere(outcomes: Counter[str], worlds: int) -> None:
    """Besides the invariants: the runs must have gone everywhere, or they prove nothing. Shares of what there was."""
    share = {what: count / worlds for what, count in outcomes.items()}
    assert outcomes["worlds"] == worlds
    for step in ("KEYS", "SHARES", "MASKED", "CONSISTENCY", "PUBLISH"):
        assert share[f"silo crashed before {step}"] > 0.05, outcomes
    for step in ("KEYS", "SHARES", "MASKED", "CONSISTENCY", "UNMASK"):
        assert outcomes[f"coordinator crashed at {step}"], outcomes
    for what, least in {
        "published": 0.7,
        "published after a retry": 0.1,
        "published with dropouts": 0.05,
        "verified": 3.0,
        "retried": 0.8,
        "lost": 0.2,
        "refused": 0.1,
        "worlds with liars": 0.1,
        "liars convicted": 0.1,
    }.items():
        assert share[what] > least, outcomes


@pytest.mark.parametrize("weather", ["calm", "few faults"])
def test_what_the_protocol_survives_is_published_at_the_first_attempt(weather: str) -> None:
    """Liveness. Reordering and duplicates; or loss, and as many crashed silos as the quorum can spare."""
    outcomes = run(range(20), weather)
    assert outcomes["published"] == outcomes["rounds"] >= 20


def test_a_coordinator_that_wants_two_sums_of_one_vector_gets_one() -> None:
    """It has a sum opened by those whom it does not ask to abort; liars help it to just the certificate needed."""
    outcomes = run(range(40), "betrayal")
    assert outcomes["worlds with liars"] > 30, outcomes
    assert outcomes["published after a retry"] > 10, outcomes
    assert outcomes["lost"] > 10, outcomes


def test_what_liars_sign_convicts_them_and_nobody_else() -> None:
    """Each trick is found out somewhere, whatever is lost, repeated or restarted; retries go without the convicted."""
    outcomes = run(range(40), "false silos")
    for trick in TRICKS:
        assert outcomes[f"convicted: {trick}"] > 3, outcomes
    assert outcomes["published after a retry"] > 5, outcomes


def test_random_interleavings() -> None:
    everywhere(run(range(1000, 1100)), 100)


@pytest.mark.parametrize("seed", [4143])
def test_worlds_that_failed_once(seed: int) -> None:
    """4143: a process of the coordinator that another one's failure had ended went on and was ended twice."""
    assert run(range(seed, seed + 1))["worlds"] == 1


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("start", range(10_000, 20_000, 1000))
def test_ten_thousand_random_interleavings(start: int) -> None:
    everywhere(run(range(start, start + 1000)), 1000)


if __name__ == "__main__":
    counted = run(range(int(sys.argv[1]), int(sys.argv[2])), *sys.argv[3:])
    print("\n".join(f"{count:8} {what}" for what, count in sorted(counted.items())))
