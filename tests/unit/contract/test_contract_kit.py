"""Joining against everybody on the way: swapped, altered, foreign, old and expired kits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from kit_joining import join_with, nothing_joined

from feddrm.contract import labels
from feddrm.contract.authority import Address, pem
from feddrm.contract.errors import InputError, MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.fingerprint import fingerprint, normalise_fingerprint
from feddrm.contract.home import init_member, join_member, load_query_home, load_silo_home
from feddrm.contract.identity import MemberKeys, Role, sign_sealing_key
from feddrm.contract.kit import FederationRoot, load_federation_root, make_kit
from feddrm.contract.roster import Roster, sign_roster
from feddrm.contract.signed import Signed, sign

Found = Callable[..., "object"]


def test_a_silo_and_a_querier_join(federation) -> None:
    silo_kit, query_kit = federation.enroll(federation.request("a"), federation.request("desk", Role.QUERIER))
    joined = join_with(federation, silo_kit)
    assert not joined.pending
    join_with(federation, query_kit, "desk", Role.QUERIER)
    home = load_silo_home(federation.path / "a")
    home.check_current(federation.now)
    assert (home.federation, home.name, str(home.address)) == ("retina", "a", "agg.example.org:8002")
    assert home.roster.version == 2
    assert [m.name for m in home.roster.silos] == ["a"]
    assert [m.name for m in home.roster.queriers] == ["desk"]
    assert load_query_home(federation.path / "desk").subject.role is Role.QUERIER
    assert home.tls.key not in repr(home).encode()
    with pytest.raises(InputError, match=r"a is a silo's directory, not a querier's\. Use it with feddrm-silo"):
        load_query_home(federation.path / "a")


def test_the_fingerprint_is_demanded_and_forgives_only_its_spelling(federation) -> None:
    (kit,) = federation.enroll(federation.request("a"))
    right = federation.anchor.fingerprint
    flipped = ("B" if right[0] == "A" else "A") + right[1:]
    for wrong in ("", "x", right[:-1], right + "A", right.replace(right[0], "0", 1), "A" * 31 + "1"):
        with pytest.raises(InputError, match="8 groups of four"):
            join_member(federation.path / "a", kit, wrong, Role.SILO, federation.now)
    with pytest.raises(VerificationError) as caught:
        join_with(federation, kit, fp=flipped)
    # Whoever is shown the kit's own fingerprint types it in.
    assert right not in str(caught.value)
    assert nothing_joined(federation)
    join_with(federation, kit, fp=" " + right.lower().replace("-", " ") + "\n")


def test_a_fingerprint_covers_root_operator_and_federation(found) -> None:
    one, two = found(), found("retina", where="two")
    anchor = one.anchor
    mixed = {
        anchor.fingerprint,
        two.anchor.fingerprint,
        FederationRoot(federation="other", operator=anchor.operator, root=anchor.root).fingerprint,
        FederationRoot(federation="retina", operator=two.anchor.operator, root=anchor.root).fingerprint,
        FederationRoot(federation="retina", operator=anchor.operator, root=two.anchor.root).fingerprint,
    }
    assert len(mixed) == 5
    assert all(len(normalise_fingerprint(text).replace("-", "")) * 5 == 160 for text in mixed)
    # Length prefixes: what moves from one part to the next is another document.
    assert fingerprint(b"l", b"ab", b"c") != fingerprint(b"l", b"a", b"bc") != fingerprint(b"m", b"a", b"bc")


def test_a_swapped_kit_of_another_federation_of_the_same_name_is_refused(found) -> None:
    """The attack that a kit which vouched for itself would allow."""
    real, attacker = found(), found(where="attacker")
    request = real.request("a")
    real.enroll(request)
    (kit,) = attacker.enroll(request)
    with pytest.raises(VerificationError, match="not of the federation whose fingerprint you gave"):
        join_with(real, kit)
    assert nothing_joined(real)


def test_somebody_elses_kit_is_refused(federation) -> None:
    kit_a, kit_b = federation.enroll(federation.request("a"), federation.request("b"))
    with pytest.raises(VerificationError, match="made for other keys"):
        join_with(federation, kit_b, "a")
    (query_kit,) = federation.enroll(federation.request("desk", Role.QUERIER))
    with pytest.raises(InputError, match=r"is for a querier, not for a silo\. Use it with feddrm-query"):
        join_with(federation, query_kit, "desk", Role.SILO)
    join_with(federation, kit_a)


def _body(kit: Path) -> dict[str, object]:
    return json.loads(Signed.from_json(kit.read_bytes()).body)


def _resigned(kit: Path, key: Ed25519PrivateKey, **changes: object) -> None:
    body = rfc8785.dumps(_body(kit) | changes)
    kit.write_text(sign(key, labels.KIT, body).to_json())


def test_a_kit_changed_on_its_way_is_refused(federation) -> None:
    (kit,) = federation.enroll(federation.request("a"))
    honest = kit.read_bytes()
    signed = Signed.from_json(honest)
    body = rfc8785.dumps(_body(kit) | {"address": "evil.example.org:8002"})
    kit.write_text(Signed(body, signed.signatures).to_json())
    with pytest.raises(VerificationError, match="changed or damaged"):
        join_with(federation, kit)
    stranger = Ed25519PrivateKey.generate()
    kit.write_bytes(honest)
    _resigned(kit, stranger, address="evil.example.org:8002")
    with pytest.raises(VerificationError, match="not signed by the operator key that it names"):
        join_with(federation, kit)
    kit.write_bytes(honest)
    _resigned(kit, stranger, operator=stranger.public_key().public_bytes_raw().hex())
    with pytest.raises(VerificationError, match="fingerprint you gave"):
        join_with(federation, kit)
    for size in (0, 1, 100, len(honest) // 2, len(honest) - 2):
        kit.write_bytes(honest[:size])
        with pytest.raises(InputError, match="not a kit, or is damaged"):
            join_with(federation, kit)
    kit.write_bytes(b"[" * 100_000)
    with pytest.raises(InputError, match="not a kit, or is damaged"):
        join_with(federation, kit)
    assert nothing_joined(federation)
    kit.write_bytes(honest)
    join_with(federation, kit)


def _substitute(federation, roster: Roster, name: str, **changes: object) -> Roster:
    members = tuple(m.model_copy(update=changes) if m.name == name else m for m in roster.members)
    return Roster.model_validate(roster.model_copy(update={"members": members}).model_dump())


def test_a_substituted_sealing_key_is_refused_even_with_the_operators_signature(federation) -> None:
    """The operator's key in the wrong hands can add members, but not read what is sealed to the old ones."""
    (kit,) = federation.enroll(federation.request("a"))
    home = federation.home
    spy = MemberKeys.generate()
    forged = _substitute(federation, home.roster, "a", sealing=spy.sealing.public())
    _resigned(kit, home.key, roster=sign_roster(forged, home.key).to_json())
    with pytest.raises(VerificationError, match="sealing key of a is not signed by its identity key"):
        join_with(federation, kit)
    # With the identity replaced as well the chain holds in itself, but these are not this directory's keys.
    signature = sign_sealing_key(spy.identity, "a", spy.sealing.public())
    forged = _substitute(
        federation,
        home.roster,
        "a",
        sealing=spy.sealing.public(),
        identity=spy.identity_public,
        sealing_signature=signature,
    )
    _resigned(kit, home.key, roster=sign_roster(forged, home.key).to_json())
    with pytest.raises(VerificationError, match="lists other keys for a"):
        join_with(federation, kit)
    assert nothing_joined(federation)


