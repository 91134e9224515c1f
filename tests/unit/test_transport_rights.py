"""The table of rights names every method of the wire contract."""

from __future__ import annotations

from pathlib import Path

from feddrm.contract.identity import Role
from feddrm.transport.peers import ROLE_OF_METHOD
from feddrm.v1 import common_pb2, operator_pb2, query_pb2, silo_pb2


def test_every_method_of_the_wire_contract_has_exactly_one_role() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in (common_pb2, operator_pb2, query_pb2, silo_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(ROLE_OF_METHOD) == methods
    assert len(methods) >= 18
    assert set(ROLE_OF_METHOD.values()) == {Role.SILO, Role.OPERATOR, Role.QUERIER}


def test_no_proto_file_was_forgotten() -> None:
    files = {path.stem for path in Path(__file__).parents[2].joinpath("proto/feddrm/v1").glob("*.proto")}
    assert files == {"common", "operator", "query", "silo"}
