"""Which records a private step uses: patients Poisson-sampled by a PRF of the patient, one record of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from privacy.sampling import KEY_BYTES, pick_record, poisson_mask


class Draws:
    """Draws for one table; each has its own key, so that removing one patient moves no other's.

    Args:
        patients: of each record.
        rate: the plan's sampling rate, in (0, 1].
        entropy: a CSPRNG such as os.urandom.
    """

    def __init__(self, patients: Sequence[bytes], rate: float, entropy: Callable[[int], bytes]) -> None:
        self._rate = rate
        self._entropy = entropy
        self._records: dict[bytes, list[int]] = {}
        for index, patient in enumerate(patients):
            self._records.setdefault(patient, []).append(index)
        self._patients = tuple(self._records)

    def draw(self) -> torch.Tensor:
        """Numbers of the records of one step, int64[b], at most one a patient."""
        key = self._entropy(KEY_BYTES)
        drawn = poisson_mask(key, self._patients, self._rate)
        indices = []
        for patient, selected in zip(self._patients, drawn.tolist(), strict=True):
            if selected:
                records = self._records[patient]
                indices.append(records[pick_record(key, patient, len(records))])
        return torch.tensor(indices, dtype=torch.int64)
