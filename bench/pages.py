"""Memory in huge pages for large vectors, for both sides of a comparison.

numpy asks the kernel for huge pages from 4 MiB on. A vector of a million reals or 64-bit integers gets them, one of a
million 32-bit words, of 3.8 MiB, just not, and bytes never do. glibc's tunable asks for all of the heap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "GLIBC_TUNABLES"
TUNABLE: Final = "glibc.malloc.hugetlb=1"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str] | None:
    """The environment that asks for them; none if it says already what malloc is to do, or if that is not glibc's."""
    if not sys.platform.startswith("linux") or VARIABLE in environment:
        return None
    return {**environment, VARIABLE: TUNABLE}


def restart_with_huge_pages() -> None:
    """Begin this process anew with them: malloc reads its settings once. Children inherit them."""
    environment = with_huge_pages(os.environ)
    if environment is not None:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606  the command line of this very process
