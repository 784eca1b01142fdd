# SPDX-License-Identifier: Apache-2.0
"""Which programs there are; free of PyTorch, so that who starts them need not load it."""

from __future__ import annotations

from typing import NamedTuple


class Steps(NamedTuple):
    warmup: int  # before those whose time counts
    measured: int
    module: str = "programs"  # that has the function of the program's name


PROGRAMS = {
    "gpt": Steps(10, 40),
    "checkpointing": Steps(6, 24),
    "moe": Steps(8, 32),
    "gnn": Steps(10, 60),
    "unet": Steps(15, 60),
    "bert": Steps(10, 35),
    "rl": Steps(2, 6),
    "serve": Steps(2, 6),
    "turns": Steps(3, 12),
    "vision": Steps(10, 40),
    "lora": Steps(8, 40),
    "tiles": Steps(15, 60),
    "series": Steps(8, 40),
    "points": Steps(15, 80),
    "chat": Steps(20, 60, "more_programs"),
    "volumes": Steps(8, 32, "more_programs"),
    "recommender": Steps(15, 75, "more_programs"),
    "sweep": Steps(12, 48, "more_programs"),
    "folding": Steps(6, 26, "fresh_programs"),
    "atoms": Steps(8, 32, "fresh_programs"),
    "offload": Steps(6, 26, "fresh_programs"),
    "adapters": Steps(8, 32, "fresh_programs"),
    "bands": Steps(8, 28, "fresh_programs"),
}
