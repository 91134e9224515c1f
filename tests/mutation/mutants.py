"""Remove one check at a time and demand that a named test fails.

    python tests/mutation/mutants.py [WORD ...]

Every entry of the tables (*.toml beside this file) names a row of docs/secagg.md ("Checks") or docs/privacy.md
("Traps"), a fragment of a source file, what it becomes without the check, and the test that must then fail. It is
applied in a temporary copy, one at a time; words select entries by their row, check, file or test. Exits with 1 if a
mutant survives or a table is stale.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("secagg", "privacy", "feddrm", "silo", "aggregator", "tests")
# A mutant that hangs has not been noticed by a test.
SECONDS = 600
FAILED = 1


@dataclass(frozen=True)
class Mutant:
    """One check and its absence. `row` is a row of the page; `edits` are (fragment, replacement)."""

    row: str
    check: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str

    def mutated(self, source: str) -> str:
        """The file without the check.

        Raises:
            LookupError: a fragment is not in it exactly once, so that the table no longer says what it seems to.
        """
        for fragment, replacement in self.edits:
            if source.count(fragment) != 1:
                raise LookupError(f"{self.check}: found {source.count(fragment)} times in {self.file}: {fragment!r}")
            source = source.replace(fragment, replacement)
        return source


def tables() -> tuple[Mutant, ...]:
    """All entries, in the order of files and lines."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            edits = entry.get("edits") or [[entry["find"], entry["replace"]]]
            pairs = tuple((str(find), str(replace)) for find, replace in edits)
            found.append(Mutant(entry["row"], entry["check"], entry["file"], pairs, entry["test"]))
    return tuple(found)


def run(copy: Path, tests: Iterable[str], seconds: float | None) -> tuple[int, str]:
    """pytest in the copy: its exit code (-1 if it took too long), and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, "timed out"
    return done.returncode, done.stdout + done.stderr


def check_copy(copy: Path) -> None:
    """The copy must be what is imported: an installed package in its place would let every mutant survive."""
    code = "import secagg.wire, silo.rounds; print(secagg.wire.__file__); print(silo.rounds.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )
    if any(not Path(line).is_relative_to(copy) for line in found.stdout.split()):
        raise SystemExit(f"tests in {copy} import {found.stdout.split()}")


def kill(copy: Path, mutant: Mutant) -> str:
    """Apply one mutant and run its test: "killed", or what went wrong."""
    path = copy / mutant.file
    source = path.read_text()
    try:
        path.write_text(mutant.mutated(source))
        code, output = run(copy, [mutant.test], SECONDS)
    except LookupError as error:
        return f"STALE ({error})"
    finally:
        path.write_text(source)
    if code == FAILED:
        return "killed"
    return "SURVIVED" if code == 0 else f"BROKEN (pytest exited with {code}: {output.strip().splitlines()[-1]})"


def main(words: Sequence[str]) -> int:
    """Run all mutants that match; print check, test and result."""
    chosen = [m for m in tables() if all(w in " ".join((m.row, m.check, m.file, m.test)) for w in words)]
    if not chosen:
        print(f"no entry has all of these words: {' '.join(words)}")
        return 1
    bad = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory).resolve()
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        check_copy(copy)
        code, output = run(copy, sorted({mutant.test for mutant in chosen}), None)
        if code != 0:
            print(output)
            return 1
        for number, mutant in enumerate(chosen, start=1):
            result = kill(copy, mutant)
            bad += result != "killed"
            print(
                f"{number:4}/{len(chosen)}  {result:8}  {mutant.row}: {mutant.check}\n{'':15}  {mutant.test}",
                flush=True,
            )
    print(f"{len(chosen) - bad} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
