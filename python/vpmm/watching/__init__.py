# SPDX-License-Identifier: Apache-2.0
# vpmm: watching a recording while it is written: `vpmm top`.

from __future__ import annotations

from vpmm.watching.figures import Figures
from vpmm.watching.follower import Follower
from vpmm.watching.frame import frame
from vpmm.watching.processes import NotRecorded, recording_of

__all__ = ["Figures", "Follower", "NotRecorded", "frame", "recording_of"]
