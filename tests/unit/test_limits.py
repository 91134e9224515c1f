"""Limits that packages which must not import each other have to share."""

from __future__ import annotations

import privacy.witness
import secagg.wire
from feddrm.contract.codec_records import MAXIMUM_MESSAGE


def test_a_ledger_proof_has_one_limit_and_fits_into_evidence() -> None:
    """A proof that one side takes and the other cannot even refuse would end every honest agent (found in review)."""
    assert secagg.wire.MAXIMUM_PROOF == privacy.witness.MAXIMUM_PROOF
    assert secagg.wire.MAXIMUM_PROOF < secagg.wire.MAXIMUM_EVIDENCE


def test_the_proofs_of_the_largest_cohort_fit_into_one_message() -> None:
    assert secagg.wire.MAXIMUM_SILOS * (secagg.wire.MAXIMUM_PROOF + 4096) < MAXIMUM_MESSAGE
