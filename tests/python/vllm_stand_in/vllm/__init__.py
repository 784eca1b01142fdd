# SPDX-License-Identifier: Apache-2.0
"""tests: a stand-in for vLLM: the parts of its sleep mode that an allocator and a backend meet, version by version.

STAND_IN_VLLM names the newest part that this process has; it then has those before it, too.
"""

from __future__ import annotations

import os

PARTS = {
    "class": "0.9.2",  # the worker asks the class of the allocator
    "function": "0.24.0",  # the worker asks a function, and there is a protocol
    "backends": "0.26.0",  # the worker asks a sleep-mode backend, by name
    "discard": "0.28.0",  # tags can be discarded alone
    "graphs": "0.32.0",  # graphs may sleep, and tags of vLLM's own always wake
    "hooks": "none so far",  # registrations of a tag's memory are told of a sleep
}
"""Each part, and the first version of vLLM that was read and has it."""


def has(part: str) -> bool:
    names = list(PARTS)
    return names.index(part) <= names.index(os.environ.get("STAND_IN_VLLM", names[-1]))
