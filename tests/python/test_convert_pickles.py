# SPDX-License-Identifier: Apache-2.0
"""tests: pickles as data."""

from __future__ import annotations

import os
import pickle
import unittest

from vpmm.convert.pickles import loads
from vpmm.recordings import BadFile

from convert_case import mutations, real_snapshot

VALUES = {
    "numbers": [0, 1, 255, 256, 65535, 65536, -1, -(1 << 31), 1 << 40, 1 << 63, (1 << 64) - 1, -(1 << 70), 0.5],
    "texts": ["", "a", "ä" * 300, "x" * 70_000],
    "others": [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, {"a": {"b": []}}, b"bytes"],
    "many": [{"at": at} for at in range(3000)],
}


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch /tmp/vpmm-was-here",))


class Pickles(unittest.TestCase):
    def reason(self, data: bytes) -> str:
        with self.assertRaises(BadFile) as raised:
            loads(data, "x.pickle")
        return str(raised.exception)

    def test_what_python_writes_is_read_back_in_protocols_2_to_5(self) -> None:
        for protocol in range(3, 6):
            self.assertEqual(loads(pickle.dumps(VALUES, protocol), "x"), VALUES, protocol)
        plain = VALUES | {"others": VALUES["others"][:-1]}  # which are called into being in protocol 2
        self.assertEqual(loads(pickle.dumps(plain, 2), "x"), plain)

    def test_one_object_that_is_named_twice_is_one_object(self) -> None:
        frames = [{"line": 1}]
        read = loads(pickle.dumps([frames, frames], 4), "x")
        assert isinstance(read, list)
        self.assertIs(read[0], read[1])

    def test_a_list_that_holds_itself_does_no_harm(self) -> None:
        knot: list[object] = []
        knot.append(knot)
        read = loads(pickle.dumps(knot, 4), "x")
        assert isinstance(read, list)
        self.assertIs(read[0], read)

    def test_code_is_never_run_and_is_named(self) -> None:
        for protocol, name in ((2, "GLOBAL"), (4, "STACK_GLOBAL")):
            self.assertRegex(self.reason(pickle.dumps([Runs()], protocol)), rf"^x.pickle:\d+: .*run code \({name}\)")
        for opcode in (b"R", b"b", b"o", b"i", b"\x81", b"\x92", b"Q", b"P", b"\x82", b"\x83", b"\x84"):
            self.assertIn("would run code", self.reason(b"\x80\x04]" + opcode + b"."))
        self.assertFalse(os.path.exists("/tmp/vpmm-was-here"))

    def test_errors_name_file_and_offset(self) -> None:
        for data, reason in (
            (b"", "x.pickle:0: the pickle is cut"),
            (b"\x80\x04", "x.pickle:2: the pickle is cut"),
            (b"\x80\x01.", "x.pickle:1: pickle protocol 1 is none of 2 to 5"),
            (b"\x80\x04.", "x.pickle:2: the pickle ends with other than one object"),
            (b"\x80\x04]](.", "x.pickle:5: the pickle ends with other than one object"),
            (b"\x80\x04h\x07.", "x.pickle:2: the pickle refers to what it has not defined"),
            (b"\x80\x04a....", "x.pickle:2: the pickle takes more than it has put down"),
            (b"\x80\x04Ne....", "x.pickle:3: the pickle takes more than it has put down"),
            (b"\x80\x04N(Ne....", "x.pickle:5: the pickle appends to a NoneType"),
            (b"\x80\x04]NNs....", "x.pickle:5: the pickle puts a key into a list"),
            (b"\x80\x04}NNs....", "x.pickle:5: a NoneType is the key of a dictionary: only texts may be"),
            (b"\x80\x04}(Nu....", "x.pickle:5: a key has no value"),
            (b"\x80\x04X\xff\xff\xff\xffabc", "x.pickle:7: the pickle is cut"),
            (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc", "x.pickle:11: the pickle is cut"),
            (b"\x80\x04\xff.", "x.pickle:2: 0xff is no opcode for data"),
        ):
            self.assertEqual(self.reason(data), reason)

    def test_a_pickle_with_any_bytes_changed_is_read_or_refused(self) -> None:
        refused = 0
        small = pickle.dumps(VALUES["others"], 4) + b"padding"
        for data in (*mutations(small, 3000, 1), *mutations(real_snapshot("native")[:4000], 300, 2)):
            try:
                loads(data, "x")
            except BadFile as error:
                self.assertRegex(str(error), r"^x:\d+: ")
                refused += 1
        self.assertGreater(refused, 1000)


if __name__ == "__main__":
    unittest.main()
