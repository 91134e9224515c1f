"""Fuzz decoders with atheris (libFuzzer): `make fuzz`, or

    python tests/fuzz/fuzz.py SECONDS [TARGET ...]

Each target runs for so long in a process of its own, with its own corpus of what found new code (build/fuzz, kept
between runs) beside the valid bytes of fuzz_seeds.py. An input that fails is written to tests/fuzz/crashes/TARGET,
where the ordinary tests try it ever after.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/fuzz")]
PACKAGES = ["secagg", "privacy", "feddrm"]
LARGEST = 1 << 16


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from targets import targets
    target = targets()[name]
    corpus = ROOT / "build/fuzz" / name
    crashes = ROOT / "tests/fuzz/crashes" / name
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(target.corpus()):
        (corpus / f"seed-{index}").write_bytes(data)
    known = ROOT / "tests/fuzz" / f"{name}.dict"
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LARGEST}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={crashes}/",
        *([f"-dict={known}"] if known.exists() else []),
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    """Run the targets one after the other; 1 if any failed."""
    if arguments[:1] == ["--one"]:
        fuzz(arguments[1], int(arguments[2]))
        return 0
    from targets import targets

    seconds, names = int(arguments[0]), arguments[1:] or list(targets())
    failed = []
    for name in names:
        command = [sys.executable, __file__, "--one", name, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        print(f"{name:12} {counted[1] if counted else '?':>10} runs", flush=True)
        if done.returncode != 0:
            failed.append(name)
            print(done.stdout[-3000:] + done.stderr[-3000:], flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "no failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
