"""Certificates: who may be what, and requests that ask for more."""

from __future__ import annotations

import datetime
import ipaddress
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from cryptography.x509.verification import VerificationError as ChainError

from feddrm.contract import labels
from feddrm.contract.authority import (
    CLOCK_SKEW_MS,
    DAY_MS,
    Address,
    Authority,
    check_leaf,
    check_root,
    check_validity,
    create_authority,
    issue,
    parse_certificate,
    pem,
)
from feddrm.contract.errors import MalformedError, VerificationError
from feddrm.contract.identity import MemberKeys, Role, Subject, sign_sealing_key
from feddrm.contract.request import make_request, verify_request
from feddrm.contract.signed import Signed, sign

NOW = 1_800_000_000_000
ADDRESS = Address("agg.example.org", 8002)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return create_authority("retina", NOW)


def _key() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def test_members_are_clients_only_and_carry_one_name(authority: Authority) -> None:
    for role in (Role.SILO, Role.QUERIER, Role.OPERATOR):
        certificate = issue(authority, _key(), Subject("retina", role, "a"), NOW)
        assert _names(certificate) == [x509.UniformResourceIdentifier(f"feddrm://retina/{role.value}/a")]
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        assert check_leaf(certificate, authority.certificate, what="It").role is role


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (ADDRESS, x509.DNSName("agg.example.org")),
        (Address("127.0.0.1", 1), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))),
        (Address.parse("[::1]:1"), x509.IPAddress(ipaddress.ip_address("::1"))),
    ],
)
def test_the_coordinator_is_a_server_only_at_its_address(
    authority: Authority, address: Address, name: x509.GeneralName
) -> None:
    subject = Subject("retina", Role.COORDINATOR, "coordinator")
    certificate = issue(authority, _key(), subject, NOW, address=address)
    assert _names(certificate) == [x509.UniformResourceIdentifier(subject.uri), name]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert list(usage.value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert check_leaf(certificate, authority.certificate, what="It") == subject


def test_an_independent_verifier_accepts_leaves_for_their_use_only(authority: Authority) -> None:
    """pyca's own path validation (RFC 5280), as a second opinion."""
    moment = datetime.datetime.fromtimestamp(NOW // 1000, datetime.UTC)
    builder = PolicyBuilder().store(Store([authority.certificate])).time(moment)
    server = issue(authority, _key(), Subject("retina", Role.COORDINATOR, "coordinator"), NOW, address=ADDRESS)
    client = issue(authority, _key(), Subject("retina", Role.SILO, "a"), NOW)
    builder.build_server_verifier(x509.DNSName("agg.example.org")).verify(server, [])
    builder.build_client_verifier().verify(client, [])
    with pytest.raises(ChainError):
        builder.build_server_verifier(x509.DNSName("agg.example.org")).verify(client, [])
    with pytest.raises(ChainError):
        builder.build_server_verifier(x509.DNSName("other.example.org")).verify(server, [])
    with pytest.raises(ChainError):
        builder.build_client_verifier().verify(server, [])


def test_a_leaf_cannot_issue(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = Authority(issue(authority, key.public_key(), Subject("retina", Role.SILO, "a"), NOW), key)
    forged = issue(leaf, _key(), Subject("retina", Role.OPERATOR, "operator"), NOW)
    with pytest.raises(VerificationError, match="not issued by this federation's authority"):
        check_leaf(forged, authority.certificate, what="It")
    with pytest.raises(VerificationError, match="not a root certificate"):
        check_root(leaf.certificate, what="It")


def test_another_authority_of_the_same_name_is_refused(authority: Authority) -> None:
    other = create_authority("retina", NOW)
    with pytest.raises(VerificationError, match="not issued by"):
        check_leaf(issue(other, _key(), Subject("retina", Role.SILO, "a"), NOW), authority.certificate, what="It")


def _forge(authority: Authority, names: list[x509.GeneralName], usages: list[x509.ObjectIdentifier], ca: bool = False):
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(authority.certificate.subject)
        .public_key(_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(NOW / 1000 - 60, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(NOW / 1000 + 60, datetime.UTC))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def test_certificates_of_another_form_are_refused_even_from_the_right_root(authority: Authority) -> None:
    silo = x509.UniformResourceIdentifier("feddrm://retina/silo/a")
    operator = x509.UniformResourceIdentifier("feddrm://retina/operator/operator")
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    assert check_leaf(_forge(authority, [silo], [client]), authority.certificate, what="It").name == "a"
    for names, usages, ca in (
        ([silo, operator], [client], False),
        ([x509.DNSName("a")], [client], False),
        ([silo, x509.DNSName("agg.example.org")], [client], False),
        ([silo], [client, server], False),
        ([silo], [server], False),
        ([silo], [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE], False),
        ([silo], [client], True),
        ([x509.UniformResourceIdentifier("feddrm://retina/root/a")], [client], False),
    ):
        with pytest.raises((VerificationError, MalformedError)):
            check_leaf(_forge(authority, names, usages, ca), authority.certificate, what="It")


def test_validity_forgives_an_hour_of_clock_error_and_no_more(authority: Authority) -> None:
    certificate = issue(authority, _key(), Subject("retina", Role.SILO, "a"), NOW, days=30)
    for moment in (NOW - CLOCK_SKEW_MS + 1000, NOW, NOW + 30 * DAY_MS - 1000):
        check_validity(certificate, moment, what="It")
    with pytest.raises(VerificationError, match=r"It expired on 2027-02-14 \d\d:\d\d UTC\. Renew it"):
        check_validity(certificate, NOW + 30 * DAY_MS, what="It", remedy="Renew it.")
    with pytest.raises(VerificationError, match=r"valid from .* Check this machine's clock"):
        check_validity(certificate, NOW - CLOCK_SKEW_MS - 1000, what="It")


def test_a_leaf_never_outlives_its_root(authority: Authority) -> None:
    late = NOW + 3640 * DAY_MS
    certificate = issue(authority, _key(), Subject("retina", Role.SILO, "a"), late)
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_what_a_request_smuggles_into_its_csr_never_reaches_a_certificate(authority: Authority) -> None:
    keys = MemberKeys.generate()
    honest = json.loads(make_request("a", Role.SILO, keys).body)
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.load_pem_x509_csr(honest["csr"].encode()).subject)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.UniformResourceIdentifier("feddrm://retina/operator/operator"),
                    x509.DNSName("agg.example.org"),
                ]
            ),
            critical=True,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(keys.tls, hashes.SHA256())
    )
    honest["csr"] = csr.public_bytes(Encoding.PEM).decode()
    body = json.dumps(honest, sort_keys=True, separators=(",", ":")).encode()
    request = verify_request(sign(keys.identity, labels.REQUEST, body))
    certificate = issue(authority, request.public_key(), Subject("retina", Role.SILO, request.name), NOW)
    assert check_leaf(certificate, authority.certificate, what="It") == Subject("retina", Role.SILO, "a")
    assert _names(certificate) == [x509.UniformResourceIdentifier("feddrm://retina/silo/a")]
    assert b"agg.example.org" not in certificate.public_bytes(Encoding.DER)


