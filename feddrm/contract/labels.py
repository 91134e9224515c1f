"""Every label under which this package signs, seals or hashes. A test checks that no two of any package collide.

A label names the use, so that bytes made for one purpose never verify for another.
"""

from __future__ import annotations

from typing import Final

REQUEST: Final = b"feddrm/1 enrolment request"
SEALING_KEY: Final = b"feddrm/1 sealing key"
KIT: Final = b"feddrm/1 enrolment kit"
ROSTER: Final = b"feddrm/1 roster"
PLAN: Final = b"feddrm/1 plan"
PLAN_HASH: Final = b"feddrm/1 plan hash"
ROUND_ACK: Final = b"feddrm/1 round ack"
ROUND_LOST: Final = b"feddrm/1 round lost"
RELEASE: Final = b"feddrm/1 release statement"
CARD: Final = b"feddrm/1 model card"
TRANSCRIPT: Final = b"feddrm/1 transcript"
TICKET: Final = b"feddrm/1 route ticket"
ASK: Final = b"feddrm/1 ask"
ANSWER: Final = b"feddrm/1 answer"
SEAL_INFO: Final = b"feddrm/1 hpke info"
ANSWER_KEY: Final = b"feddrm/1 answer key"
FINGERPRINT: Final = b"feddrm/1 federation fingerprint"
MEMBER_FINGERPRINT: Final = b"feddrm/1 member fingerprint"
MODEL_HASH: Final = b"feddrm/1 model"
TRUNK_HASH: Final = b"feddrm/1 trunk"
HEAD_HASH: Final = b"feddrm/1 head"
LAYOUT: Final = b"feddrm/1 layout"
INITIAL_MODEL: Final = b"feddrm/1 initial model"
HELD_OUT: Final = b"feddrm/1 held out"
