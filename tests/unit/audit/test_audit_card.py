"""feddrm-audit card: OK for what the coordinator wrote, and what is wrong with everything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_tools import SILOS, Run, make_roster
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator.card import make_card, read_card, write_card
from aggregator.release import Candidate
from feddrm.contract.card import CardStatement, Noise, card_hash, sign_card
from feddrm.contract.documents import parse_body
from feddrm.contract.operator_messages import NoiseFound
from feddrm.contract.release import Release, make_statement, sign_statement
from feddrm.contract.roster import Roster, sign_roster
from feddrm.contract.signed import Signed
from feddrm.method.card import render_card

ROUND_KEY = Ed25519PrivateKey.from_private_bytes(b"r" * 32)
FOUND = NoiseFound(5120, 0.9985, 0.9, 3200, False)


def roster_of(paper: Any, key: Ed25519PrivateKey = ROUND_KEY, operator: Any = None) -> Signed:
    roster = parse_body(make_roster(paper.keys, paper.operator, 2).body, Roster, what="roster")
    named = roster.model_copy(update={"round_key": key.public_key().public_bytes_raw()})
    return sign_roster(named, operator or paper.operator)


def candidate_of(paper: Any, silos: tuple[str, ...] = SILOS, rounds: int = 3) -> Candidate:
    statement = make_statement(paper.plan, trunk=bytes(32), head=bytes(32), layout=bytes(32), rounds=rounds).body()
    signatures = [sign_statement(statement, paper.keys[name].identity).signatures[0] for name in silos]
    return Candidate(paper.plan, statement, tuple(signatures), bytes(32))


@pytest.fixture
def folder(paper: Any) -> Path:
    """A release's directory as the coordinator writes it, without the models."""
    candidate = candidate_of(paper)
    folder: Path = paper.path / "release"
    folder.mkdir()
    (folder / "plan.signed").write_text(paper.plan.signed.to_json())
    (folder / "statement.signed").write_text(candidate.signed.to_json())
    write_card(folder, make_card(candidate, FOUND, roster_of(paper), ROUND_KEY))
    return folder


def verdict(run: Run, paper: Any, folder: Path, *more: object) -> tuple[int, dict[str, tuple[bool, str]]]:
    code, out, _ = run("card", folder, "--root", paper.root, "--format", "json", *more)
    (card,) = json.loads(out)["cards"]
    assert card["verified"] is (code == 0)
    return code, {check["name"]: (check["passed"], check["message"]) for check in card["checks"]}


def test_a_card_as_it_was_written_is_ok(run: Run, paper: Any, folder: Path) -> None:
    code, checks = verdict(run, paper, folder)
    assert (code, list(checks)) == (0, ["roster", "release", "card", "text"])
    code, out, _ = run("card", folder, "--root", paper.root)
    assert "OK: this is the card of that release" in out
    text = (folder / "card.md").read_text()
    assert "99.9 % of the planned variance in 5,120 places" in text
    assert "as the coordinator measured it" in text


def test_a_card_of_sums_that_nobody_could_measure_says_so(run: Run, paper: Any, folder: Path) -> None:
    write_card(folder, make_card(candidate_of(paper), None, roster_of(paper), ROUND_KEY))
    assert "was not measured" in (folder / "card.md").read_text()
    assert verdict(run, paper, folder)[0] == 0


def change(name: str, old: str, new: str) -> Callable[[Path, Any], None]:
    def apply(folder: Path, paper: Any) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return apply


def other_release(folder: Path, paper: Any) -> None:
    other = candidate_of(paper, rounds=2)
    (folder / "statement.signed").write_text(other.signed.to_json())


def few_signatures(folder: Path, paper: Any) -> None:
    candidate = candidate_of(paper, SILOS[:2])
    (folder / "statement.signed").write_text(candidate.signed.to_json())


def somebody_s_key(folder: Path, paper: Any) -> None:
    write_card(folder, make_card(candidate_of(paper), FOUND, roster_of(paper), Ed25519PrivateKey.generate()))


def somebody_s_roster(folder: Path, paper: Any) -> None:
    key = Ed25519PrivateKey.generate()
    write_card(folder, make_card(candidate_of(paper), FOUND, roster_of(paper, key, Ed25519PrivateKey.generate()), key))


def invented(folder: Path, paper: Any) -> None:
    """The coordinator itself signs a text that plan and statement do not say."""
    candidate = candidate_of(paper)
    release = Release(candidate.plan, candidate.document, candidate.signed, len(SILOS))
    text = render_card(release, None).replace("epsilon", "EPSILON").encode()
    from feddrm.contract.card import software

    statement = CardStatement(
        federation="retina", release=release.hash, card=card_hash(text), software=software(), noise=None
    )
    (folder / "card.md").write_bytes(text)
    (folder / "card.signed").write_text(sign_card(statement, ROUND_KEY).to_json())


