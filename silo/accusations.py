"""The evidence that this silo holds against peers and coordinator: its own signed aborts, with what they rest on.

They are sent once, to a coordinator that may be the accused; kept here, they can be shown to anybody at any time.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from secagg.wire import Frame, Step
from silo.state import State

_KEPT: Final = 100
"""A coordinator with a colluding silo could make evidence without end; the first pieces convict as well as the last."""

_MARK: Final = '{"abort":%'


class Accusations:
    """Signed aborts with evidence, in the database's table of evidence."""

    def __init__(self, state: State) -> None:
        self._state = state

    def keep(self, plan: bytes, round_number: int, frame: Frame) -> None:
        """Keep an abort and its evidence, durably; the same one once, and only so many of a plan."""
        known = self.of(plan)
        if frame not in known and len(known) < _KEPT:
            parts = {"abort": frame.body, "signature": frame.signature, "evidence": frame.attachment}
            text = {name: base64.b64encode(value).decode() for name, value in parts.items()}
            self._state.keep_evidence(
                plan, round_number, json.dumps({**text, "silo": frame.sender}, separators=(",", ":"))
            )

    def of(self, plan: bytes) -> tuple[Frame, ...]:
        """All that were kept of a plan, oldest first."""
        rows = self._state.rows.execute(
            "SELECT text FROM evidence WHERE plan=? AND text LIKE ? ORDER BY serial", (plan, _MARK)
        )
        return tuple(_frame(json.loads(row[0])) for row in rows.fetchall())


def _frame(text: dict[str, str]) -> Frame:
    body, signature, evidence = (base64.b64decode(text[name]) for name in ("abort", "signature", "evidence"))
    return Frame(Step.ABORT, text["silo"], body, signature, evidence)
