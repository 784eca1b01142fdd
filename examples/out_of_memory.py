# SPDX-License-Identifier: Apache-2.0
"""Runs out of memory, for docs/guides/debugging-oom.md. Needs no GPU with VPMM_DRIVER=sim."""

import vpmm

MIB = 1 << 20
COMPUTE, COPY = 1, 2  # the legacy default stream, and the default stream of this thread


def main() -> None:
    pool = vpmm.configure(capacity=64 * MIB)
    pool.allocate(20 * MIB, COMPUTE)  # weights
    batches = [pool.allocate(5 * MIB, COPY) for _ in range(6)]
    for batch in batches[::2]:
        pool.deallocate(batch, COPY)
    try:
        pool.allocate(40 * MIB, COMPUTE)  # activations
    except vpmm.OutOfMemoryError as error:
        print(error)


if __name__ == "__main__":
    main()
