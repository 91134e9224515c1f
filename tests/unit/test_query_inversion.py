"""The coordinator serves the trunk: can it turn what a query shows it back into the patient?

A bounded local search over the schema's one-hot domain, the same for floats and codes: it looks for a record whose
embedding lies in the box that the query reveals (a point for floats, a cell for codes). From random starts it changes
the one column, or the two columns at once, that bring the embedding nearest. Models and starts are fixed, so that the
outcome is always the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feddrm.contract.plan import Plan, plan_hash
from feddrm.demo import rand
from feddrm.features import encode, read_table
from feddrm.method.coarse import Grid, query_bits
from feddrm.method.layout import initial_model, layout_of
from feddrm.method.update import trunk_tensors

PATIENTS = 8
STARTS = 40
FOUND = 1e-9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A trunk of one layer, patients' features, and by column all that it may hold."""

    plan: Plan
    trunk: dict[str, npt.NDArray[np.float32]]
    features: npt.NDArray[np.float32]

    @property
    def weight(self) -> Floats:
        return self.trunk["trunk.0.weight"].astype(np.float64)

    @property
    def bias(self) -> Floats:
        return self.trunk["trunk.0.bias"].astype(np.float64)

    def embed(self, features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return np.maximum(features @ self.weight.T + self.bias, 0).astype(np.float32)

    def columns(self) -> Iterator[tuple[slice, Floats]]:
        offset = 0
        for column in self.plan.schema_.columns:
            values = np.eye(column.width)
            if column.missing and not column.missing_indicator:
                values = np.vstack([values, np.zeros(column.width)])
            yield slice(offset, offset + column.width), values
            offset += column.width

    def box(self, *, coarse: bool) -> tuple[Floats, Floats]:
        """What the coordinator knows of the patients' embeddings: float64[n, d] from, to."""
        phi = self.embed(self.features)
        if not coarse:
            return phi.astype(np.float64), phi.astype(np.float64)
        grid = Grid.of(self.plan, self.trunk)
        centres = grid.decode(grid.encode(phi)).astype(np.float64)
        half = grid.bounds / (1 << grid.bits) / 2
        return centres - half, centres + half


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> npt.NDArray[np.float32]:
    files = rand.write_files(tmp_path_factory.mktemp("rand"))
    plan = Plan.model_validate(rand.plan_document("rand", 1))
    return encode(read_table(files.held_out), plan.schema_, targets=False).features


def a_case(held_out: npt.NDArray[np.float32], *, grown: float, **changes: Any) -> Case:
    """Patients and an untrained trunk; `grown` adds weights of that size, as training does."""
    plan = Plan.model_validate(rand.plan_document("rand", 1) | changes)
    layout = layout_of(plan)
    trunk = trunk_tensors(layout, initial_model(layout, plan_hash(plan.body())))
    rng = np.random.default_rng(7)
    trunk = {name: (values + rng.normal(0, grown, values.shape)).astype(np.float32) for name, values in trunk.items()}
    return Case(plan, trunk, held_out[:: len(held_out) // PATIENTS][:PATIENTS])


def invert(case: Case, low: Floats, high: Floats) -> tuple[float, npt.NDArray[np.float32]]:
    """The record whose embedding comes nearest to the box, and the square of how far it stays away."""
    options = np.concatenate([values @ case.weight[:, where].T for where, values in case.columns()])
    sizes = [len(values) for _, values in case.columns()]
    column = np.repeat(np.arange(len(sizes)), sizes)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    one, two = np.nonzero(np.triu(column[:, None] != column[None, :]))

    def away(z: Floats) -> Floats:
        phi = np.maximum(z, 0)
        miss = np.maximum(low - phi, 0) + np.maximum(phi - high, 0)
        return np.asarray(np.einsum("...i,...i->...", miss, miss))

    rng = np.random.default_rng(0)
    best, chosen = np.inf, first
    for _ in range(STARTS):
        state = first + rng.integers(sizes)
        z = case.bias + options[state].sum(axis=0)
        rest = float(away(z))
        while rest > FOUND:
            moves = options - options[state][column]
            after = away(z + moves)
            picked: tuple[int, ...] = (int(after.argmin()),)
            if after.min() >= rest - 1e-12:
                after = away(z + moves[one] + moves[two])
                picked = (int(one[after.argmin()]), int(two[after.argmin()]))
                if after.min() >= rest - 1e-12:
                    break
            state[column[list(picked)]] = picked
            z, rest = z + moves[list(picked)].sum(axis=0), float(after.min())
        if rest < best:
            best, chosen = rest, state.copy()
        if best <= FOUND:
            break
    parts = [values[pick] for (_, values), pick in zip(case.columns(), chosen - first, strict=True)]
    return best, np.concatenate(parts).astype(np.float32)


@dataclass(frozen=True)
class Haul:
    consistent: int
    patients: int
    columns: float


def attack(case: Case, *, coarse: bool) -> Haul:
    consistent, right = 0, []
    for features, low, high in zip(case.features, *case.box(coarse=coarse), strict=True):
        rest, record = invert(case, low, high)
        consistent += rest <= FOUND
        right.append([np.array_equal(record[where], features[where]) for where, _ in case.columns()])
    return Haul(consistent, sum(all(row) for row in right), float(np.mean(right)))


def mode_guess(case: Case, held_out: npt.NDArray[np.float32]) -> float:
    """Share of columns that whoever has seen no query at all guesses: the commonest value of each."""
    shares = []
    for where, values in case.columns():
        common = max(values, key=lambda value: (held_out[:, where] == value).all(axis=1).sum())
        shares.append((case.features[:, where] == common).all(axis=1).mean())
    return float(np.mean(shares))


@pytest.mark.parametrize("grown", [0.0, 0.7])
def test_a_wide_float_embedding_is_solved_for_the_patient(held_out: npt.NDArray[np.float32], grown: float) -> None:
    """Why queries are coarse. If this fails, the attack has lost its edge and the next test proves nothing."""
    haul = attack(a_case(held_out, grown=grown, model={"kind": "mlp", "hidden": [96]}), coarse=False)
    assert haul.patients >= PATIENTS - 1
    assert haul.columns > 0.9


@pytest.mark.parametrize("grown", [0.0, 0.7])
def test_a_coarse_embedding_is_not_solved_for_the_patient(held_out: npt.NDArray[np.float32], grown: float) -> None:
    """The search succeeds at once, with a stranger: it does worse than guessing without having seen the query."""
    case = a_case(held_out, grown=grown)
    haul = attack(case, coarse=True)
    assert haul.consistent == PATIENTS
    assert haul.patients == 0
    assert haul.columns < mode_guess(case, held_out)


def test_a_coarse_embedding_that_is_wide_is_solved_all_the_same(held_out: npt.NDArray[np.float32]) -> None:
    """It is the number of bits in all that protects, not that each unit has few: `plan check` warns of many."""
    case = a_case(held_out, grown=0.7, model={"kind": "mlp", "hidden": [96]}, queries={"embedding_bits": 4})
    assert query_bits(case.plan) == 384
    haul = attack(case, coarse=True)
    assert haul.patients >= PATIENTS - 2


def test_floats_give_the_rest_of_a_half_known_patient_away_and_codes_leave_it_open(
    held_out: npt.NDArray[np.float32],
) -> None:
    """Who knows all but age, income and education tries all 2352: one has the float embedding, many the code."""
    case = a_case(held_out, grown=0.0)
    unknown = [
        [(where, value) for value in values]
        for column, (where, values) in zip(case.plan.schema_.columns, case.columns(), strict=True)
        if column.name in ("xage", "income", "educdec")
    ]
    fits_float, fits_code = [], []
    grid = Grid.of(case.plan, case.trunk)
    for features, phi in zip(case.features, case.embed(case.features), strict=True):
        tried = np.repeat(features[None], 14 * 14 * 12, axis=0)
        for record, choice in zip(tried, itertools.product(*(column[:-1] for column in unknown)), strict=True):
            for where, value in choice:
                record[where] = value
        found = case.embed(tried)
        fits_float.append(int((np.abs(found - phi) < 1e-5).all(axis=1).sum()))
        (code,) = grid.encode(phi[None])
        fits_code.append(grid.encode(found).count(code))
    assert max(fits_float) == 1
    assert np.median(fits_code) > 20


def test_a_query_of_the_demo_shows_fewer_bits_than_a_record_has(held_out: npt.NDArray[np.float32]) -> None:
    case = a_case(held_out, grown=0.0)
    entropy = 0.0
    for where, values in case.columns():
        share = np.array([(held_out[:, where] == value).all(axis=1).mean() for value in values])
        entropy -= float((share[share > 0] * np.log2(share[share > 0])).sum())
    assert query_bits(case.plan) <= 32 < entropy
