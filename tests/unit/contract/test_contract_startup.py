"""What a member's directory takes up after it joined: renewed, expired, old and damaged files."""

from __future__ import annotations

import pytest
from kit_joining import join_with, nothing_joined

from feddrm.contract.authority import DAY_MS
from feddrm.contract.errors import FeddrmError, InputError, VerificationError
from feddrm.contract.home import join_member, load_silo_home
from feddrm.contract.identity import Role


def test_expired_kits_are_refused_and_say_what_to_do(federation) -> None:
    (kit,) = federation.enroll(federation.request("a"))
    with pytest.raises(VerificationError, match=r"certificate of a expired on .* Ask the operator for a new kit"):
        join_with(federation, kit, now=federation.now + 366 * DAY_MS)
    with pytest.raises(VerificationError, match="Check this machine's clock"):
        join_with(federation, kit, now=federation.now - DAY_MS)
    assert nothing_joined(federation)


def test_an_expired_member_still_loads_but_does_not_pass_the_check(federation) -> None:
    home = load_silo_home(federation.member("a"))
    with pytest.raises(VerificationError, match="The certificate of a expired"):
        home.check_current(federation.now + 366 * DAY_MS)


def test_a_renewed_kit_replaces_the_certificate_and_leaves_the_roster_pending(federation) -> None:
    directory = federation.member("a")
    federation.member("b")
    later = federation.now + 300 * DAY_MS
    (kit,) = federation.enroll(directory / "a.request", now=later)
    joined = join_member(directory, kit, federation.anchor.fingerprint, Role.SILO, later)
    assert joined.pending
    home = load_silo_home(directory)
    assert home.roster.version == 2
    home.pin.accept(4, later)
    load_silo_home(directory).check_current(later + 300 * DAY_MS)


def test_an_old_kit_does_not_roll_the_roster_back(federation) -> None:
    request = federation.request("a")
    (kit,) = federation.enroll(request)
    old = kit.read_bytes()
    federation.enroll(federation.request("b"))
    (kit,) = federation.enroll(request)
    join_with(federation, kit)
    current = (federation.path / "a" / "startup" / "federation.kit").read_bytes()
    kit.write_bytes(old)
    with pytest.raises(VerificationError, match="rosters do not go back"):
        join_with(federation, kit)
    assert (federation.path / "a" / "startup" / "federation.kit").read_bytes() == current


def test_a_directory_belongs_to_one_federation(found) -> None:
    federation, other = found(), found(where="other")
    request = federation.request("a")
    (kit,) = federation.enroll(request)
    join_with(federation, kit)
    (kit,) = other.enroll(request)
    with pytest.raises(InputError, match="has joined federation retina under another operator key"):
        join_member(federation.path / "a", kit, other.anchor.fingerprint, Role.SILO, federation.now)


def test_startup_files_are_verified_again_at_every_start(found) -> None:
    federation, other = found(), found(where="other")
    directory = federation.member("a")
    startup = directory / "startup"
    whole = {path.name: path.read_bytes() for path in startup.iterdir() if path.suffix != ".lock"}
    load_silo_home(directory)

    def refuses(name: str, data: bytes) -> None:
        (startup / name).write_bytes(data)
        with pytest.raises(FeddrmError) as caught:
            load_silo_home(directory)
        assert caught.value.exit_code.name in ("INPUT", "VERIFICATION")
        (startup / name).write_bytes(whole[name])

    for name, data in whole.items():
        refuses(name, b"")
        refuses(name, data[: len(data) // 2])
    refuses("federation.root", other.anchor.to_text())
    refuses("roster.signed", other.home.signed_roster.to_json().encode())
    refuses("federation.root", whole["federation.root"].replace(b'"retina"', b'"retinb"'))
    (kit,) = federation.enroll(federation.request("b"))
    refuses("federation.kit", kit.read_bytes())
    load_silo_home(directory)


def test_unfinished_directories_say_what_to_do_next(federation) -> None:
    with pytest.raises(InputError, match=r"holds no keys\. Make them: feddrm-silo init"):
        load_silo_home(federation.path / "nowhere")
    federation.request("a")
    with pytest.raises(InputError, match=r"has not joined a federation yet\. Run: feddrm-silo join"):
        load_silo_home(federation.path / "a")
    with pytest.raises(InputError, match="does not exist"):
        join_with(federation, federation.path / "absent.kit")