def _altered(keys: MemberKeys, **changes: object) -> Signed:
    raw = json.loads(make_request("a", Role.SILO, keys).body) | changes
    return sign(keys.identity, labels.REQUEST, json.dumps(raw, sort_keys=True, separators=(",", ":")).encode())


def test_requests_without_proof_of_possession_are_refused() -> None:
    keys, other = MemberKeys.generate(), MemberKeys.generate()
    assert verify_request(_altered(keys)).name == "a"
    stolen_csr = json.loads(make_request("a", Role.SILO, other).body)["csr"]
    own = json.loads(make_request("a", Role.SILO, keys).body)["csr"]
    middle = len(own) // 2
    foreign_sealing = json.loads(make_request("a", Role.SILO, other).body)
    for changes in (
        {"csr": stolen_csr},
        {"csr": own[:middle] + ("A" if own[middle] != "A" else "B") + own[middle + 1 :]},
        {"csr": "no PEM"},
        {"name": "b"},
        {"name": "../a"},
        {"name": "operator"},
        {"role": "operator"},
        {"role": "coordinator"},
        {"identity": other.identity_public.hex()},
        {"identity": (1).to_bytes(32, "little").hex()},
        {"sealing": foreign_sealing["sealing"]},
        {"sealing": foreign_sealing["sealing"], "sealing_signature": foreign_sealing["sealing_signature"]},
        {"extra": 1},
    ):
        with pytest.raises((VerificationError, MalformedError)):
            verify_request(_altered(keys, **changes))


def test_a_request_carries_exactly_one_signature_and_under_its_label() -> None:
    keys, other = MemberKeys.generate(), MemberKeys.generate()
    honest = make_request("a", Role.SILO, keys)
    stranger = sign(other.identity, labels.REQUEST, honest.body)
    for signed in (
        Signed(honest.body, ()),
        Signed(honest.body, honest.signatures + stranger.signatures),
        Signed(honest.body, honest.signatures * 2),
        stranger,
        sign(keys.identity, labels.KIT, honest.body),
    ):
        with pytest.raises(VerificationError):
            verify_request(signed)


def test_tls_keys_of_other_curves_are_refused(authority: Authority) -> None:
    keys = MemberKeys.generate()
    wrong = MemberKeys(ec.generate_private_key(ec.SECP384R1()), keys.identity, keys.sealing)
    with pytest.raises(MalformedError, match="P-256"):
        verify_request(make_request("a", Role.SILO, wrong))
    with pytest.raises(ValueError, match="P-256"):
        issue(authority, wrong.tls.public_key(), Subject("retina", Role.SILO, "a"), NOW)


def test_a_copied_sealing_key_needs_its_owners_identity() -> None:
    """A member may list a stranger's sealing key under its own signature; enrolment refuses the collision instead."""
    keys, other = MemberKeys.generate(), MemberKeys.generate()
    sealing = other.sealing.public()
    import base64

    copied = _altered(
        keys,
        sealing=base64.b64encode(sealing).decode(),
        sealing_signature=base64.b64encode(sign_sealing_key(keys.identity, "a", sealing)).decode(),
    )
    assert verify_request(copied).sealing == sealing


def test_a_certificate_file_holds_exactly_one(authority: Authority) -> None:
    data = pem(authority.certificate)
    assert parse_certificate(data, what="It") == authority.certificate
    for bad in (b"", b"x", data + data, data[:-40]):
        with pytest.raises(MalformedError, match="It"):
            parse_certificate(bad, what="It")
