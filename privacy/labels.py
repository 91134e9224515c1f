"""Every label under which this package hashes or draws. A test checks that no two of any package collide."""

from __future__ import annotations

from typing import Final

POISSON_DRAW: Final = b"feddrm/1 poisson draw"
RECORD_DRAW: Final = b"feddrm/1 record draw"
UPDATE_COMMITMENT: Final = b"feddrm/1 update commitment"
DATASET_COMMITMENT: Final = b"feddrm/1 dataset commitment"
SUCCESSOR: Final = b"feddrm/1 ledger successor"
CANARY_COINS: Final = b"feddrm/1 canary coins"
