"""A silo's own evidence: what convicts is kept whatever else there is, and a stranger can judge the file."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

from silo_harness import FEDERATION, NAMES, Desk, House

from feddrm.audit.cases import judge_case
from feddrm.cli import invoke
from feddrm.contract.case import Case
from feddrm.contract.kit import FederationRoot
from feddrm.contract.messages import StepFrames
from secagg.bodies import Abort, Shares
from secagg.checks import ciphertext_hash
from secagg.keys import sign
from secagg.wire import Frame, Step
from silo.accusations import KEPT, cases
from silo.cli import app


def relay_keys(desk: Desk) -> None:
    for name, event in desk.request(Step.KEYS).items():
        desk.houses[name].handle(event)


def garbage_for_alpha(desk: Desk) -> Frame:
    """Beta's R2, with garbage for alpha, signed."""
    frame = desk.houses["beta"].frames(Step.SHARES)[-1]
    body, data = Shares.decode(frame.body), bytearray(frame.attachment)
    data[0] ^= 1
    dealt = list(body.dealt)
    dealt[0] = replace(dealt[0], ciphertext=ciphertext_hash(bytes(data[: len(data) // (len(NAMES) - 1)])))
    return sign(
        Step.SHARES, "beta", replace(body, dealt=tuple(dealt)).encode(), desk.trial.keys["beta"].identity, bytes(data)
    )


def accuse_beta(desk: Desk) -> Frame:
    """Alpha complains of beta, in a session that is open; returns the abort."""
    relay_keys(desk)
    bad = garbage_for_alpha(desk)
    for name in NAMES:
        desk.server.receive(bad if name == "beta" else desk.houses[name].frames(Step.SHARES)[-1])
    alpha = desk.houses["alpha"]
    alpha.handle(desk.request(Step.SHARES)["alpha"])
    frame = alpha.frames(Step.ABORT)[-1]
    assert Abort.decode(frame.body).blamed == "beta"
    return frame


def kinds(alpha: House) -> Counter[str]:
    found = Counter[str]()
    for _, _, case in cases(alpha.state):
        assert isinstance(case.evidence, Frame)
        found[Abort.decode(case.evidence.body).blamed] += 1
    return found


def judged(desk: Desk, tmp_path: Path) -> list[str]:
    """Whom an auditor finds guilty by the files, who has the federation's root."""
    roster = desk.trial.roster
    anchor = FederationRoot(federation=FEDERATION, operator=roster.operator, root="")
    guilty = []
    for number, (_, _, case) in enumerate(cases(desk.houses["alpha"].state)):
        path = tmp_path / f"{number}.json"
        path.write_text(case.to_json())
        guilty.append(judge_case(anchor, path, None).verdict.guilty)
    return guilty


def test_a_coordinators_own_cheap_faults_keep_no_proof_out(desk: Desk, tmp_path: Path) -> None:
    alpha = desk.houses["alpha"]
    for attempt in range(1, KEPT + 4):
        desk.open(desk.announcement(attempt=attempt))
        event = desk.request(Step.KEYS)["alpha"]
        forged = replace(event.frames[1], signature=bytes(64))
        alpha.handle(StepFrames(event.session, event.step, (event.frames[0], forged, *event.frames[2:])))
    assert kinds(alpha) == {"": KEPT}
    desk.open(desk.announcement(attempt=KEPT + 4))
    frame = accuse_beta(desk)
    assert cases(alpha.state)[-1][2].evidence == frame
    assert [name for name in judged(desk, tmp_path) if name] == ["beta"]


def test_evidence_is_judged_by_a_stranger_after_the_job_and_a_restart(desk: Desk, tmp_path: Path) -> None:
    desk.open()
    frame = accuse_beta(desk)
    desk.lose()
    alpha = desk.houses["alpha"]
    alpha.restart()
    ((plan, number, case),) = cases(alpha.state)
    assert (plan, number, case.evidence) == (desk.trial.plan_hash, 1, frame)
    assert case.announcement == desk.announce.body
    assert judged(desk, tmp_path) == ["beta"]


def test_the_command_writes_a_file_for_each_piece(desk: Desk, tmp_path: Path) -> None:
    desk.open()
    accuse_beta(desk)
    alpha = desk.houses["alpha"]
    ((_, _, case),) = cases(alpha.state)
    alpha.die()
    home = tmp_path / "home"
    for folder in ("local", "state"):
        (home / folder).mkdir(parents=True)
    shutil.copy(alpha.directory / "agent.db", home / "state" / "agent.db")
    assert invoke(app, ["ledger", "evidence", str(home), "-o", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").iterdir()
    assert Case.from_json(file.read_bytes()) == case


def test_what_is_kept_of_one_accused_is_bounded(desk: Desk) -> None:
    for attempt in range(1, KEPT + 3):
        desk.open(desk.announcement(attempt=attempt))
        accuse_beta(desk)
    assert kinds(desk.houses["alpha"]) == {"beta": KEPT}
