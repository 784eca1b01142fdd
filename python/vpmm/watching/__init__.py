# SPDX-License-Identifier: Apache-2.0
# vpmm: watching a program while it runs, in its recording or by its answers: `vpmm top`.

from __future__ import annotations

from vpmm.watching.asking import NoAnswer, ask
from vpmm.watching.figures import Figures
from vpmm.watching.follower import Follower
from vpmm.watching.frame import frame
from vpmm.watching.processes import NotRecorded, recording_of
from vpmm.watching.sources import Recorded, Source, source_of

__all__ = [
    "Figures",
    "Follower",
    "NoAnswer",
    "NotRecorded",
    "Recorded",
    "Source",
    "ask",
    "frame",
    "recording_of",
    "source_of",
]
