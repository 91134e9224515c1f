"""Pinned rosters: nothing that arrives becomes trusted without a person, and nothing goes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from aggregator.homes import install_roster, load_server_home
from aggregator.operations import remove_members, renew
from feddrm.contract.authority import DAY_MS
from feddrm.contract.errors import InputError, MalformedError, NotAuthorisedError, VerificationError
from feddrm.contract.fingerprint import member_fingerprint
from feddrm.contract.home import load_silo_home
from feddrm.contract.identity import MemberKeys, sign_sealing_key
from feddrm.contract.pin import APPROVALS_FILE, PENDING_FILE, PINNED_FILE, Offer
from feddrm.contract.roster import Member, Roster, difference, sign_roster, verify_roster
from feddrm.contract.signed import Signed


def _changed(roster: Roster, **changes: object) -> Roster:
    return Roster.model_validate(roster.model_dump() | changes)


def _pin(directory: Path):
    return load_silo_home(directory).pin


def test_a_newer_roster_waits_until_a_person_accepts_it(federation) -> None:
    directory = federation.member("a")
    pin = _pin(directory)
    assert pin.offer(federation.home.signed_roster, federation.now) is Offer.PINNED_ALREADY
    federation.member("b")
    newer = federation.home.signed_roster
    assert pin.offer(newer, federation.now) is Offer.PENDING
    assert pin.offer(newer, federation.now) is Offer.PENDING
    assert pin.roster().version == 2
    _, roster, changes = pin.pending()
    assert [m.name for m in changes.added] == ["b"]
    assert changes.adds_trust
    with pytest.raises(InputError, match="Version 3 waits for approval now, not version 2"):
        pin.accept(2, federation.now)
    pin.accept(roster.version, federation.now)
    assert pin.roster() == roster
    assert pin.pending() is None
    assert pin.signed() == newer
    (line,) = (directory / "startup" / APPROVALS_FILE).read_text().splitlines()
    entry = json.loads(line)
    assert entry["version"] == 3
    assert entry["differences"][0].startswith("added    silo b")
    with pytest.raises(InputError, match="No roster waits"):
        pin.accept(3, federation.now)


def test_rosters_never_go_back(federation) -> None:
    pin = _pin(federation.member("a"))
    old = federation.home.signed_roster
    federation.member("b")
    middle = federation.home.signed_roster
    federation.member("c")
    newest = federation.home.signed_roster
    pin.offer(newest, federation.now)
    # Not even below a roster that only waits: the person may have seen its differences already.
    with pytest.raises(VerificationError, match="version 3 was offered, but version 4 is known"):
        pin.offer(middle, federation.now)
    pin.accept(4, federation.now)
    for roster in (old, middle):
        with pytest.raises(VerificationError, match="rosters do not go back"):
            pin.offer(roster, federation.now)
    assert pin.roster().version == 4


def test_two_rosters_of_one_version_are_an_alarm(federation) -> None:
    pin = _pin(federation.member("a"))
    home = federation.home
    twin = sign_roster(_changed(home.roster, expires_ms=home.roster.expires_ms + 1), home.key)
    with pytest.raises(VerificationError, match="Two different rosters carry version 2"):
        pin.offer(twin, federation.now)
    federation.member("b")
    home = federation.home
    pin.offer(home.signed_roster, federation.now)
    twin = sign_roster(_changed(home.roster, members=home.roster.members[:1]), home.key)
    with pytest.raises(VerificationError, match="Two different rosters carry version 3"):
        pin.offer(twin, federation.now)
    assert pin.pending()[0] == home.signed_roster


def test_forged_and_foreign_rosters_are_never_stored(found) -> None:
    federation, other = found(), found(where="other")
    directory = federation.member("a")
    pin, home = _pin(directory), federation.home
    newer = _changed(home.roster, version=9)
    stranger = Ed25519PrivateKey.generate()
    honest = sign_roster(newer, home.key)
    for forged in (
        sign_roster(newer, stranger),
        sign_roster(_changed(newer, operator=stranger.public_key().public_bytes_raw()), home.key),
        sign_roster(_changed(newer, operator=stranger.public_key().public_bytes_raw()), stranger),
        sign_roster(newer, load_server_home(federation.server).round_key),
        Signed(honest.body.replace(b'"version":9', b'"version":8'), honest.signatures),
        Signed(honest.body, ()),
        other.home.signed_roster,
    ):
        with pytest.raises(VerificationError):
            pin.offer(forged, federation.now)
    assert not (directory / "startup" / PENDING_FILE).exists()


def test_expired_and_future_rosters_are_refused(federation) -> None:
    pin, home = _pin(federation.member("a")), federation.home
    now = federation.now
    expired = _changed(home.roster, version=3, issued_ms=now - 2 * DAY_MS, expires_ms=now - 1)
    future = _changed(home.roster, version=3, issued_ms=now + DAY_MS)
    with pytest.raises(VerificationError, match=r"expired on .* roster renew"):
        pin.offer(sign_roster(expired, home.key), now)
    with pytest.raises(VerificationError, match="in the future"):
        pin.offer(sign_roster(future, home.key), now)
    renewed = _changed(home.roster, version=3, expires_ms=now + DAY_MS)
    pin.offer(sign_roster(renewed, home.key), now)
    with pytest.raises(VerificationError, match="expired"):
        pin.accept(3, now + DAY_MS)
    assert pin.roster().version == 2


def test_a_crash_between_approval_and_cleaning_up_is_harmless(federation) -> None:
    directory = federation.member("a")
    startup = directory / "startup"
    federation.member("b")
    pin = _pin(directory)
    pin.offer(federation.home.signed_roster, federation.now)
    waiting = (startup / PENDING_FILE).read_bytes()
    pin.accept(3, federation.now)
    (startup / PENDING_FILE).write_bytes(waiting)
    assert pin.pending() is None
    federation.member("c")
    assert pin.offer(federation.home.signed_roster, federation.now) is Offer.PENDING


def test_files_exchanged_on_disk_are_not_believed(federation) -> None:
    directory = federation.member("a")
    startup = directory / "startup"
    pin, home = _pin(directory), federation.home
    (startup / PENDING_FILE).write_text(
        sign_roster(_changed(home.roster, version=9), Ed25519PrivateKey.generate()).to_json()
    )
    with pytest.raises(VerificationError, match="not signed by the expected key"):
        pin.accept(9, federation.now)
    (startup / PENDING_FILE).unlink()
    (startup / PINNED_FILE).write_bytes(b"{}")
    with pytest.raises(InputError, match="damaged"):
        pin.roster()


def test_differences_name_every_kind_of_change(federation) -> None:
    a, b = federation.member("a"), federation.member("b")
    old = federation.home.roster
    keys = MemberKeys.generate()
    swapped = old.members[0].model_copy(
        update={
            "sealing": keys.sealing.public(),
            "identity": keys.identity_public,
            "sealing_signature": sign_sealing_key(keys.identity, "a", keys.sealing.public()),
        }
    )
    newcomer = Member.model_validate(
        {
            "name": "z",
            "role": "querier",
            "identity": b"\x07" * 32,
            "sealing": b"x",
            "sealing_signature": b"y",
            "certificate": b"\x08" * 32,
        }
    )
    new = _changed(old, members=(swapped, newcomer), round_key=b"\x09" * 32, version=9)
    changes = difference(old, new)
    anothers = member_fingerprint("silo", "a", keys.identity_public)
    assert changes.lines() == (
        f"added    querier z, fingerprint {member_fingerprint('querier', 'z', newcomer.identity)}",
        "removed  silo b",
        f"changed  silo a: identity key, sealing key, fingerprint {anothers}",
        "changed  coordinator: round key",
    )
    assert not difference(old, _changed(old, version=9)).adds_trust
    assert not difference(old, _changed(old, version=9, members=old.members[:1])).adds_trust
    assert a != b


def test_members_removed_or_with_other_keys_may_not_go_on(federation) -> None:
    directory = federation.member("a")
    federation.member("b")
    remove_members(federation.operator, ["a"], None, federation.now)
    pin = _pin(directory)
    pin.offer(federation.home.signed_roster, federation.now)
    pin.accept(4, federation.now)
    with pytest.raises(NotAuthorisedError, match="lists no silo named a"):
        load_silo_home(directory).check_current(federation.now)
    # An impostor's request under the old name, enrolled by a careless operator and accepted by a careless hospital.
    federation.enroll(federation.request("a", where="impostor"))
    pin.offer(federation.home.signed_roster, federation.now)
    pin.accept(5, federation.now)
    with pytest.raises(VerificationError, match="lists other keys for a than this directory holds"):
        load_silo_home(directory).check_current(federation.now)


def _member(name: str, seed: int) -> dict[str, object]:
    return {
        "name": name,
        "role": "silo",
        "identity": bytes([seed] * 32),
        "sealing": bytes([seed]),
        "sealing_signature": b"",
        "certificate": bytes([seed] * 32),
    }


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([_member("a", 1), _member("a", 2)], "a name appears twice"),
        ([_member("a", 1), _member("b", 2) | {"identity": bytes([1] * 32)}], "a signing key appears twice"),
        ([_member("a", 1), _member("b", 2) | {"sealing": bytes([1])}], "a sealing key appears twice"),
        ([_member("a", 1), _member("b", 2) | {"certificate": bytes([1] * 32)}], "a certificate appears twice"),
        ([_member("a", 8)], "a signing key appears twice"),
        ([_member("a", 9)], "a signing key appears twice"),
        ([_member("operator", 1)], "are taken"),
        ([_member("../a", 1)], "must be 1 to 32 characters"),
        ([_member("a", 1) | {"role": "operator"}], "silo"),
    ],
)
def test_rosters_in_which_one_could_stand_for_another_are_refused(members: list[object], message: str) -> None:
    whole = {
        "federation": "retina",
        "version": 1,
        "issued_ms": 0,
        "expires_ms": 1,
        "operator": bytes([8] * 32),
        "round_key": bytes([9] * 32),
    }
    Roster.model_validate(whole | {"members": [_member("a", 1)]})
    with pytest.raises(ValidationError, match=message):
        Roster.model_validate(whole | {"members": members})


def test_keys_of_small_order_in_a_signed_roster_are_refused(federation) -> None:
    federation.member("a")
    home = federation.home
    weak = (1).to_bytes(32, "little")
    for roster in (
        _changed(home.roster, round_key=weak),
        _changed(home.roster, members=(home.roster.members[0].model_copy(update={"identity": weak}),)),
        _changed(home.roster, members=(home.roster.members[0].model_copy(update={"sealing": bytes(1216)}),)),
    ):
        with pytest.raises(MalformedError):
            verify_roster(sign_roster(roster, home.key), federation="retina", operator=home.anchor.operator)


def test_the_server_takes_only_newer_rosters_of_its_own_operator(found) -> None:
    federation, other = found(), found(where="other")
    old = federation.home.signed_roster
    federation.enroll(federation.request("a"), server=False)
    home, now = federation.home, federation.now
    assert load_server_home(federation.server).roster.version == 1
    assert install_roster(federation.server, home.signed_roster, now).version == 2
    assert install_roster(federation.server, home.signed_roster, now).version == 2
    other_round_key = _changed(
        home.roster, version=3, round_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    )
    for roster in (
        old,
        other.home.signed_roster,
        sign_roster(_changed(home.roster, version=3), Ed25519PrivateKey.generate()),
        sign_roster(other_round_key, home.key),
        sign_roster(_changed(home.roster, version=3, expires_ms=now - 1, issued_ms=now - 2), home.key),
    ):
        with pytest.raises(VerificationError):
            install_roster(federation.server, roster, now)
    assert load_server_home(federation.server).signed_roster == home.signed_roster


def test_renewal_carries_a_federation_over_the_years(federation) -> None:
    federation.member("a")
    later = federation.now + 400 * DAY_MS
    with pytest.raises(VerificationError, match=r"coordinator's certificate expired .* roster renew"):
        load_server_home(federation.server).check_current(later)
    renew(federation.operator, federation.server, later)
    load_server_home(federation.server).check_current(later)
    federation.home.check_current(later)
    assert federation.home.roster.version == 3
