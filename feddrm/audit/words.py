"""The fixed sentences of the report: what each check means, who the adversaries are, what is unprotected, terms."""

from __future__ import annotations

from typing import Final

CHECKS: Final = {
    "copies": "Whether a file was given twice.",
    "roster": "The list of members and their keys is signed by the federation's operator.",
    "origin": "The ledger is one of this federation.",
    "peers": "What this hospital's file says of other hospitals' ledgers was signed by them.",
    "sightings": "What this hospital kept as proof that others charged jobs was signed by them.",
    "documents": "Lists of members and plans stand in the file once and in their one form.",
    "head": "The hospital itself signed the state of its ledger.",
    "tree": "Not one entry differs from what was signed.",
    "witnesses": "The ledger still contains all that other hospitals saw of it: nothing was taken back.",
    "leaves": "Every entry is of a known kind and readable.",
    "key": "The ledger begins with its own name and key.",
    "recovery": "A new ledger answers for one that was lost, and charges its jobs in full.",
    "transcript": "The results are those that the hospitals acknowledged to the coordinator, and all were charged. "
    "Of the coordinator's own file: it holds, and no ledger or acknowledgement contradicts it.",
    "noise": "The published sums hold as much noise as was planned, where they hold nothing else; measured by the "
    "coordinator. It finds faulty software, not a hospital that cheats, and not which hospital it is.",
    "times": "Entries stand in the order of time.",
    "plan": "The job follows terms that the operator signed.",
    "caps": "The job stays below the limits that the hospital set for itself.",
    "order": "Each round was charged before anything was read for it, and ended once.",
    "reservations": "Every charged round costs what the signed plan says.",
    "epsilon": "The privacy loss, computed anew from the entries, is not above what the hospital claimed.",
    "unreleased": "Not too many rounds were charged without a result.",
    "unresolved": "A round that has no end yet; it counts as spent.",
    "patients": "The same column told patients apart all the time.",
    "caps history": "The hospital changed its own limits.",
    "models": "Each round began with the model to which the round before led.",
    "published": "The hospitals' ledgers agree on what was published.",
}

ADVERSARIES: Final = (
    (
        "Anybody who has the released model, or is answered by it",
        "the figure with secure aggregation",
        "Answers and routes are computed from noised updates only and add nothing to it.",
    ),
    (
        "The coordinator, even one that deviates from the protocol",
        "the figure with secure aggregation",
        "It sees sums of at least the agreed number of hospitals. That rests on cryptographic assumptions "
        "and on fewer colluding hospitals than the plan names.",
    ),
    (
        "Other hospitals, up to the number of colluders that the plan names",
        "the figure with secure aggregation",
        "They see every sum and know their own parts of it.",
    ),
    (
        "A hospital that adds no noise to a sum whose noise comes in shares",
        "the figure with secure aggregation",
        "It counts as a colluding one: its share is none of those that are counted.",
    ),
    (
        "Whoever broke secure aggregation and sees one hospital's updates",
        "the figure without secure aggregation",
        "While training, each hospital adds all of its noise itself, so there the two figures are equal. Of sums whose "
        "noise comes in shares such a reader sees one share only.",
    ),
    (
        "Somebody who knows all other patients' records",
        "the same figure",
        "The bound holds whatever else is known.",
    ),
    (
        "Whoever controls the hospital's own computers",
        "no bound",
        "Records, keys and the ledger lie there.",
    ),
)

UNPROTECTED: Final = (
    (
        "That the noise was drawn.",
        "A ledger shows what was charged. No ledger can prove that the noise was added; a hospital that runs other "
        "software exposes its own patients.",
    ),
    (
        "Patients treated at several hospitals.",
        "Each hospital's bound counts by itself. For a patient of two hospitals both figures add up.",
    ),
    (
        "Families and other groups.",
        "A group of k patients of one hospital has at most k times the figure.",
    ),
    (
        "Facts about a hospital.",
        "That its patients are older, say, or about how many there are. Differential privacy protects patients, not "
        "hospitals.",
    ),
    (
        "Other uses of the same records.",
        "A second enrolment under another name, or another study, has a budget of its own that is in no ledger here.",
    ),
    (
        "What a patient's record shares with everybody's.",
        "A model may show that smoking harms; that is knowledge about people, not about who took part.",
    ),
    (
        "The newest entries.",
        "What a hospital wrote after the last state that another hospital saw is its own word.",
    ),
)

GLOSSARY: Final = (
    ("cap", "A limit on epsilon that the hospital sets for itself. Nobody outside can raise it."),
    ("clipping", "One patient's influence on one step is cut to a fixed length before noise is added."),
    ("cohort", "The hospitals that take part in a round."),
    (
        "delta",
        "The probability with which the bound of epsilon may fail; it should be far below one divided by the number of "
        "patients.",
    ),
    (
        "differential privacy",
        "A promise: what is released would have been almost as likely without any one patient's records.",
    ),
    (
        "epsilon",
        "How strict the promise is; smaller is stricter. Odds about one patient change by a factor of at most e to the "
        "power of epsilon.",
    ),
    (
        "discrete Gaussian noise",
        "Gaussian noise among whole numbers, drawn without rounding, as sums of masked numbers need it.",
    ),
    ("head", "A signed statement of a ledger's size and fingerprint, which other hospitals keep as witnesses."),
    (
        "ledger",
        "The hospital's book of what it charged. Entries (leaves) are chained by a hash tree, so that no change stays "
        "hidden from those who saw an earlier state.",
    ),
    ("noise multiplier", "How strong the added noise is, measured in clipped contributions of one patient."),
    ("PLD and RDP", "Two methods to compute epsilon. PLD is the tighter one and decides; RDP stands beside it."),
    ("plan", "The terms of a job, signed by the operator before anything is read."),
    ("release", "A result that all hospitals know: the sum of a round, and the model that it led to."),
    ("sampling rate", "The probability with which each patient enters a step."),
    (
        "secure aggregation",
        "Hospitals send masked updates; only their sum can be read, never one hospital's update.",
    ),
    (
        "share of noise",
        "A hospital's part of the noise in a secure sum. The shares that are counted make up the noise multiplier; "
        "those of colluding hospitals are not counted.",
    ),
    (
        "unit of privacy",
        "Whom the promise protects: here one patient of one hospital, with all of that patient's records.",
    ),
)
