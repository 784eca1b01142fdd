# SPDX-License-Identifier: Apache-2.0
# vpmm: what a file seems to be that is no recording, for the errors that refuse it.

from __future__ import annotations

import re

READ = (
    "a recording of VPMM, binary or CSV; a snapshot of PyTorch (pickle of protocol 2 to 5); a log of RMM; a database "
    "of Nsight Systems"
)
_BEGINNINGS = (
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data: decompress it first"),
    (b"BZh", "bzip2 data: decompress it first"),
    (b"\xfd7zXZ\0", "xz data: decompress it first"),
    (b"PK\x03\x04", "a ZIP archive, as torch.save and numpy.savez write"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"%PDF", "a PDF document"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
    (b"NSYS", "a report of Nsight Systems: export it first, nsys export --type sqlite"),
)
_OLD_PICKLE = re.compile(rb"\A(?:[(\]}]|[(]?[dlt]p?\d*\n|[(](?:d|l)p0\n|\}q|\]q)")
_TEXTS = (
    (re.compile(r"(?i)<!doctype html|<html"), "an HTML page; `vpmm report` writes such pages"),
    (re.compile(r"<\?xml|<svg"), "an XML file"),
)


def seems_to_be(head: bytes) -> str:
    """Names a file by its first bytes, for people."""
    if not head:
        return "an empty file"
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "a pickle"
    if _is_json(head):
        return "JSON, as a trace of Perfetto or Chrome" if b'"traceEvents"' in head else "JSON"
    if _OLD_PICKLE.match(head):
        return "a pickle of protocol 0 or 1: write it anew with protocol 2 or higher"
    text = head.decode("utf-8", "ignore")
    for pattern, kind in _TEXTS:
        if pattern.match(text.lstrip()):
            return kind
    if b"\0" in head or len(text.encode()) < len(head) - 3:
        return "binary data of an unknown kind"
    first = text.partition("\n")[0].strip()
    return f"text that begins with `{first[:60]}`"


# Python's pickles of protocol 0 begin with brackets too; what follows differs.
def _is_json(head: bytes) -> bool:
    return re.match(rb'\s*(?:\{\s*(?:"|\}|\Z)|\[\s*(?:[\[{"\]\d-]|\Z|true|false|null))', head) is not None


def refusal(head: bytes) -> str:
    """The reason for refusing a file: what it seems to be, and what is read."""
    return f"this is {seems_to_be(head)}, not a recording. Read are: {READ}"
