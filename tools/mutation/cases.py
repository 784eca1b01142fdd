"""Runs named cases of the current folder's unittest suites until one fails; without a name it prints all names."""

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
    if sys.argv[1:]:
        unittest.main(module=None, failfast=True)
    show(tests)
