# SPDX-License-Identifier: Apache-2.0
"""fuzz tests: readers in Python of files that somebody else wrote.

Each target takes any bytes, and ends with a recording or BadFile; anything else is a finding. What is read goes on into
the report and the other formats, which may refuse it with ValueError. Of an answer to `vpmm top` a picture is made.

    PYTHONPATH=build/dev/python python tests/fuzz/readers.py TARGET [atheris' and libFuzzer's arguments]

`./dev fuzz` runs it so. tests/python/test_fuzz.py reads the corpus, and changed forms of it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from vpmm import _vpmm, reporting
from vpmm.convert import memory_viz, perfetto, rmm, torch_snapshot
from vpmm.convert import nsight as nsight_systems
from vpmm.recordings import BadFile, Recording, binary, comma_separated
from vpmm.reporting.facts import summary
from vpmm.watching import NoAnswer, asking, frame, sources

CORPUS = Path(__file__).parent / "corpus"
BLOCK = struct.Struct("<IIIII")
BLOCK_MAGIC = 0x42525056
_PROCESS = 4711  # that is said to answer


def use(recording: Recording) -> None:
    """Does what commands do with a recording."""
    for attempt in (report, perfetto_file, viewer_file, recording_again):
        try:
            attempt(recording)
        except (ValueError, OverflowError):
            continue


def report(recording: Recording) -> None:
    stories = reporting.stories_of(recording)
    reporting.text_of_gpus(stories, 80)
    reporting.page_of_gpus(stories)
    for story in stories:
        summary(story)


def perfetto_file(recording: Recording) -> None:
    perfetto.write(recording, io.BytesIO())


def viewer_file(recording: Recording) -> None:
    memory_viz.write(recording, io.BytesIO())


def recording_again(recording: Recording) -> None:
    again = binary.decode(binary.encode(recording), "again")
    assert again.events == recording.events, "what is written is read back"


def of_blocks(data: bytes) -> bytes:
    """A recording's file of blocks: a byte of the kind, three of the length, the contents."""
    file = [binary.MAGIC]
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 1 : at + 4], "little")
        content = data[at + 4 : at + 4 + size]
        stored = _vpmm.compress(content)
        file.append(BLOCK.pack(BLOCK_MAGIC, data[at], len(stored), len(content), zlib.crc32(stored)) + stored)
        at += 4 + size
    return b"".join(file)


def recorded_blocks(data: bytes) -> None:
    use(binary.decode(of_blocks(data), "input"))


def trace_file(data: bytes) -> None:
    use(binary.decode(data, "input") if binary.is_binary(data) else comma_separated.decode(data, "input"))


def rmm_log(data: bytes) -> None:
    use(rmm.read(data, "input"))


def snapshot(data: bytes) -> None:
    recording = torch_snapshot.read(data, "input")
    use(recording)


def nsight(data: bytes) -> None:
    """SQLite reads files alone."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(data)
        file.flush()
        use(nsight_systems.read(Path(file.name)))


def top_answer(data: bytes) -> None:
    asked = sources.Asked(_PROCESS, asking._read(_PROCESS, data))
    asked.catch_up(0)
    for width in (40, 100):
        lines = frame(asked.recording, asked.figures, asked.name, history=[0, asked.figures.live_bytes], width=width)
        assert all(len(line) <= width for line in lines), "lines fit"
        assert all(line.isprintable() for line in lines), "an answer commands no terminal"


TARGETS: dict[str, Callable[[bytes], None]] = {
    "nsight": nsight,
    "recorded_blocks": recorded_blocks,
    "rmm_log": rmm_log,
    "snapshot": snapshot,
    "top_answer": top_answer,
    "trace_file": trace_file,
}


def run(target: str, data: bytes) -> None:
    """Reads one input. Raises what is a finding."""
    with contextlib.suppress(BadFile, NoAnswer):
        TARGETS[target](data)


def corpus_of(target: str) -> Iterator[bytes]:
    for path in sorted((CORPUS / target).iterdir()):
        yield path.read_bytes()


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: readers.py {'|'.join(TARGETS)} [arguments of libFuzzer]")
    target = sys.argv.pop(1)
    atheris = importlib.import_module("atheris")
    for name in [name for name in sys.modules if name.startswith("vpmm.")]:
        module = sys.modules[name]
        for key, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", None) == name and hasattr(value, "__code__"):
                setattr(module, key, atheris.instrument_func(value))
    atheris.Setup(sys.argv, lambda data: run(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
