"""The demo itself, from a built wheel outside the checkout: what README promises, held to its figures."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed_demo import Installed
from wire_search import found, from_silos, json_documents, keys, masked_inputs, numbers, windows

from feddrm.contract.plan import Plan
from feddrm.demo import rand
from feddrm.features import encode, read_table
from feddrm.transport.recorder import Recorded, read_recording
from privacy.bundle import parse_bundle
from privacy.rounds import LOCAL_STAGE

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-person-0b5d2f"
VICTIM = "site-3"
pytestmark = [pytest.mark.demo, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (target / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target / "site")]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    cwd = tmp_path_factory.mktemp("elsewhere")
    where = [sys.executable, "-P", "-c", "import feddrm, silo; print(feddrm.__file__, silo.__file__)"]
    installation = Installed(target / "site", cwd)
    found = subprocess.run(
        where, cwd=cwd, env=installation.environment(), check=True, capture_output=True, text=True
    ).stdout.split()
    assert all(path.startswith(str(target / "site")) for path in found), found
    return installation


@pytest.fixture(scope="module")
def killed(installed: Installed) -> dict[str, Any]:
    """What a demo of which one hospital died in round 4 prints. A demo in which none does shows nothing more."""
    recorded = ["--record-traffic", "traffic.bin", "--plant-canary", CANARY]
    return installed.demo("--dir", "killed", "--kill-silo", f"{VICTIM}@4", *recorded)


def check_figures(shown: dict[str, Any]) -> None:
    """Every run draws its own noise; nothing is asked here that a run misses in a lifetime."""
    assert shown["plan_epsilon"] <= 3
    assert shown["delta"] == 1e-5
    assert shown["routing_accuracy"] >= 0.36
    assert shown["system_accuracy"] >= shown["random_silo_accuracy"] - 0.01
    assert shown["system_accuracy"] > shown["majority_accuracy"]
    assert shown["queries"] > 5000
    assert shown["transport"] == {"version": "TLSv1.3", "client_auth": True}


def test_the_figures_that_the_readme_promises(killed: dict[str, Any]) -> None:
    check_figures(killed)


def test_the_sums_hold_the_noise_that_was_planned_and_the_card_is_signed(
    killed: dict[str, Any], installed: Installed
) -> None:
    """Measured where the sums hold nothing else; in the status, in the card, and in the audit by the transcript."""
    noise = killed["noise"]
    assert not noise["short"]
    assert noise["ratio"] == pytest.approx(1, abs=6 * (2 / noise["places"]) ** 0.5)
    assert killed["card"]["verified"]
    card, report = Path(killed["card"]["file"]), Path(killed["report"])
    said = noise["says"].split("; ")[0]
    assert said in " ".join(card.read_text(encoding="utf-8").split())
    assert said in " ".join(report.read_text(encoding="utf-8").split())


def test_all_hospitals_spend_the_same_and_every_ledger_verifies(killed: dict[str, Any]) -> None:
    assert len(killed["silos"]) == 6
    assert all(silo["ledger_verified"] for silo in killed["silos"])
    others = [silo for silo in killed["silos"] if silo["name"] != VICTIM]
    (victim,) = [silo for silo in killed["silos"] if silo["name"] == VICTIM]
    (spent,) = {silo["epsilon_spent"] for silo in others}
    assert 0 < victim["epsilon_spent"] < spent <= killed["plan_epsilon"] <= victim["epsilon_cap"]
    assert {silo["rounds_joined"] for silo in others} == {killed["rounds"]}


@pytest.mark.soak
def test_a_demo_in_which_no_hospital_dies(installed: Installed) -> None:
    plain = installed.demo("--dir", "plain")
    check_figures(plain)
    assert {silo["epsilon_spent"] for silo in plain["silos"]} == {plain["silos"][0]["epsilon_spent"]}
    assert {silo["rounds_joined"] for silo in plain["silos"]} == {plain["rounds"]}
    assert (plain["sums_checked"], plain["sums_verified"]) == (plain["rounds"], True)


def test_the_report_is_written_where_the_demo_says(killed: dict[str, Any], installed: Installed) -> None:
    """From the wheel: its template must be in there."""
    page = Path(killed["report"])
    assert page == installed.cwd / "killed" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "Verified: 6 ledgers" in text
    assert text.count("<figure>") == 6
    for silo in killed["silos"]:
        assert f"{silo['epsilon_spent']:.3f}" in text


@pytest.fixture(scope="module")
def traffic(killed: dict[str, Any], installed: Installed) -> list[Recorded]:
    assert killed["rounds"]
    return list(read_recording(installed.cwd / "traffic.bin"))


def test_no_person_shows_in_the_traffic(traffic: list[Recorded], installed: Installed) -> None:
    for site in range(1, 7):
        table = installed.cwd / "killed" / "data" / f"site-{site}.csv"
        with table.open(newline="") as source:
            persons = {row["zper"] for row in csv.DictReader(source)}
        assert f"{CANARY}-site-{site}" in persons
    assert not found(traffic, CANARY.encode())


def test_no_update_shows_in_the_traffic(traffic: list[Recorded], installed: Installed) -> None:
    sent = from_silos(traffic)
    updates = sorted((installed.cwd / "killed" / "kept-updates").rglob("*.npy"))
    assert 5 * rand.ALL_ROUNDS < len(updates) < 6 * rand.ALL_ROUNDS
    pieces = [window for path in updates[::10] for window in list(windows(np.load(path)))[::16]]
    assert len(pieces) > 500
    assert len(masked_inputs(traffic)) > 100
    assert not [piece for piece in pieces if piece in sent]


def test_no_question_and_no_answer_shows_in_the_traffic(traffic: list[Recorded], installed: Installed) -> None:
    plan = Plan.model_validate(rand.plan_document("rand", 1))
    table = read_table(installed.cwd / "killed" / "data" / "held-out.csv")
    features = encode(table, plan.schema_, targets=False).features
    asked = b"".join(message.data for message in traffic if "QueryService" in message.method)
    assert len(asked) > 6000 * 1000
    for row in features[::500]:
        for piece in (row.tobytes()[:256], row.astype("f8").tobytes()[:256], row.astype("u1").tobytes()[:64]):
            assert piece not in asked
    answers = [message for message in traffic if message.method.endswith("/Ask") and message.direction == "sent"]
    assert len({len(message.data) for message in answers}) == 1
    assert not [message for message in answers if any(label.encode() in message.data for label in rand.LABELS)]


def test_no_count_and_no_metric_shows_in_the_traffic(traffic: list[Recorded], installed: Installed) -> None:
    """Exact numbers of records and persons of every site, in every JSON document on the wire."""
    counts: set[int] = set()
    for table in (installed.cwd / "killed" / "data").glob("site-*.csv"):
        with table.open(newline="") as source:
            rows = list(csv.DictReader(source))
        counts |= {len(rows), len({row["zper"] for row in rows})}
    assert len(counts) == 12
    metrics = {"loss", "accuracy", "score", "scores", "logit", "margin", "samples", "batch_size", "norm", "probability"}
    seen = 0
    for message in traffic:
        if "QueryService" not in message.method:
            for document in json_documents(message.data):
                seen += 1
                assert not counts & set(numbers(document)), document
                assert not metrics & set(keys(document)), document
    assert seen > 500


def test_a_killed_hospital_loses_its_mask_and_not_its_update(killed: dict[str, Any]) -> None:
    (entry,) = [entry for entry in killed["history"] if entry["round"] == 4]
    assert entry["outcome"] == "published"
    assert VICTIM in entry["cohort"]
    assert VICTIM not in entry["survivors"]
    assert entry["mask_keys_opened"] == [VICTIM]


def test_the_others_go_on_and_the_sums_stay_right(killed: dict[str, Any]) -> None:
    assert killed["sums_verified"] is True
    assert killed["sums_checked"] == killed["rounds"]
    assert killed["rounds_lost"] == []


def test_the_killed_hospital_comes_back_and_pays_for_every_round_it_reserved(
    killed: dict[str, Any], installed: Installed
) -> None:
    history = killed["history"]
    joined = [entry["round"] for entry in history if VICTIM in entry["cohort"]]
    survived = [entry["round"] for entry in history if VICTIM in entry["survivors"]]
    assert set(joined) - set(survived) == {4}
    # How many rounds pass while an agent starts is the machine's affair; that it misses none once it is back is ours.
    back = min(number for number in survived if number > 4)
    assert survived == [1, 2, 3, *range(back, killed["rounds"] + 1)]
    assert 4 + 2 <= back <= killed["rounds"]
    (site,) = [silo for silo in killed["silos"] if silo["name"] == VICTIM]
    assert site["ledger_verified"]
    # The personal head is trained without the others, for a reservation of its own.
    assert site["rounds_reserved"] == len(joined) + 1
    bundle = parse_bundle((installed.cwd / "killed" / "audit" / f"{VICTIM}.ledger").read_bytes())
    leaves = [json.loads(leaf) for leaf in bundle.leaves]
    reserved = [leaf for leaf in leaves if leaf["type"] == "RESERVE"]
    assert [leaf["round"] for leaf in reserved if leaf["stage"] != LOCAL_STAGE] == joined
    assert len([leaf for leaf in reserved if leaf["stage"] == LOCAL_STAGE]) == 1


def processes_of(directory: Path) -> list[int]:
    """Processes whose command line names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in command:
                found.append(int(entry.name))
    return found


def wait_for(condition: Any, seconds: float) -> Iterator[None]:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        yield


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_demo_that_dies_leaves_no_process_behind(
    installed: Installed, tmp_path: Path, number: signal.Signals
) -> None:
    directory = tmp_path / "dying"
    # Whoever runs the tests in the background of a shell hands an ignored SIGINT down to every process.
    demo = installed.start(
        "demo",
        "--dir",
        str(directory),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        for _ in wait_for(lambda: (directory / "logs" / "site-6.log").exists() or demo.poll() is not None, 120):
            time.sleep(0.05)
        assert demo.poll() is None, demo.communicate()
        assert len(processes_of(directory)) >= 8
        demo.send_signal(number)
        demo.communicate(timeout=60)
        for _ in wait_for(lambda: not processes_of(directory), 60):
            time.sleep(0.2)
    finally:
        demo.kill()


def test_a_directory_with_something_in_it_is_not_touched(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    demo = installed.start("demo", "--dir", str(tmp_path))
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 3
    assert "not empty" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unknown_hospital_to_kill_is_named(installed: Installed) -> None:
    demo = installed.start("demo", "--kill-silo", "site-9@4")
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 3
    assert "site-9@4" in errors
    assert "Traceback" not in errors
