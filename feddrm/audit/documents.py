"""Whether the signed documents in a bundle stand there once, in one form, with the operator's signature alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feddrm.audit.exhibit import Exhibit
from feddrm.contract.errors import FeddrmError
from feddrm.contract.kit import FederationRoot
from feddrm.contract.roster import Roster, verify_roster
from feddrm.contract.signed import Signed
from privacy.checks import Check


def check_documents(anchor: FederationRoot, exhibit: Exhibit) -> Iterator[Check]:
    """What else than operator's signature and terms is wrong with rosters and plans: their form, order and number.

    Earlier rosters and plans of jobs that the ledger does not name can be taken out unseen: they are counted.
    """
    bundle = exhibit.bundle
    rosters = [("the roster", bundle.roster)]
    rosters += [(f"entry {number} of rosters", text) for number, text in enumerate(bundle.rosters, start=1)]
    plans = [(f"entry {number} of plans", text) for number, text in enumerate(bundle.plans, start=1)]
    faults = [*_faults("roster", rosters), *_faults("plan", plans), *_earlier(anchor, rosters)]
    yield from faults
    if not faults:
        message = f"1 roster, {len(bundle.rosters)} earlier and {len(plans)} plans, each once and as exports write it"
        yield Check("documents", True, None, message)


def _faults(name: str, entries: Sequence[tuple[str, str]]) -> Iterator[Check]:
    seen: dict[bytes, str] = {}
    for where, text in entries:
        try:
            signed = Signed.from_json(text)
        except FeddrmError:
            # Said where the operator's signature is judged.
            continue
        if len(signed.signatures) != 1:
            yield Check(
                name, False, None, f"{where} carries {len(signed.signatures)} signatures, not the operator's alone"
            )
        elif signed.to_json() != text:
            yield Check(name, False, None, f"{where} is not written as exports write it")
        if signed.body in seen:
            yield Check(name, False, None, f"{where} is {seen[signed.body]} once more")
        seen.setdefault(signed.body, where)


def _earlier(anchor: FederationRoot, entries: Sequence[tuple[str, str]]) -> Iterator[Check]:
    last: Roster | None = None
    for where, text in entries:
        try:
            roster = verify_roster(Signed.from_json(text), federation=anchor.federation, operator=anchor.operator)
        except FeddrmError as error:
            if where != "the roster":
                yield Check("roster", False, None, f"{where}: {error.message}")
            continue
        if last is not None and roster.version > last.version:
            yield Check("roster", False, None, f"{where} is version {roster.version}, after version {last.version}")
        last = roster
