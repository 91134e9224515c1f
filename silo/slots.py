"""When an answer leaves whose making took a time that depends on the hospital's records (design 6 and 10).

At geometric slots after the question: whoever waits for it learns the logarithm of that time and no more, however often
and however finely it asks.
"""

from __future__ import annotations

from typing import Final

# For answers that nobody gives up waiting for: a slot that is cut tells, beyond the cut, the time itself.
UNLIMITED_MS: Final = 1 << 62


def slot_end_ms(asked_ms: int, now_ms: int, slot_ms: int, limit_ms: int) -> int:
    """The first of asked + slot, asked + 2 slot, asked + 4 slot ... that is not past.

    Args:
        asked_ms: when the question arrived; all times in milliseconds, those here since the epoch.
        now_ms: when the answer is ready.
        slot_ms: the shortest slot; 0 for at once.
        limit_ms: the longest wait that is of any use to whoever asked; it ends the last slot.
    """
    if slot_ms <= 0:
        return now_ms
    wait = slot_ms
    while asked_ms + wait < now_ms:
        wait *= 2
    return max(now_ms, asked_ms + min(wait, limit_ms))
