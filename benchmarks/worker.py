"""The conversation between the benchmark and its workers: JSON lines on stdin and stdout.

A worker announces what it can do, then times one job at a time when asked. Several workers are
alive together and asked in turn, so that all of them see the same noise of the machine. This file
is also imported by peers in virtual environments of their own: standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

Job = Callable[[], object]
"""Does the work once and returns only when it is finished."""


def serve(jobs: dict[str, Callable[[], Job]], facts: dict[str, object]) -> None:
    """Answer requests until stdin closes. A job is prepared, compiled and warmed up once, when first asked for."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # whatever libraries print must not mix with the replies
    ready: dict[str, Job] = {}

    def reply(content: dict[str, object]) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    reply({"jobs": list(jobs), "facts": facts})
    for line in sys.stdin:
        request = json.loads(line)
        name, repeats = request["job"], request["repeats"]
        try:
            if name not in ready:
                ready[name] = jobs[name]()
                for _ in range(3):
                    ready[name]()
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                ready[name]()
                seconds.append(time.perf_counter() - start)
            reply({"seconds": seconds, "peak_bytes": peak_memory()})
        except Exception as e:
            reply({"error": f"{type(e).__name__}: {e}"})


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
