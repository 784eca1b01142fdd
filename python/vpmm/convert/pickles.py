# SPDX-License-Identifier: Apache-2.0
# vpmm: reads pickles as data, dictionaries, lists, numbers and texts: never imports, calls or looks up anything.

from __future__ import annotations

from vpmm import _vpmm
from vpmm.recordings import BadFile


def loads(data: bytes, name: str) -> object:
    """The object in a pickle of protocol 2 to 5 that holds only plain data. Raises BadFile for any other."""
    try:
        return _vpmm.read_pickle(data)
    except ValueError as error:
        reason, offset = error.args
        raise BadFile(name, offset, reason) from None
