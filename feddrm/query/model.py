"""The release at the querier: verified against its own roster, its trunk fetched, checked and kept (design 5, 8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from feddrm.contract.chunks import ChunkAssembler
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.files import atomic_write, make_directory
from feddrm.contract.home import MemberHome
from feddrm.contract.models import Frozen
from feddrm.contract.plan import Plan
from feddrm.contract.query_messages import QuerierRelease
from feddrm.contract.release import PLAN_FILE, STATEMENT_FILE, TRUNK_FILE, Release, verify_release
from feddrm.features import Table, encode
from feddrm.method.coarse import Grid
from feddrm.method.layout import Layout, layout_of
from feddrm.method.update import part_hash
from feddrm.query.coordinator import Coordinator

# Names, shapes and offsets in front of the numbers of a safetensors file.
_HEADER_LIMIT: Final = 1 << 16

Tensors = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class QuerierModel:
    """A verified release and its trunk's tensors."""

    release: Release
    tensors: Tensors = field(repr=False)

    @property
    def plan(self) -> Plan:
        """The plan that the release is of."""
        return self.release.plan.plan

    def features(self, table: Table, extractor: Path | None = None) -> npt.NDArray[np.float32]:
        """float32[n, d] of a table's records, by the plan's schema and, if the plan has one, its feature extractor.

        Args:
            extractor: the extractor's file.

        Raises:
            InputError: see feddrm.features.encode and feddrm.method.extractor.
        """
        records = encode(table, self.plan.schema_, targets=False).features
        if not isinstance(self.plan.model, Frozen):
            return records
        from feddrm.method.extractor import extracted

        return extracted(self.plan, extractor, records, "--extractor FILE")

    def codes(self, features: npt.NDArray[np.float32]) -> tuple[bytes, ...]:
        """The coarse embeddings of features float32[n, d]: all that the coordinator sees of a patient.

        The embedding itself stays here, for whoever serves the trunk could solve it for the features.
        """
        # Here and not above: commands that embed nothing start without torch.
        import torch

        from feddrm.method.model import Embedder

        torch.set_num_threads(1)
        phi = Embedder.from_tensors(self.plan, self.tensors).embed(features)
        return Grid.of(self.plan, self.tensors).encode(phi)


async def current_model(coordinator: Coordinator, home: MemberHome) -> QuerierModel:
    """The release in service, verified; its files lie in DIR/state/releases/ID.

    A trunk that is there already is not fetched again, and one that is there in part is resumed.

    Raises:
        VerificationError: the plan is not the operator's, fewer silos than its threshold signed the statement, or the
            trunk is not the one that they signed: a coordinator that served an identity trunk could read patients.
        MalformedError: something is not of the agreed form.
    """
    offered = await coordinator.release()
    release = verify_release(offered.statement, plan=offered.plan, roster=home.roster)
    layout = layout_of(release.plan.plan)
    if release.statement.layout != layout.fingerprint():
        raise VerificationError(
            "The release has another layout than its plan gives here.",
            remedy="Install the version of feddrm that made the release.",
        )
    directory = home.directory / "state" / "releases" / release.id
    make_directory(directory)
    data = await _trunk(coordinator, offered, layout, directory)
    tensors = read_trunk(data, layout, release.statement.trunk)
    atomic_write(directory / PLAN_FILE, offered.plan.to_json().encode())
    atomic_write(directory / STATEMENT_FILE, offered.statement.to_json().encode())
    return QuerierModel(release, tensors)


async def _trunk(coordinator: Coordinator, offered: QuerierRelease, layout: Layout, directory: Path) -> bytes:
    limit = 4 * sum(tensor.size for tensor in layout.part("trunk")) + _HEADER_LIMIT
    assembler = ChunkAssembler(offered.trunk, limit=limit, path=directory / TRUNK_FILE)
    if not assembler.complete:
        resumed = assembler.held > 0
        try:
            await coordinator.fetch(assembler)
        except (MalformedError, VerificationError):
            if not resumed:
                raise
            # The part that was kept may be what is wrong.
            assembler.discard()
            await coordinator.fetch(assembler)
    return assembler.data()


def read_trunk(data: bytes, layout: Layout, expected: bytes) -> Tensors:
    """A trunk's tensors from the safetensors file, if they are those that the silos signed.

    Args:
        expected: trunk hash of the verified statement (32 bytes).

    Raises:
        VerificationError: another trunk.
        MalformedError: not a trunk of this layout.
    """
    try:
        tensors = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError) as error:
        raise MalformedError("The trunk is not a safetensors file.") from error
    if part_hash(layout, "trunk", tensors) != expected:
        raise VerificationError(
            "The trunk is not the one that the silos signed; nothing was computed with it.",
            remedy="Tell the operator: the coordinator serves a changed model.",
        )
    return dict(tensors)
