"""The operator's side: what is signed, what is refused, and where keys may lie."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from aggregator.founding import found_federation
from aggregator.homes import load_operator_home, load_server_home, refuse_operator_key
from aggregator.operations import enroll, read_requests, remove_members, renew
from feddrm.contract.authority import DAY_MS, Address, parse_certificate
from feddrm.contract.errors import (
    AlreadyRunningError,
    FeddrmError,
    InputError,
    NotAuthorisedError,
    VerificationError,
)
from feddrm.contract.home import init_member
from feddrm.contract.identity import MemberKeys, Role, sign_sealing_key
from feddrm.contract.locks import exclusive
from feddrm.contract.request import make_request
from feddrm.contract.signed import Signed


def test_the_operators_keys_and_the_servers_are_apart(federation) -> None:
    names = {path.name for path in federation.server.iterdir()}
    assert names == {"tls.key", "tls.pem", "round.key", "federation.root", "server.toml", "roster.signed"}
    for place in (federation.operator, federation.server):
        assert place.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in place.glob("*.key"))
    server = load_server_home(federation.server)
    home = federation.home
    assert server.roster.round_key == server.round_key.public_key().public_bytes_raw() != home.anchor.operator
    assert (str(server.address), str(server.listen)) == ("agg.example.org:8002", "[::]:8002")
    secrets = {path.read_bytes() for path in federation.operator.glob("*.key")}
    assert not secrets & {path.read_bytes() for path in federation.server.iterdir()}
    assert "Ed25519PrivateKey" not in repr(home) + repr(server)


def test_a_trial_on_loopback_listens_on_loopback_only(tmp_path: Path, federation) -> None:
    found_federation(tmp_path / "x", "trial", Address.parse("127.0.0.1:8002"), federation.now)
    assert str(load_server_home(tmp_path / "x" / "server").listen) == "127.0.0.1:8002"


def test_founding_never_overwrites(federation) -> None:
    before = {path: path.read_bytes() for path in federation.operator.iterdir()}
    for lost in ("server", None):
        if lost:
            shutil.move(federation.path / "fed" / lost, federation.path / "elsewhere")
        with pytest.raises(InputError, match="exists already and is not overwritten"):
            found_federation(federation.path / "fed", "retina", Address("a", 1), federation.now)
    assert before == {path: path.read_bytes() for path in federation.operator.iterdir()}


def test_one_command_makes_one_roster_version(federation) -> None:
    kits = federation.enroll(*(federation.request(name) for name in ("c", "a", "b")))
    assert [kit.name for kit in kits] == ["c.kit", "a.kit", "b.kit"]
    roster = federation.home.roster
    assert roster.version == 2
    assert [member.name for member in roster.members] == ["c", "a", "b"]
    assert load_server_home(federation.server).roster == roster


def test_names_from_requests_never_become_paths(federation, tmp_path: Path) -> None:
    keys = MemberKeys.generate()
    for name in ("../escape", "/etc/x", "a/b", "..", "A", "a b", "a\n"):
        path = tmp_path / "x.request"
        with pytest.raises(ValueError, match="must be 1 to 32 characters"):
            make_request(name, Role.SILO, keys)
        raw = make_request("zz", Role.SILO, keys)
        body = raw.body.replace(b'"zz"', ('"' + name.replace("\n", "\\n") + '"').encode())
        from feddrm.contract import labels
        from feddrm.contract.signed import sign

        path.write_text(sign(keys.identity, labels.REQUEST, body).to_json())
        with pytest.raises(InputError, match="must be 1 to 32 characters"):
            read_requests(federation.home, [path])
    assert not (tmp_path / "escape.kit").exists()


def test_broken_requests_blame_their_file(federation, tmp_path: Path) -> None:
    request = federation.request("a")
    whole = request.read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"{}", b"\xff\xfe", b"[" * 10_000):
        request.write_bytes(data)
        with pytest.raises(InputError, match=f"{request} is not a request"):
            read_requests(federation.home, [request])
    signed = Signed.from_json(whole)
    request.write_text(Signed(signed.body.replace(b'"silo"', b'"querier"'), signed.signatures).to_json())
    with pytest.raises(VerificationError, match=r"a\.request: .* changed or damaged\. Ask the member for a new"):
        read_requests(federation.home, [request])
    with pytest.raises(InputError, match="does not exist"):
        read_requests(federation.home, [tmp_path / "absent"])


def test_collisions_are_refused_by_name(federation, tmp_path: Path) -> None:
    request = federation.request("a")
    with pytest.raises(InputError, match="a request of a was given twice"):
        read_requests(federation.home, [request, request])
    federation.enroll(request)
    with pytest.raises(InputError, match="the name a belongs to a silo already"):
        read_requests(federation.home, [federation.request("a", Role.QUERIER, where="second")])
    # One set of keys under two names, in one command and across two.
    keys = MemberKeys.generate()
    twins = [tmp_path / "t1.request", tmp_path / "t2.request"]
    for path in twins:
        path.write_text(make_request(path.stem, Role.SILO, keys).to_json())
    with pytest.raises(InputError, match="t2 and t1 have a key in common"):
        read_requests(federation.home, twins)
    federation.enroll(twins[0])
    with pytest.raises(InputError, match="t2 and t1 have a key in common"):
        read_requests(federation.home, twins[1:])


def test_a_copied_sealing_key_is_refused(federation, tmp_path: Path) -> None:
    """Mallory lists the victim's sealing key as his own: he could not read with it, but the two must stay apart."""
    victim, mallory = MemberKeys.generate(), MemberKeys.generate()
    for name, keys in (("victim", victim), ("mallory", MemberKeys(mallory.tls, mallory.identity, victim.sealing))):
        (tmp_path / name).write_text(make_request(name, Role.SILO, keys).to_json())
    assert sign_sealing_key(mallory.identity, "mallory", victim.sealing.public())
    federation.enroll(tmp_path / "victim")
    with pytest.raises(InputError, match="mallory and victim have a key in common"):
        read_requests(federation.home, [tmp_path / "mallory"])


