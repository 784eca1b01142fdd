#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions of src that two of the calls in docs/walk-of-an-allocation.md enter.

    cmake -S . -B build/plain -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O0 -g1"
    cmake --build build/plain --target libvpmm.so
    python3 tools/functions_entered.py build/plain/libvpmm.so [--list]

One is a request of 64 MiB up to the first driver call of its plan, where of four pieces of 24 MiB two are free. The
other is a warm pair of a bound stream: a free of 1 KiB and a request of as much. valgrind counts, in a build without
inlining, so that accessors count as functions, too. Not counted: the driver layer, the standard library's templates,
constructors, destructors, operators and lambdas. Run by hand; nothing depends on it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

PROGRAM = """
#include <stdlib.h>
#include "vpmm/vpmm.h"
static void check(vpmm_status status) { if (status != 0) exit(1); }
void request(vpmm_pool* pool, void** p) { check(vpmm_allocate(pool, 64u << 20, NULL, p)); }
static void change(vpmm_bound_stream* stream, void** p) {
  check(vpmm_bound_deallocate(stream, *p));
  check(vpmm_bound_allocate(stream, 1024, 0, p));
}
void pair(vpmm_bound_stream* stream, void** p) { change(stream, p); }
int main(void) {
  vpmm_pool* pool;
  vpmm_bound_stream* stream;
  void *pieces[4], *small, *p;
  check(vpmm_default_pool(0, &pool));
  for (int i = 0; i < 4; ++i) check(vpmm_allocate(pool, 24u << 20, NULL, &pieces[i]));
  check(vpmm_deallocate(pool, pieces[0], NULL));
  check(vpmm_deallocate(pool, pieces[2], NULL));
  request(pool, &p);
  check(vpmm_stream_bind(pool, NULL, &stream));
  check(vpmm_bound_allocate(stream, 1024, 0, &small));
  for (int i = 0; i < 3; ++i) change(stream, &small);
  pair(stream, &small);
  return 0;
}
"""
FIRST_CALL = "vpmm::driver::sim::SimDriver::mem_create*"
# Function of the program that is counted, and where the count ends.
CALLS = {"64 MiB": ("request", [f"--dump-before={FIRST_CALL}"]), "warm pair": ("pair", [])}
LEFT_OUT = ("vpmm::driver", "vpmm::HostAllocator", "vpmm::FromHostMemory", "vpmm::Result", "vpmm::FunctionRef")


def plain_name(signature: str) -> str:
    """The qualified name, without arguments, template arguments and the number of a recursion."""
    text = re.sub(r"'\d+$", "", signature).replace("(anonymous namespace)", "anonymous")
    name, depth = "", 0
    for letter in text:
        if letter == "(" and depth == 0:
            break
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter != ">":
            name += letter
    return name.split()[-1] if name.split() else ""


def is_counted(name: str) -> bool:
    is_ours = name.startswith("vpmm") and not name.startswith(LEFT_OUT) and name.count("::") != 1
    return is_ours and "operator" not in name and not re.search(r"::~|::(\w+)::\1$", name)


def entered(call: str, library: Path, include: Path) -> tuple[set[str], int]:
    """Names of the functions that one of CALLS enters, and its instructions."""
    function, until = CALLS[call]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "program.c"), Path(folder, "program")
        source.write_text(PROGRAM)
        link = [f"-I{include}", f"-L{library.parent}", "-lvpmm", f"-Wl,-rpath,{library.resolve().parent}"]
        subprocess.run(["cc", str(source), "-o", str(program), *link], check=True)
        command = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += [f"--toggle-collect={function}", *until, str(program)]
        subprocess.run(command, check=True, env=os.environ | {"VPMM_DRIVER": "sim"}, stderr=subprocess.DEVNULL)
        dumps = sorted(Path(folder).glob("out*"), key=lambda path: int(path.suffix[1:] or 0))
        for text in map(Path.read_text, dumps):
            instructions = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if instructions and int(instructions[1]) > 0:
                break
        else:
            raise SystemExit(f"{call}: nothing was counted")
    names = dict(re.findall(r"^c?fn=\((\d+)\) (.+)$", text, re.MULTILINE))
    called = {names[number] for number in re.findall(r"^fn=\((\d+)\)", text, re.MULTILINE)}
    plain = {plain_name(name) for name in called if "{lambda" not in name}
    return {name for name in plain if is_counted(name)}, int(instructions[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="libvpmm.so of a build without inlining")
    parser.add_argument("--include", type=Path, default=Path(__file__).parent.parent / "include")
    parser.add_argument("--list", action="store_true", help="print their names, too")
    options = parser.parse_args()
    for call in CALLS:
        names, instructions = entered(call, options.library, options.include)
        if options.list:
            print("\n".join(sorted(names)))
        print(f"{call}: {len(names)} functions, {instructions} instructions")


if __name__ == "__main__":
    main()
