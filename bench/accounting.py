"""Privacy accounting: what a ledger of a whole job costs its hospital and its auditor, first and again.

The job trains, fits the router in sums with shares of noise, and publishes counts, so that with and without secure
aggregation are two figures. `verify` is the whole check of the ledger's leaves as `feddrm-audit verify` runs it after
`account`; were the epsilon recomputed for each leaf, it would cost as much as that for every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.report import arguments, show
from privacy.accounting import claim, epsilon, epsilon_alone
from privacy.checks import PlanTerms, StageTerms
from privacy.events import DistributedDiscreteGaussian, Event, PoissonSubsampledGaussian
from privacy.leaves import Caps, Commit, Dataset, Key, Leaf, Plan, Record, Release, Reserve
from privacy.merkle import Tree
from privacy.note import sign_head
from privacy.summary import course
from privacy.verify import verify_log

_ORIGIN, _TIME, _DELTA = "feddrm/bench/hospital-a", "2027-01-15T08:00:00Z", 1e-6
_PLAN = b"p" * 32


def _once(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _terms(rounds: int) -> PlanTerms:
    """A plan of `rounds` in all: mostly training, up to 100 sums for the router, one for the figures."""
    sums = min(100, rounds // 4)
    # A noise multiplier of its own for each number of rounds, or the cache would answer.
    train = PoissonSubsampledGaussian(1.7 + rounds / 1e5, 0.03, 5)
    fit = DistributedDiscreteGaussian.calibrated(60.0, sensitivity=92_700, shares=4, dimension=330)
    counts = DistributedDiscreteGaussian.calibrated(8.0, sensitivity=131_073, shares=4, dimension=4)
    first = rounds - sums
    stages = {1: StageTerms(train, 1, first - 1), 2: StageTerms(fit, first, sums), 4: StageTerms(counts, rounds, 1)}
    return PlanTerms("job", _DELTA, stages, "id", bytes(32), bytes(32))


def _rounds(terms: PlanTerms) -> list[tuple[int, int, Event]]:
    return [
        (stage, number, one.event)
        for stage, one in terms.stages.items()
        for number in range(one.first, one.first + one.rounds)
    ]


def _ledger(terms: PlanTerms, key: bytes, cost: tuple[float, float]) -> list[Record]:
    caps = Caps(1e3, 1e3, 1e-5, 1e3, 1e3, 1e-4, 10)
    leaves: list[Leaf] = [
        Key(_ORIGIN, key),
        Plan(_PLAN, terms.name, _DELTA, *cost, terms.events(), caps, "0.1.0"),
        Dataset(_PLAN, bytes(32), bytes(32), "id", 1000),
    ]
    for stage, number, event in _rounds(terms):
        leaves.append(Reserve(_PLAN, stage, number, event, bytes(32)))
        leaves.append(Commit(_PLAN, stage, number, len(leaves) - 1, bytes(32)))
        leaves.append(Release(_PLAN, stage, number, bytes(32), bytes(32)))
    return [Record(_TIME, leaf) for leaf in leaves]


def main(argv: Sequence[str] | None = None) -> None:
    """Print CPU seconds; the first row pays the import of dp-accounting."""
    options = arguments(argv, "Privacy accounting, CPU seconds")
    signer = Ed25519PrivateKey.generate()
    key = signer.public_key().public_bytes_raw()
    rows = []
    for rounds in (20, 100) if options.quick else (20, 100, 1000):
        terms = _terms(rounds)
        events = [event for _, _, event in _rounds(terms)]
        figures: list[float] = []

        def account(events: list[Event] = events, figures: list[float] = figures) -> None:
            figures[:] = [epsilon(events, _DELTA).pld, epsilon_alone(events, _DELTA).pld]

        first, again = _once(account), _once(account)
        records = _ledger(terms, key, (claim(figures[0]), claim(figures[1])))
        bodies = tuple(record.encode() for record in records)
        head = sign_head(_ORIGIN, len(bodies), Tree(bodies).root(), signer)
        checks: list[bool] = []

        def verify(
            bodies: tuple[bytes, ...] = bodies, head: bytes = head, terms: PlanTerms = terms, out: list[bool] = checks
        ) -> None:
            found = verify_log(origin=_ORIGIN, key=key, leaves=bodies, head=head, plans={_PLAN: terms}, witnessed={})
            out[:] = [check.passed for check in found]

        verified = _once(verify)
        if not all(checks):
            raise SystemExit("the benchmark's own ledger does not verify")
        drawn = _once(lambda records=records: course(records))  # type: ignore[misc]
        rows.append(
            {
                "rounds": rounds,
                "epsilon": figures[0],
                "alone": figures[1],
                "account_s": first,
                "again_s": again,
                "verify_s": verified,
                "report_course_s": drawn,
            }
        )
    show(rows, "Accounting: CPU seconds for a ledger of stages 1, 2 and 4", options.format)


if __name__ == "__main__":
    main()
