# SPDX-License-Identifier: Apache-2.0
# vpmm: reads pickles as data, dictionaries, lists, numbers and texts: never imports, calls or looks up anything.

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

from vpmm.recordings import BadFile

# Opcodes that would import, call or look something up, by their names in the error.
_CODE = {
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x63: "GLOBAL",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
}
_UNSIGNED_4 = struct.Struct("<I").unpack_from
_SIGNED_4 = struct.Struct("<i").unpack_from
_UNSIGNED_2 = struct.Struct("<H").unpack_from
_GET_1, _GET_4, _INT_1, _INT_2, _INT_4, _MARK = b"hjKMJ("
_LONG_1, _MEMOIZE = 0x8A, 0x94
_TEXT = {str}


class _Stop(Exception):  # noqa: N818  it is no error
    """The pickle's end."""


class _Reader:
    """A stack machine. Each opcode creates one object at most, so the length of the file bounds the cost."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 0  # behind the opcode and the part of its argument that was read
        self.stack: list[object] = []
        self.below: list[list[object]] = []  # the stacks under each mark
        self.memo: dict[int, object] = {}

    def fail(self, reason: str, at: int) -> NoReturn:
        raise BadFile(self.name, at, reason)

    # Nine of ten opcodes of a snapshot are of these eight kinds, which take no call.
    def load(self) -> object:
        data, memo, below, stack, at = self.data, self.memo, self.below, self.stack, 0
        start = 0
        try:
            while True:
                start = at
                opcode = data[at]
                at += 1
                if opcode == _GET_4:
                    stack.append(memo[_UNSIGNED_4(data, at)[0]])
                    at += 4
                elif opcode == _GET_1:
                    stack.append(memo[data[at]])
                    at += 1
                elif opcode == _LONG_1 and at + 1 + data[at] <= len(data):
                    end = at + 1 + data[at]
                    stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
                    at = end
                elif opcode == _INT_4:
                    stack.append(_SIGNED_4(data, at)[0])
                    at += 4
                elif opcode == _INT_1:
                    stack.append(data[at])
                    at += 1
                elif opcode == _INT_2:
                    stack.append(_UNSIGNED_2(data, at)[0])
                    at += 2
                elif opcode == _MEMOIZE:
                    memo[len(memo)] = stack[-1]
                elif opcode == _MARK:
                    below.append(stack)
                    stack = []
                else:
                    self.at, self.stack = at, stack
                    _TABLE[opcode](self)
                    at, stack = self.at, self.stack
        except _Stop:
            if len(self.stack) != 1 or self.below:
                self.fail("the pickle ends with other than one object", start)
            return self.stack[0]
        except (IndexError, struct.error) as error:
            is_cut = max(at, self.at) >= len(data) or isinstance(error, struct.error)
            reason = "the pickle is cut" if is_cut else "the pickle takes more than it has put down"
        except KeyError:
            reason = "the pickle refers to what it has not defined"
        return self.fail(reason, start)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            self.fail("the pickle is cut", self.at)
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def down_to_mark(self) -> list[object]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def fill_list(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            self.fail(f"the pickle appends to a {type(target).__name__}", self.at - 1)
        target.extend(items)

    # Keys are texts, whose hashes are unpredictable: no file can make them collide.
    def fill_dict(self, items: list[object]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            self.fail(f"the pickle puts a key into a {type(target).__name__}", self.at - 1)
        if len(items) % 2:
            self.fail("a key has no value", self.at - 1)
        keys = items[::2]
        if not _TEXT.issuperset(map(type, keys)):
            key = next(each for each in keys if type(each) is not str)
            self.fail(f"a {type(key).__name__} is the key of a dictionary: only texts may be", self.at - 1)
        target.update(zip(keys, items[1::2], strict=True))

    # --- opcodes ---

    def op_unknown(self) -> None:
        opcode = self.data[self.at - 1]
        if opcode in _CODE:
            self.fail(f"the pickle would run code ({_CODE[opcode]}), which is never done", self.at - 1)
        self.fail(f"{opcode:#04x} is no opcode for data", self.at - 1)

    def op_proto(self) -> None:
        version = self.number(1)
        if not 2 <= version <= 5:
            self.fail(f"pickle protocol {version} is none of 2 to 5", self.at - 1)

    def op_frame(self) -> None:
        if self.number(8) > len(self.data) - self.at:
            self.fail("the pickle is cut", self.at - 8)

    def op_stop(self) -> None:
        raise _Stop

    def op_long1(self) -> None:
        self.stack.append(int.from_bytes(self.take(self.number(1)), "little", signed=True))

    def op_binfloat(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def op_text(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)).decode("utf-8", "replace"))

    def op_bytes(self, width: int) -> None:
        self.stack.append(self.take(self.number(width)))

    def op_list(self) -> None:
        items = self.down_to_mark()
        self.stack.append(items)

    def op_tuple(self) -> None:
        items = self.down_to_mark()
        self.stack.append(tuple(items))

    def op_last(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def op_dict(self) -> None:
        items = self.down_to_mark()
        self.stack.append({})
        self.fill_dict(items)

    def op_append(self) -> None:
        self.fill_list([self.stack.pop()])

    def op_appends(self) -> None:
        self.fill_list(self.down_to_mark())

    def op_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.fill_dict([key, value])

    def op_setitems(self) -> None:
        self.fill_dict(self.down_to_mark())

    def op_put(self, width: int) -> None:
        self.memo[self.number(width)] = self.stack[-1]


_Opcode = Callable[[_Reader], None]
_OPCODES: dict[int, _Opcode] = {
    0x80: _Reader.op_proto,
    0x95: _Reader.op_frame,
    ord("."): _Reader.op_stop,
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(True),
    0x89: lambda reader: reader.push(False),
    0x8A: _Reader.op_long1,
    ord("G"): _Reader.op_binfloat,
    0x8C: lambda reader: reader.op_text(1),
    ord("X"): lambda reader: reader.op_text(4),
    0x8D: lambda reader: reader.op_text(8),
    ord("C"): lambda reader: reader.op_bytes(1),
    ord("B"): lambda reader: reader.op_bytes(4),
    0x8E: lambda reader: reader.op_bytes(8),
    ord("]"): lambda reader: reader.push([]),
    ord(")"): lambda reader: reader.push(()),
    ord("}"): lambda reader: reader.push({}),
    ord("l"): _Reader.op_list,
    ord("t"): _Reader.op_tuple,
    0x85: lambda reader: reader.op_last(1),
    0x86: lambda reader: reader.op_last(2),
    0x87: lambda reader: reader.op_last(3),
    ord("d"): _Reader.op_dict,
    ord("a"): _Reader.op_append,
    ord("e"): _Reader.op_appends,
    ord("s"): _Reader.op_setitem,
    ord("u"): _Reader.op_setitems,
    ord("q"): lambda reader: reader.op_put(1),
    ord("r"): lambda reader: reader.op_put(4),
}
_TABLE: list[_Opcode] = [_OPCODES.get(opcode, _Reader.op_unknown) for opcode in range(256)]


def loads(data: bytes, name: str) -> object:
    """The object in a pickle of protocol 2 to 5 that holds only plain data."""
    return _Reader(data, name).load()
