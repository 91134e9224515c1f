"""Evidence from secure aggregation, judged by an auditor who has a file and the federation's root."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from audit_tools import SILOS, Run, make_roster
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feddrm.contract.case import Case
from feddrm.contract.errors import ExitCode
from feddrm.contract.roster import roster_hash
from secagg.aborts import abort_frame
from secagg.client import AwaitingKeys, join
from secagg.evidence import find_conflict
from secagg.exhibits import Conflict, encode_exhibit
from secagg.server import open_session
from secagg.session import Announcement
from secagg.wire import Frame


class Scene:
    """One announcement under the paper federation's roster, and silos that join it."""

    def __init__(self, paper: Any) -> None:
        self.paper = paper
        self.keys = {name: paper.keys[name].identity_public for name in SILOS}
        round_key = Ed25519PrivateKey.generate()
        announcement = Announcement(
            federation="retina",
            plan=paper.plan.hash,
            stage=1,
            round=2,
            attempt=1,
            cohort=SILOS,
            roster=roster_hash(paper.roster.body),
            model=bytes(32),
            layout=bytes(32),
            words32=4,
            words64=0,
            value_bound=100,
            threshold=3,
            minimum_cohort=3,
            colluders=1,
            parameters=bytes(32),
            deadline_ms=1,
            previous=bytes(32),
            nonce=b"n" * 32,
        )
        _, self.announce = open_session(announcement, round_key, self.keys)
        self.round_key = round_key.public_key().public_bytes_raw()

    def joined(self, name: str, byte: bytes) -> tuple[AwaitingKeys, Frame]:
        drawn = iter(range(1 << 20))
        return join(
            self.announce,
            server_key=self.round_key,
            members=self.keys,
            me=name,
            signer=self.paper.keys[name].identity,
            entropy=lambda size: (byte + next(drawn).to_bytes(4)).ljust(size, byte)[:size],
            ledger_proof=b"",
        )

    def conflict(self, name: str) -> bytes:
        """A silo signs two R1 of one announcement."""
        first, second = self.joined(name, b"1")[1], self.joined(name, b"2")[1]
        found = find_conflict([first], [second], roll=(), announce_body=self.announce.body, members=self.keys)
        assert found is not None
        return found[1]

    def write(self, evidence: bytes | Frame, *, roster: bool = True) -> Path:
        file: Path = self.paper.path / "evidence.json"
        text = self.paper.roster.to_json() if roster else ""
        file.write_text(Case(self.announce.body, evidence, text).to_json(), encoding="utf-8")
        return file


def test_who_signed_two_contrary_messages_is_guilty(paper: Any, run: Run) -> None:
    scene = Scene(paper)
    file = scene.write(scene.conflict("b"))
    code, out, _ = run("evidence", file, "--root", paper.root)
    assert code == ExitCode.VERIFICATION
    assert "GUILTY: b signed contradictory KEYS" in out
    assert "round 2 of stage 1, attempt 1" in out
    _, out, _ = run("evidence", file, "--root", paper.root, "--format", "json")
    (case,) = json.loads(out)["cases"]
    assert (case["guilty"], case["accuser"], case["cohort"]) == ("b", None, list(SILOS))


def test_an_abort_with_good_evidence_convicts_the_accused_and_with_made_up_evidence_its_author(
    paper: Any, run: Run
) -> None:
    scene = Scene(paper)
    state, _ = scene.joined("a", b"1")
    file = scene.write(state.abort("two keys", "b", scene.conflict("b")))
    code, out, _ = run("evidence", file, "--root", paper.root)
    assert (code, "GUILTY: b" in out, "brought by a" in out) == (ExitCode.VERIFICATION, True, True)
    # An honest silo's software never signs this, so its author had to write it.
    harmless, announced = scene.joined("c", b"1")[1], hashlib.sha256(scene.announce.body).digest()
    lie = abort_frame(
        announcement=announced,
        session=announced,
        me="a",
        signer=paper.keys["a"].identity,
        released=False,
        reason="two keys",
        blamed="c",
        evidence=encode_exhibit(Conflict(harmless, harmless, ())),
    )
    file = scene.write(lie)
    code, out, _ = run("evidence", file, "--root", paper.root)
    assert (code, "GUILTY: a signed a false accusation of c" in out) == (ExitCode.VERIFICATION, True)
    state, _ = scene.joined("a", b"3")
    file = scene.write(state.abort("two keys", "c", scene.conflict("b")[:-1]))
    code, out, _ = run("evidence", file, "--root", paper.root)
    assert code == 0
    assert "Nothing is proven against anybody" in out


def test_a_roster_may_come_from_elsewhere_but_must_be_the_announcement_s(paper: Any, run: Run) -> None:
    scene = Scene(paper)
    file = scene.write(scene.conflict("b"), roster=False)
    code, _, err = run("evidence", file, "--root", paper.root)
    assert (code, "--roster" in err) == (ExitCode.INPUT, True)
    roster = paper.path / "roster.signed"
    roster.write_text(paper.roster.to_json())
    assert run("evidence", file, "--root", paper.root, "--roster", roster)[0] == ExitCode.VERIFICATION
    roster.write_text(make_roster(paper.keys, paper.operator, 3).to_json())
    code, out, err = run("evidence", file, "--root", paper.root, "--roster", roster)
    assert (code, out) == (ExitCode.VERIFICATION, "")
    assert "another roster" in err


def test_a_roster_that_the_operator_did_not_sign_gives_no_keys(paper: Any, run: Run) -> None:
    """Else whoever writes the file could name the keys with which it was signed."""
    scene = Scene(paper)
    roster = make_roster(paper.keys, Ed25519PrivateKey.generate(), 2)
    file = paper.path / "evidence.json"
    file.write_text(Case(scene.announce.body, scene.conflict("b"), roster.to_json()).to_json())
    code, out, err = run("evidence", file, "--root", paper.root)
    assert (code, out) == (ExitCode.VERIFICATION, "")
    assert "not signed" in err


def test_evidence_about_another_announcement_proves_nothing(paper: Any, run: Run) -> None:
    first, second = Scene(paper), Scene(paper)
    body = bytearray(second.announce.body)
    body[-1] ^= 1
    file = paper.path / "evidence.json"
    file.write_text(Case(bytes(body), first.conflict("b"), paper.roster.to_json()).to_json())
    code, out, _ = run("evidence", file, "--root", paper.root)
    assert code == 0
    assert "Nothing is proven" in out


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\xff", b"[" * 9999, b'{"format":"feddrm evidence 1"}']
    + [
        json.dumps({"format": "feddrm evidence 1", "roster": "", "announcement": a, "exhibit": e, **more}).encode()
        for a, e, more in (("!", "", {}), ("", "", {}), ("AAAA", "AAAA", {"silo": "A", "abort": "", "signature": ""}))
    ],
)
def test_files_that_are_no_evidence_are_named(paper: Any, run: Run, content: bytes) -> None:
    file = paper.path / "bad"
    file.write_bytes(content)
    code, out, err = run("evidence", file, "--root", paper.root)
    assert (code, out) == (ExitCode.INPUT, "")
    assert str(file) in err


def test_a_case_survives_its_file(paper: Any) -> None:
    scene = Scene(paper)
    state, _ = scene.joined("a", b"1")
    for evidence in (b"exhibit", state.abort("why", "b", b"exhibit")):
        case = Case(scene.announce.body, evidence, "roster é")
        assert Case.from_json(case.to_json().encode()) == case
