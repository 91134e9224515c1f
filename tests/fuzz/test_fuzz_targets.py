"""The fuzz targets without a fuzzer: valid bytes, damaged ones, and every input that ever failed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from targets import CONVERTERS, Target, damaged, targets

CRASHES = sorted(path for path in (Path(__file__).parent / "crashes").glob("*/*") if path.is_file())


@pytest.mark.parametrize("target", targets().values(), ids=lambda target: target.name)
def test_valid_and_damaged_bytes(target: Target) -> None:
    corpus = target.corpus()
    assert len(set(corpus)) > 1
    entropy = random.Random(target.name)
    for data in [b"", *corpus]:
        target.run(data)
    for _ in range(150):
        target.run(damaged(entropy.choice(corpus), entropy))


@pytest.mark.parametrize("path", CRASHES, ids=lambda path: f"{path.parent.name}-{path.name[:14]}")
def test_what_once_failed(path: Path) -> None:
    targets()[path.parent.name].run(path.read_bytes())


def test_every_message_of_the_contract_has_a_valid_beginning() -> None:
    """A converter without a seed would be fuzzed from nothing."""
    seeded = {data[0] for data in targets()["messages"].corpus()}
    missing = {converter.wire.DESCRIPTOR.name for index, converter in enumerate(CONVERTERS) if index not in seeded}
    assert missing == set()
