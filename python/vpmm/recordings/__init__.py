# SPDX-License-Identifier: Apache-2.0
# vpmm: recordings of a pool as objects: read and written in the binary format and in CSV.

from __future__ import annotations

from vpmm.recordings.file import encode, read, write
from vpmm.recordings.model import BadFile, DriverCall, Event, Frame, Kind, Numbers, Recording

__all__ = ["BadFile", "DriverCall", "Event", "Frame", "Kind", "Numbers", "Recording", "encode", "read", "write"]
