# SPDX-License-Identifier: Apache-2.0
# vpmm: the verbs of the command line, a module each: `add_parser(verbs)` sets `run`, which returns the exit code.
