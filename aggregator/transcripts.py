"""The transcript of all jobs of a server directory: those that ended, and the one in hand. Works beside a server."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from aggregator import checkpoint
from aggregator.blobs import TRANSCRIPTS, Blobs
from aggregator.homes import ServerHome
from aggregator.noise import StoredNoise
from feddrm.contract.errors import InputError
from feddrm.contract.files import atomic_write
from feddrm.contract.signed_plan import verify_plan
from feddrm.contract.transcript import JobRecord, sign_transcript


def records(home: ServerHome) -> tuple[JobRecord, ...]:
    """All jobs that this server directory knows of, each once, with its longest record.

    Raises:
        InputError: no coordinator ran there yet.
        VerificationError, MalformedError: what is stored is damaged.
    """
    path = home.directory / "state.sqlite"
    if not path.exists():
        raise InputError(f"{home.directory} has no jobs yet.", remedy="Run: feddrm-aggregator serve")
    blobs = Blobs(home.directory / "blobs")
    found = [JobRecord.from_json(json.loads(blobs.get(TRANSCRIPTS, name))) for name in blobs.names(TRANSCRIPTS)]
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        row = database.execute("SELECT state FROM checkpoint").fetchone()
    if row is not None:
        job = checkpoint.decode(
            bytes(row[0]),
            federation=home.federation,
            operator=home.anchor.operator,
            signer=home.round_key,
            blobs=blobs,
        ).job
        if job is not None:
            found.append(job.record())
    return _longest(found)


def _longest(found: list[JobRecord]) -> tuple[JobRecord, ...]:
    """One record a job: a job that was reopened after it ended has several, each beginning like the one before."""
    best: dict[bytes, JobRecord] = {}
    for record in found:
        known = best.get(record.plan.body)
        if known is None or len(record.outcomes) > len(known.outcomes):
            best[record.plan.body] = record
    return tuple(best.values())


def _with_noise(record: JobRecord, home: ServerHome, blobs: Blobs) -> JobRecord:
    plan = verify_plan(record.plan, federation=home.federation, operator=home.anchor.operator)
    return replace(record, noise=StoredNoise(plan.hash, plan.plan).look(record.outcomes, blobs, math.inf))


def export(home: ServerHome, out: Path) -> tuple[int, int]:
    """Write the signed transcript; returns how many jobs and rounds it holds.

    Raises:
        InputError: nothing to export, or the file cannot be written.
    """
    blobs = Blobs(home.directory / "blobs")
    jobs = tuple(_with_noise(record, home, blobs) for record in records(home))
    atomic_write(out, sign_transcript(jobs, home.federation, home.round_key).encode())
    return len(jobs), sum(len(job.outcomes) for job in jobs)
