"""Every part of an export, altered, doubled and taken out in turn: refused, failed, or said by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from audit_tools import SILOS, Run, as_exported, failures, judged, make_roster, rewrite
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.canonical import canonical_json
from privacy.note import sign_head

PARTS = ("format", "origin", "head", "leaves", "witnessed", "sightings", "roster", "rosters", "plans")
PEER = "feddrm/retina/b"
Change = Callable[[dict[str, Any]], None]

TOLERATED = {
    "removed rosters 0": "only a reader of heads under earlier keys needs it, and would fail without it; it is counted",
}


def _strings(fields: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Part, the container of each text, and its key there."""
    for part in PARTS:
        value = fields[part]
        if isinstance(value, str):
            yield part, fields, part
        else:
            yield from ((part, value, key) for key in (value if isinstance(value, dict) else range(len(value))))


@pytest.fixture
def world(paper: Any) -> Any:
    """An export with something in every part."""
    earlier = make_roster(paper.keys, paper.operator, 1)
    files = [paper.export(name) for name in SILOS]
    rewrite(files[0], lambda f: f.update(rosters=[earlier.to_json()]))
    return files


def said(run: Run, paper: Any, files: list[Any]) -> tuple[int, str]:
    code, out, err = run("verify", *files, "--root", paper.root)
    assert "Traceback" not in err
    return code, out + err


def test_an_untouched_export_holds_something_in_every_part(paper: Any, run: Run, world: Any) -> None:
    fields = json.loads(world[0].read_text())
    assert set(fields) == set(PARTS)
    assert all(fields.values())
    assert said(run, paper, world)[0] == 0


