"""What the process keeps of the memory that it frees."""

from __future__ import annotations

import ctypes
from typing import Final

# The numbers are of malloc.h (glibc). 32 MiB is the most that it accepts for the second.
_TRIM: Final = (-1, 64 << 20)
_MAP: Final = (-3, 32 << 20)
_ADVISED: Final = 30 << 20


def keep_freed_memory() -> bool:
    """Let malloc keep 64 MiB that were freed, in huge pages, and take blocks of up to 32 MiB from them (mallopt(3)).

    For processes that sum vectors round after round: by itself glibc gives memory of megabytes back to the system when
    it is freed, and each page of the next vector is cleared anew, which costs a silo up to a tenth of its time in a sum
    of a million parameters. Vectors of more than 32 MiB go back as before.

    Returns:
        Whether malloc does; there is no such call but in glibc.
    """
    # Not at the top: each command's --help would load it.
    import numpy as np

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    kept = all(mallopt(*setting) == 1 for setting in (_TRIM, _MAP))
    # numpy asks the kernel for huge pages for what it allocates, and what malloc keeps of it stays so, for byte strings
    # as well. Nothing is written, so this takes no memory.
    blocks = [np.empty(_ADVISED, dtype=np.uint8) for _ in range(2)] if kept else []
    del blocks
    return kept