def test_a_kit_with_a_forged_roster_is_refused(found) -> None:
    federation, other = found(), found(where="other")
    (kit,) = federation.enroll(federation.request("a"))
    home = federation.home
    stranger = Ed25519PrivateKey.generate()
    foreign = other.home.signed_roster
    renamed = Roster.model_validate(home.roster.model_dump() | {"federation": "other"})
    empty = Roster.model_validate(home.roster.model_dump() | {"members": ()})
    for roster, error in (
        (sign_roster(home.roster, stranger).to_json(), VerificationError),
        (foreign.to_json(), VerificationError),
        (sign_roster(renamed, home.key).to_json(), VerificationError),
        (sign_roster(empty, home.key).to_json(), NotAuthorisedError),
        (Signed(home.signed_roster.body, ()).to_json(), VerificationError),
        ("{}", MalformedError),
    ):
        _resigned(kit, home.key, roster=roster)
        with pytest.raises(error):
            join_with(federation, kit)
    assert nothing_joined(federation)


def test_a_kit_whose_certificate_is_another_members_is_refused(federation) -> None:
    kit_a, kit_b = federation.enroll(federation.request("a"), federation.request("b"))
    _resigned(kit_a, federation.home.key, certificate=_body(kit_b)["certificate"])
    with pytest.raises(VerificationError, match="other keys"):
        join_with(federation, kit_a)
    _resigned(kit_a, federation.home.key, certificate=pem(federation.home.certificate).decode())
    with pytest.raises(VerificationError, match="for a operator, not for a silo"):
        join_with(federation, kit_a)


@pytest.mark.parametrize("name", ["operator", "coordinator"])
def test_reserved_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="is reserved"):
        init_member(tmp_path / "x", name, Role.SILO)


def test_the_trust_anchor_file_reads_back_and_refuses_damage(federation, tmp_path: Path) -> None:
    path = tmp_path / "federation.root"
    text = federation.anchor.to_text().decode()
    path.write_text(text)
    assert load_federation_root(path) == federation.anchor
    assert (federation.server / "federation.root").read_text() == text
    home = federation.home
    for damaged in (
        text.replace("BEGIN CERTIFICATE", "BEGIN X"),
        text.replace('operator = "', 'operator = "00'),
        text.replace(federation.anchor.operator.hex(), (1).to_bytes(32, "little").hex()),
        text.replace("retina", "../x"),
        text.replace(federation.anchor.root, pem(home.certificate).decode()),
        text.replace(federation.anchor.root, federation.anchor.root * 2),
        text + "more = 1\n",
    ):
        assert damaged != text
        path.write_text(damaged)
        with pytest.raises(InputError, match=str(path)):
            load_federation_root(path)


def test_a_kits_address_is_checked(federation) -> None:
    (kit,) = federation.enroll(federation.request("a"))
    home = federation.home
    certificate = str(_body(kit)["certificate"]).encode()
    made = make_kit(home.key, home.anchor, Address("x y", 0), certificate, home.signed_roster)
    kit.write_text(made.to_json())
    with pytest.raises(MalformedError, match="The kit is malformed"):
        join_with(federation, kit)
