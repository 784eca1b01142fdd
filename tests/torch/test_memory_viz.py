# SPDX-License-Identifier: Apache-2.0
"""tests: PyTorch's own tool reads the snapshots that `vpmm convert` writes, and `vpmm convert` those of PyTorch."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from sim_gpu_case import ABSENT, MIB, SimGpuCase

from vpmm import convert
from vpmm.convert import viewer_rules
from vpmm.recordings import Event, Kind, Recording

if importlib.util.find_spec("torch"):
    from torch.cuda import _memory_viz

DATA = Path(__file__).resolve().parents[1] / "data"
NO_TORCH = "" if importlib.util.find_spec("torch") else "torch not installed"


def as_is(lines: str) -> str:
    """Instead of a picture, which needs a script from the network."""
    return lines


def written(recording: Recording) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out.pickle")
        convert.save(recording, path)
        shown = pickle.loads(path.read_bytes())
    assert isinstance(shown, dict)
    return shown


@unittest.skipIf(NO_TORCH, NO_TORCH)
class PytorchsTool(unittest.TestCase):
    def shown(self) -> list[dict[str, Any]]:
        chunks = [Event(Kind.MAP, at, 0x7F0000000000 + at * 2 * MIB, 2 * MIB, 1) for at in range(3)]
        ours = Recording(
            events=[*chunks, Event(Kind.ALLOCATE, 5, 0x7F0000000000, 3 * MIB, stream=0)], streams={0: "0x10"}
        )
        names = ("native", "oom")
        return [written(convert.load(DATA / f"snapshot-{name}.pickle.gz")) for name in names] + [written(ours)]

    def test_segments_memory_and_a_comparison_are_drawn(self) -> None:
        first, second, ours = self.shown()
        for snapshot in (first, second, ours):
            self.assertEqual(_memory_viz.segments(snapshot, as_is).count("seg_") > 0, True)
            self.assertIn("active_allocated", _memory_viz.memory(snapshot, as_is))
        self.assertIn("train.py", _memory_viz.memory(first, as_is))
        self.assertIn("only_after", _memory_viz.compare(first["segments"], second["segments"], as_is))

    def test_the_accounts_of_its_summary_balance(self) -> None:
        for snapshot in self.shown():
            text = _memory_viz.segsum(snapshot)
            self.assertIn("total_reserved: ", text)
        self.assertIn("total_reserved: 6.0MiB\ntotal_allocated: 3.0MiB\n", text)

    def test_a_trace_is_told_to_its_end(self) -> None:
        _, failing, ours = self.shown()
        self.assertIn("raise OutOfMemoryError # 250.2MiB requested", _memory_viz.trace(failing))
        self.assertIn("= seg_0[0:3.0MiB]", _memory_viz.trace(ours))

    def test_pages_with_plots_hold_the_snapshot(self) -> None:
        for snapshot in self.shown():
            for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
                self.assertGreater(len(plot(snapshot)), 1000)

    def test_it_says_the_same_of_a_snapshot_and_of_what_came_back(self) -> None:
        for name in ("native", "oom"):
            path = DATA / f"snapshot-{name}.pickle.gz"
            original, ours = pickle.loads(gzip.decompress(path.read_bytes())), written(convert.load(path))
            for told in (_memory_viz.memory, _memory_viz.segments):
                lost = set(told(original, as_is).splitlines()) ^ set(told(ours, as_is).splitlines())
                self.assertEqual([line for line in sorted(lost) if "inactive" not in line], [])
            self.assertEqual(_memory_viz.segsum(ours), _memory_viz.segsum(original))


class Snapshots(SimGpuCase):
    """Of PyTorch's native allocator, on the simulated GPU."""

    def test_what_pytorch_recorded_is_read_whole(self) -> None:
        import torch

        kept = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")]
        torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
        try:
            kept += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 5 * MIB, 30 * MIB)]
            del kept[1]
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "snapshot.pickle")
                torch.cuda.memory._dump_snapshot(str(path))
                recording = convert.load(path)
                (theirs,) = (trace for trace in pickle.loads(path.read_bytes())["device_traces"] if trace)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        calls = [(Kind(event.kind).name, event.bytes) for event in recording.events if event.bytes < 40 * MIB]
        self.assertIn(("LIVE", 3 * MIB), calls)
        for call in (("ALLOCATE", 1000), ("ALLOCATE", 5 * MIB), ("ALLOCATE", 30 * MIB), ("FREE", 1000)):
            self.assertIn(call, calls)
        self.assertIn(
            Path(__file__).name, {Path(frame.file).name for stack in recording.stacks.values() for frame in stack}
        )
        shown = written(recording)
        self.assertEqual(viewer_rules.broken(shown), [])
        (ours,) = (trace for trace in shown["device_traces"] if trace)
        actions = [each["action"] for each in theirs if each["action"] != "snapshot"]
        self.assertEqual([each["action"] for each in ours], actions)


if __name__ == "__main__":
    sys.exit(ABSENT or unittest.main())