@pytest.mark.parametrize(
    ("tamper", "failing", "message"),
    [
        (change("card.md", "Not a medical device", "A medical device"), "card", "was changed"),
        (change("card.md", "99.9 %", "98.9 %"), "card", "was changed"),
        (other_release, "card", "another release's"),
        (few_signatures, "release", "signed by 2 silos"),
        (somebody_s_key, "card", "not signed by the coordinator"),
        (somebody_s_roster, "roster", ""),
        (invented, "text", "does not follow"),
    ],
)
def test_what_is_done_to_a_card_is_found(
    run: Run, paper: Any, folder: Path, tamper: Callable[[Path, Any], None], failing: str, message: str
) -> None:
    tamper(folder, paper)
    code, checks = verdict(run, paper, folder)
    assert code == 6
    assert [name for name, (passed, _) in checks.items() if not passed] == [failing]
    assert message in checks[failing][1]
    code, out, _ = run("card", folder, "--root", paper.root)
    assert "NOT OK" in out


def in_other_words(folder: Path, paper: Any, noise: Noise | None) -> str:
    """The coordinator signs a text of its own as another version's; returns the one that this version writes."""
    candidate = candidate_of(paper)
    release = Release(candidate.plan, candidate.document, candidate.signed, len(SILOS))
    text = b"# A card in other words: epsilon 0.1\n"
    statement = CardStatement(
        federation="retina", release=release.hash, card=card_hash(text), software="99.0", noise=noise
    )
    (folder / "card.md").write_bytes(text)
    (folder / "card.signed").write_text(sign_card(statement, ROUND_KEY).to_json())
    return render_card(release, noise.found() if noise else None)


def test_a_text_that_cannot_be_written_again_is_not_ok_whatever_version_is_said_to_have_written_it(
    run: Run, paper: Any, folder: Path
) -> None:
    """The version is the coordinator's own word: it must not buy a text of its own choice an OK."""
    in_other_words(folder, paper, None)
    code, checks = verdict(run, paper, folder)
    assert code == 6
    assert [name for name, (passed, _) in checks.items() if not passed] == ["text"]
    assert "99.0" in checks["text"][1]
    _, out, _ = run("card", folder, "--root", paper.root)
    assert "UNCHECKED  text: " in out
    assert "NOT OK: not one line of this card's text is checked" in out
    assert "--write" in out
    assert "  OK" not in out
    _, out, _ = run("card", folder, "--root", paper.root, "--format", "json")
    assert json.loads(out)["cards"][0]["unchecked"] is True


@pytest.mark.parametrize("noise", [None, Noise.of(FOUND)], ids=["unmeasured", "measured"])
def test_the_card_that_follows_from_plan_and_statement_can_be_had(
    run: Run, paper: Any, folder: Path, noise: Noise | None
) -> None:
    expected, out = in_other_words(folder, paper, noise), paper.path / "own.md"
    code, said, _ = run("card", folder, "--root", paper.root, "--write", out)
    assert (code, out.read_text()) == (6, expected)
    assert str(out) in said


def test_no_card_is_written_where_the_signatures_do_not_hold(run: Run, paper: Any, folder: Path) -> None:
    few_signatures(folder, paper)
    out = paper.path / "own.md"
    code, said, _ = run("card", folder, "--root", paper.root, "--write", out)
    assert (code, out.exists()) == (6, False)
    assert "UNCHECKED" not in said
    assert "is not written" in said
    code, _, err = run("card", folder, folder, "--root", paper.root, "--write", out)
    assert code == 2
    assert "the card of one" in err


def test_an_auditor_s_own_roster_stands_in(run: Run, paper: Any, folder: Path) -> None:
    own = paper.path / "roster.signed"
    own.write_text(roster_of(paper, Ed25519PrivateKey.generate()).to_json())
    code, checks = verdict(run, paper, folder, "--roster", own)
    assert (code, checks["card"][0]) == (6, False)


@pytest.mark.parametrize("name", ["card.md", "card.signed", "roster.signed", "plan.signed", "statement.signed"])
def test_a_missing_file_is_named(run: Run, paper: Any, folder: Path, name: str) -> None:
    (folder / name).unlink()
    code, _, err = run("card", folder, "--root", paper.root)
    assert code == 3
    assert name in err


def test_a_card_is_kept_when_a_release_is_written_again(paper: Any, folder: Path) -> None:
    files = read_card(folder)
    assert files is not None
    assert files.card == (folder / "card.md").read_bytes()
    (folder / "roster.signed").unlink()
    assert read_card(folder) is None
