# vpmm: the verbs of the command line, a module each: `add_parser(verbs)` sets `run`, which returns the exit code.
