"""Any message of the wire contract, as Hypothesis draws it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from feddrm.contract import codec, codec_operator
from feddrm.contract import messages as m
from feddrm.contract import operator_messages as o
from feddrm.contract import query_messages as q
from feddrm.contract.signed import Signature, Signed
from secagg.wire import Frame, Step

hashes = st.binary(min_size=32, max_size=32)
hash_or_empty = hashes | st.just(b"")
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
name_sets = st.lists(names, max_size=4, unique=True).map(tuple)
sizes = st.integers(0, (1 << 53) - 1)
counts = st.integers(0, (1 << 31) - 1)
rounds = st.integers(0, 10_000)
text = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=100)
signeds = st.builds(
    Signed,
    st.binary(min_size=1, max_size=60),
    st.lists(
        st.builds(Signature, hashes, st.binary(min_size=64, max_size=64)),
        min_size=1,
        max_size=3,
        unique_by=lambda s: s.key,
    ).map(tuple),
)
ATTACHED = (Step.KEYS, Step.SHARES, Step.MASKED, Step.PUBLISH, Step.ABORT)


def frames_of(steps: list[Step], attachments: st.SearchStrategy[bytes]) -> st.SearchStrategy[Frame]:
    return st.builds(
        Frame,
        st.sampled_from(steps).map(int),
        names | st.just(""),
        st.binary(min_size=1, max_size=60),
        st.binary(min_size=64, max_size=64),
        attachments,
    )


frames = frames_of(list(ATTACHED), st.binary(max_size=60)) | frames_of(
    [step for step in Step if step not in ATTACHED], st.just(b"")
)
frame_tuples = st.lists(frames, max_size=3).map(tuple)
outcomes = st.builds(
    m.RoundOutcome, rounds, st.lists(signeds, min_size=1, max_size=3).map(tuple), hashes, st.none()
) | st.builds(m.RoundOutcome, rounds, st.just(()), st.just(b""), signeds)
chunks = st.integers(0, 1 << 30).flatmap(
    lambda offset: st.binary(min_size=1, max_size=40).flatmap(
        lambda data: st.builds(
            m.Chunk,
            hashes,
            st.integers(offset + len(data), 1 << 34),
            st.just(offset),
            st.just(data),
            hashes,
        )
    )
)
readies = st.builds(
    m.Ready,
    st.binary(min_size=16, max_size=16),
    hash_or_empty,
    rounds,
    hash_or_empty,
    st.dictionaries(names, sizes, max_size=4).map(lambda pairs: tuple(pairs.items())),
    hashes,
)
plan_answers = st.builds(m.PlanAnswer, hashes, st.just(True), st.none()) | st.builds(
    m.PlanAnswer, hashes, st.just(False), st.sampled_from(m.DeclineReason)
)
codes = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=4).map(tuple)
)
stages = st.integers(0, 5)
summaries = st.builds(o.RoundSummary, rounds, counts, text, name_sets, name_sets, name_sets, hash_or_empty, stages)
noises = st.builds(o.NoiseFound, counts, st.floats(0, 1e9), st.floats(0, 1), counts, st.booleans())
figures = st.builds(o.NamedFigure, text, st.floats(0, 1), st.floats(0, 1e9))
releases = st.builds(
    o.ReleaseSummary,
    st.text("0123456789abcdef", min_size=16, max_size=16),
    hashes,
    counts,
    counts,
    st.booleans(),
    signeds,
    signeds,
)
silo_statuses = st.builds(o.SiloStatus, names, st.booleans(), text, counts, counts)
announces = st.builds(m.Announce, frames, frame_tuples, st.none() | outcomes, st.lists(sizes, max_size=4).map(tuple))
versions = st.integers(1, (1 << 53) - 1)
sealed = st.binary(min_size=1, max_size=80)
route_rows = st.lists(
    st.builds(q.Route, names, versions, signeds), min_size=1, max_size=2, unique_by=lambda route: route.silo
).map(lambda routes: q.RouteRow(tuple(routes)))
capacities = st.builds(q.Capacity, st.integers(0, 100_000), hashes)
answers = st.builds(q.Answer, hashes, sealed, st.just("")) | st.builds(
    q.Answer, hashes, st.just(b""), st.sampled_from(["busy", "no-budget"])
)

MESSAGES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (codec_operator.FIGURE, figures),
    (codec.SIGNED, signeds),
    (codec.FRAME, frames),
    (codec.CHUNK, chunks),
    (codec.FETCH, st.builds(m.Fetch, hashes, st.integers(0, 1 << 34))),
    (codec.UPLOAD_RECEIPT, st.builds(m.UploadReceipt, hashes, st.integers(0, 1 << 34), st.booleans())),
    (codec.HELLO_REQUEST, st.builds(m.HelloRequest, text)),
    (codec.HELLO, st.builds(m.Hello, text, names, sizes, signeds)),
    (codec.READY, readies),
    (codec.PLAN_ANSWER, plan_answers),
    (
        codec.SILO_EVENT,
        readies
        | plan_answers
        | st.builds(m.SiloFrame, frames)
        | st.builds(m.AckEvent, signeds)
        | st.builds(m.ReleaseSignature, signeds),
    ),
    (codec.ROUND_OUTCOME, outcomes),
    (
        codec.COORDINATOR_EVENT,
        st.one_of(
            st.builds(m.JobOffer, signeds),
            announces,
            st.builds(m.StepFrames, hashes, st.integers(0, 7), frame_tuples),
            st.builds(m.Publish, frames, hashes),
            st.builds(m.AbortRequest, hashes, text),
            st.builds(m.OutcomeEvent, outcomes),
            st.builds(m.ReleaseProposal, st.binary(min_size=1, max_size=60)),
            st.builds(m.JobEnded, hashes, text, st.booleans()),
            st.builds(m.Notice, text),
            st.builds(m.RosterOffer, signeds),
        ),
    ),
    (codec.ANNOUNCE, announces),
    (codec.SERVE_EVENT, capacities | answers),
    (codec.SEALED_QUERY, st.builds(q.SealedQuery, names, hashes, sealed, signeds)),
    (codec.GET_RELEASE, st.builds(q.GetRelease)),
    (codec.QUERIER_RELEASE, st.builds(q.QuerierRelease, signeds, signeds, hashes)),
    (codec.ROUTE_REQUEST, st.builds(q.RouteRequest, hashes, codes)),
    (
        codec.ROUTE_REPLY,
        st.lists(route_rows, min_size=1, max_size=3).map(lambda rows: q.RouteReply(tuple(rows))),
    ),
    (codec.ASK, st.builds(q.Ask, names, signeds, sealed)),
    (codec.ASK_REPLY, st.builds(q.AskReply, sealed)),
    (codec_operator.ROSTER_RECEIPT, st.builds(o.RosterReceipt, versions)),
    (codec_operator.STOP_JOB, st.builds(o.StopJob, hashes, text)),
    (codec_operator.JOB_RECEIPT, st.builds(o.JobReceipt, hashes, text)),
    (codec_operator.STATUS_REQUEST, st.builds(o.StatusRequest, hash_or_empty)),
    (
        codec_operator.STATUS,
        st.builds(
            o.Status,
            names,
            sizes,
            hash_or_empty,
            names | st.just(""),
            text,
            rounds,
            rounds,
            counts,
            text,
            name_sets,
            st.lists(silo_statuses, max_size=3, unique_by=lambda s: s.name).map(tuple),
            st.lists(summaries, max_size=3).map(tuple),
            text,
            st.just("") | st.just("0123456789abcdef"),
            stages,
            st.lists(figures, max_size=3).map(tuple),
            noises | st.none(),
        ),
    ),
    (codec_operator.RELEASE_SUMMARY, releases),
    (codec_operator.RELEASE_LIST, st.lists(releases, max_size=3).map(lambda r: o.ReleaseList(tuple(r)))),
    (codec_operator.PUBLISH_RELEASE, st.builds(o.PublishRelease, st.just("0123456789abcdef"))),
]
CONVERTERS = [converter for converter, _ in MESSAGES]