def test_changed_keys_under_an_old_name_are_shown_as_such(federation) -> None:
    request = federation.request("a")
    assert read_requests(federation.home, [request])[0].change == "new"
    federation.enroll(request)
    (renewed,) = read_requests(federation.home, [request])
    assert renewed.change == "renewed"
    impostor = federation.request("a", where="impostor")
    (changed,) = read_requests(federation.home, [impostor])
    assert changed.change == "changed keys"
    assert changed.fingerprint != renewed.fingerprint


def test_a_request_exchanged_after_it_was_shown_is_not_signed(federation) -> None:
    request = federation.request("a")
    candidates = read_requests(federation.home, [request])
    shutil.copy(federation.request("a", where="impostor"), request)
    enroll(federation.operator, candidates, None, federation.now)
    assert federation.home.roster.members[0].identity == candidates[0].request.identity


def test_two_enrolments_at_once_never_make_two_rosters_of_one_version(federation) -> None:
    request = federation.request("a")
    with exclusive(federation.operator / "roster.lock", what="X"), pytest.raises(AlreadyRunningError):
        federation.enroll(request)
    assert federation.home.roster.version == 1
    versions: list[int] = []
    requests = [federation.request(name) for name in "bcdef"]

    def work(path: Path) -> None:
        while True:
            try:
                candidates = read_requests(federation.home, [path])
                versions.append(enroll(federation.operator, candidates, None, federation.now).version)
                return
            except AlreadyRunningError:
                continue

    threads = [threading.Thread(target=work, args=(path,)) for path in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == [2, 3, 4, 5, 6]
    assert {member.name for member in federation.home.roster.members} == set("bcdef")


def test_a_foreign_server_directory_is_refused_before_anything_is_signed(found) -> None:
    federation, other = found(), found(where="other")
    request = federation.request("a")
    candidates = read_requests(federation.home, [request])
    for action in (
        lambda: enroll(federation.operator, candidates, other.server, federation.now),
        lambda: renew(federation.operator, other.server, federation.now),
    ):
        with pytest.raises(InputError, match="belongs to another federation"):
            action()
    assert federation.home.roster.version == 1
    assert not request.with_name("a.kit").exists()


def test_a_kit_that_is_taken_for_a_request_is_told_apart(federation) -> None:
    (kit,) = federation.enroll(federation.request("a"))
    with pytest.raises(InputError, match=r"a\.kit is a kit.* takes the \.request file"):
        read_requests(federation.home, [kit])


def test_an_expired_root_signs_nothing(federation) -> None:
    candidates = read_requests(federation.home, [federation.request("a")])
    with pytest.raises(VerificationError, match=r"root certificate expired .* Found a new federation"):
        enroll(federation.operator, candidates, None, federation.now + 3651 * DAY_MS)
    renew(federation.operator, None, federation.now + 10 * DAY_MS)
    with pytest.raises(InputError, match="clock is before the issue of roster version 2"):
        enroll(federation.operator, candidates, None, federation.now + 5 * DAY_MS)


def test_removal(federation) -> None:
    federation.enroll(federation.request("a"), federation.request("b"))
    with pytest.raises(InputError, match="lists no member named z"):
        remove_members(federation.operator, ["a", "z"], federation.server, federation.now)
    remove_members(federation.operator, ["a"], federation.server, federation.now)
    assert [member.name for member in load_server_home(federation.server).roster.members] == ["b"]


def test_a_server_beside_the_operators_keys_does_not_start(federation, tmp_path: Path) -> None:
    with pytest.raises(NotAuthorisedError, match=r"operator's private key.* Move .*operator to the operator's own"):
        refuse_operator_key(federation.server)
    away = tmp_path / "offline"
    shutil.move(federation.operator, away)
    refuse_operator_key(federation.server)
    # Wherever a copy lies within the server's reach, and under whatever name.
    for source in ("operator.key", "ca.key"):
        for place in (federation.server, federation.server / "operator", federation.server.parent / "operator"):
            place.mkdir(exist_ok=True)
            copy = place / "backup.txt"
            shutil.copy(away / source, copy)
            with pytest.raises(NotAuthorisedError, match=str(copy)):
                refuse_operator_key(federation.server)
            copy.unlink()
    # The operator's TLS key alone opens the operator's calls, but plans need the other: the server's own keys stay.
    refuse_operator_key(federation.server)
    link = federation.server / "link"
    link.symlink_to(away / "operator.key")
    with pytest.raises(NotAuthorisedError):
        refuse_operator_key(federation.server)


def test_directories_whose_files_do_not_belong_together_are_refused(found) -> None:
    federation, other = found(), found(where="other")
    for place, load in ((federation.operator, load_operator_home), (federation.server, load_server_home)):
        foreign = {path.name: path.read_bytes() for path in (other.path / "fed" / place.name).iterdir()}
        for path in sorted(place.iterdir()):
            if path.name in ("federation.toml", "server.toml", "ca.pem"):
                continue  # The same text in both, or a copy for people that nothing reads.
            whole = path.read_bytes()
            for data in (foreign[path.name], b"", whole[: len(whole) // 2]):
                path.write_bytes(data)
                with pytest.raises(FeddrmError) as caught:
                    load(place)
                assert caught.value.exit_code.name in ("INPUT", "VERIFICATION"), path
            path.write_bytes(whole)
        load(place)
        (place / "tls.key").chmod(0o644)
        with pytest.raises(NotAuthorisedError, match="chmod 600"):
            load(place)
        (place / "tls.key").chmod(0o600)
    with pytest.raises(InputError, match="is not a server's directory"):
        load_server_home(federation.path)
    with pytest.raises(InputError, match="is not an operator's directory"):
        load_operator_home(federation.path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('listen = "[::]', 'listen = "-x', "listen: .* valid host name"),
        ("8002", "80020", "not of the form HOST:PORT"),
        ('federation = "retina"', 'federation = "other"', "federation must be retina"),
        ("listen", "lisen", r"unknown key lisen .*Did you mean listen"),
    ],
)
def test_server_toml_is_checked(federation, old: str, new: str, message: str) -> None:
    path = federation.server / "server.toml"
    text = path.read_text()
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        load_server_home(federation.server)
    assert str(path) in str(caught.value)


def test_certificates_in_kits_are_single_and_new_each_time(federation) -> None:
    request = federation.request("a")
    federation.enroll(request)
    first = federation.home.roster.members[0].certificate
    federation.enroll(request)
    assert federation.home.roster.members[0].certificate != first
    parse_certificate((federation.operator / "ca.pem").read_bytes(), what="It")


def test_a_half_finished_init_can_be_run_again(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    (directory / ".keys.new").mkdir(parents=True)
    (directory / ".keys.new" / "tls.key").write_text("half")
    init_member(directory, "a", Role.SILO)
    assert MemberKeys.load(directory / "keys")
    assert not (directory / ".keys.new").exists()