@pytest.mark.parametrize("part", PARTS)
def test_whatever_is_altered_is_refused_or_fails(paper: Any, run: Run, world: Any, part: str) -> None:
    """Each text of the part, in turn, at its start, in its middle and at its end; blanks added at both ends."""
    good = world[0].read_text()
    for number, (name, _, key) in enumerate(_strings(json.loads(good))):
        for how in ("start", "middle", "end", "blank before", "blank after", "line after") if name == part else ():
            fields = json.loads(good)
            _, container, _ = list(_strings(fields))[number]
            text = container[key]
            where = {"start": 0, "middle": len(text) // 2, "end": len(text) - 1}.get(how)
            if where is not None:
                other = "x" if text[where] != "x" else "y"
                container[key] = text[:where] + other + text[where + 1 :]
            else:
                container[key] = {"blank before": " " + text, "blank after": text + " ", "line after": text + "\n"}[how]
            world[0].write_text(as_exported(fields))
            code, out = said(run, paper, world)
            assert code in (3, 6), (part, key, how)
            assert "a.ledger" in out


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_missing_or_of_another_kind_is_refused(paper: Any, run: Run, world: Any, part: str) -> None:
    good = json.loads(world[0].read_text())
    for fields in ({k: v for k, v in good.items() if k != part}, good | {part: 7}):
        world[0].write_text(json.dumps(fields, indent=1, ensure_ascii=False))
        code, out = said(run, paper, world)
        assert (code, "a.ledger" in out) == (3, True)


@pytest.mark.parametrize("part", ["leaves", "sightings", "rosters", "plans"])
@pytest.mark.parametrize("done", ["doubled", "removed", "garbage", "swapped"])
def test_entries_of_lists(paper: Any, run: Run, world: Any, part: str, done: str) -> None:
    good = world[0].read_text()
    before = said(run, paper, world)[1]
    for number in range(len(json.loads(good)[part])):
        fields = json.loads(good)
        entries = fields[part]
        if done == "swapped" and number == 0:
            continue
        if done == "doubled":
            entries.insert(number, entries[number])
        elif done == "removed":
            del entries[number]
        elif done == "garbage":
            entries.insert(number, "garbage")
        else:
            entries[number - 1], entries[number] = entries[number], entries[number - 1]
        world[0].write_text(as_exported(fields))
        code, out = said(run, paper, world)
        if f"{done} {part} {number}" in TOLERATED:
            assert (code, out != before) == (0, True)
        elif (done, part) == ("removed", "sightings"):
            # Nobody can be made to keep it: named, with its peer.
            assert code == 0
            assert f"a head, but no proof of a charged job, of feddrm/retina/{SILOS[number + 1]}" in out
        else:
            assert code == 6, (part, done, number)
            assert "NOT VERIFIED: a" in out


@pytest.mark.parametrize("peer", [f"feddrm/retina/{name}" for name in SILOS[1:]])
def test_a_head_of_a_peer_that_was_taken_out_is_named(paper: Any, run: Run, world: Any, peer: str) -> None:
    rewrite(world[0], lambda f: f["witnessed"].pop(peer))
    code, out = said(run, paper, world)
    assert code == 0
    assert f"holds no head of {peer}" in out
    assert f"holds a proof, but no head, of {peer}" in out


def test_a_second_signature_line_fails_wherever_it_stands(paper: Any, run: Run, world: Any) -> None:
    def add(note: str) -> str:
        origin, size, *_ = note.split("\n")
        other = sign_head(origin, int(size), bytes(32), Ed25519PrivateKey.generate()).decode()
        return note + other.split("\n\n")[1]

    def sighting(fields: dict[str, Any]) -> None:
        parts = json.loads(fields["sightings"][0])
        fields["sightings"][0] = canonical_json(parts | {"head": add(parts["head"])}).decode()

    changes: dict[str, Change] = {
        "head": lambda f: f.update(head=add(f["head"])),
        "peers": lambda f: f["witnessed"].update({PEER: add(f["witnessed"][PEER])}),
        "sightings": sighting,
    }
    good = world[0].read_text()
    for name, change in changes.items():
        world[0].write_text(good)
        rewrite(world[0], change)
        code, report = judged(run, *world, "--root", paper.root)
        assert (code, failures(report)) == (6, {("a", name)})


def test_leaves_of_a_proof_altered_doubled_and_taken_out(paper: Any, run: Run, world: Any) -> None:
    good = world[0].read_text()
    for change in (
        lambda leaves: leaves.append(leaves[-1]),
        lambda leaves: leaves.pop(),
        lambda leaves: leaves.pop(0),
        lambda leaves: leaves.reverse(),
        lambda leaves: leaves[0].update(number=leaves[0]["number"] + 1),
        lambda leaves: leaves[0]["path"].pop(),
    ):
        fields = json.loads(good)
        parts = json.loads(fields["sightings"][0])
        change(parts["leaves"])
        fields["sightings"][0] = canonical_json(parts).decode()
        world[0].write_text(as_exported(fields))
        code, out = said(run, paper, world)
        assert (code, f"entry 1 of sightings, about {PEER}, proves nothing" in out) == (6, True)


def test_the_same_content_in_other_words_is_refused(paper: Any, run: Run, world: Any) -> None:
    good = world[0].read_text()
    fields = json.loads(good)
    for text, part in (
        (json.dumps(fields), ""),
        (good + "\n", "plans"),
        (good.replace("\n", "\r\n"), ""),
        (good.replace("feddrm", "f\\u0065ddrm", 1), ""),
        (json.dumps({k: fields[k] for k in sorted(fields)}, indent=1, ensure_ascii=False), ""),
        (good.replace(' "plans": [\n', ' "plans":  [\n'), "in the part plans"),
    ):
        assert text != good
        world[0].write_bytes(text.encode())
        code, out = said(run, paper, world)
        assert (code, "it is not written as it was exported: line" in out, part in out) == (3, True, True)


def test_a_proof_that_others_kept_shows_a_rollback_without_any_head(paper: Any, run: Run) -> None:
    """b was rolled back; a's heads were taken out of a's file, and what a kept of b's charges still tells."""
    old = paper.export("b").read_text()
    paper.play("b")
    paper.sightings[PEER, paper.plan.hash] = _newer(paper)
    files = [paper.export("a"), paper.path / "b.ledger"]
    rewrite(files[0], lambda f: f["witnessed"].pop(PEER))
    files[1].write_text(old)
    code, report = judged(run, *files, "--root", paper.root)
    assert (code, failures(report)) == (6, {("b", "witnesses")})
    assert "a (entry 1 of its sightings) saw" in said(run, paper, files)[1]


def _newer(paper: Any) -> bytes:
    from privacy.proofs import sighting_of
    from privacy.witness import make_proof

    ledger = paper.ledgers["b"]
    leaves = [n for n, body in enumerate(ledger.bodies()) if b'"RESERVE"' in body or b'"COMMIT"' in body]
    return sighting_of(make_proof(ledger, leaves[-2:], ()))


def test_a_proof_of_another_ledger_shows_a_fork(paper: Any, run: Run) -> None:
    """The same peer, the same key, a second ledger of the same size: fork-proof finds it among what was kept."""
    files = [paper.export("a"), paper.export("b")]
    fields = json.loads(files[1].read_text())
    note = sign_head(PEER, len(fields["leaves"]), bytes(32), paper.keys["b"].identity).decode()

    def put(f: dict[str, Any]) -> None:
        parts = json.loads(f["sightings"][0])
        f["sightings"][0] = canonical_json(parts | {"head": note}).decode()

    rewrite(files[0], put)
    code, out, _ = run("fork-proof", *files, "--root", paper.root)
    assert (code, f"two different heads of {len(fields['leaves'])} leaves" in out) == (6, True)
    assert judged(run, *files, "--root", paper.root)[0] == 6
