# SPDX-License-Identifier: Apache-2.0
"""Runs named cases of the current folder's unittest suites until one fails; without a name it prints all names.

A case that is skipped has failed: where nothing works any more, suites skip all.
"""

import sys
import unittest


def show(tests: unittest.TestSuite) -> None:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            show(test)
        else:
            print("case", test.id())


if __name__ == "__main__":
    tests = unittest.defaultTestLoader.discover(".")  # all: some add folders with suites of the same names to sys.path
    if not sys.argv[1:]:
        show(tests)
        sys.exit()
    result = unittest.main(module=None, failfast=True, exit=False).result
    for test, reason in result.skipped:
        print(f"FAIL: skipped ({test.id()}), {reason}")
    sys.exit(0 if result.wasSuccessful() and not result.skipped else 1)
