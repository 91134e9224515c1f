"""Write the project's own vectors, or compare them with what is there.

python tests/vectors/generate.py [--check] [DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vectors_contract import contract_json
from vectors_inputs import SCENARIOS
from vectors_session import scenario_json
from vectors_verdicts import negative_documents

FROZEN = Path(__file__).resolve().parent / "frozen"


def encoded(value: Any) -> str:
    """The one text of a file: keys as they were put in, one space of indent, no escapes, a final newline."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def documents() -> Iterator[tuple[str, Any]]:
    """All files: name and contents."""
    sessions = {scenario.name: scenario_json(scenario) for scenario in SCENARIOS}
    for name, value in (*sessions.items(), *negative_documents(sessions)):
        yield f"{name}.json", value
    yield "contract.json", contract_json()


def differing(directory: Path, made: Mapping[str, Any]) -> list[str]:
    """Names of the files of a directory that are missing, changed or too many."""
    wanted = {name: encoded(value) for name, value in made.items()}
    found = {path.name: path.read_text() for path in directory.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=FROZEN)
    parser.add_argument("--check", action="store_true", help="compare, write nothing; exit 1 on a difference")
    arguments = parser.parse_args()
    made = dict(documents())
    if arguments.check:
        different = differing(arguments.directory, made)
        sys.exit("\n".join(["These vectors differ:", *different]) if different else 0)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for name, value in made.items():
        (arguments.directory / name).write_text(encoded(value))


if __name__ == "__main__":
    main()
