# SPDX-License-Identifier: Apache-2.0
"""The reference of the C and C++ headers: a page for each group of them, in their order, from what Doxygen read.

Doxygen parses; this lays out. A heading stands for each class and each function, declarations that share a comment
share a heading, and plain structs and enums are shown as the header has them.
"""

from __future__ import annotations

import html
import itertools
import re
import subprocess
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
XML = ROOT / "build/doxygen/xml"
FOLDER = "docs/reference/api"
# Pages: name, title, headers.
PAGES = [
    ("vpmm_h", "C: vpmm.h", ["vpmm.h", "tags.h"]),
    (
        "vpmm_hpp",
        "C++: vpmm.hpp",
        [
            f"{name}.hpp"
            for name in "vpmm pool stream_ref arena enums buffer guards ipc_handle result".split()
            + "recording cuda_mr rmm_mr".split()
        ],
    ),
    ("emm_h", "C: emm.h", ["emm.h"]),
    (
        "emm_hpp",
        "C++: emm.hpp",
        [f"emm/{name}.hpp" for name in "memory manager managers context plugin ipc driver".split()],
    ),
]
SECTION = re.compile(r"^/\* --- (.+?) ---(.*?)\*/|^// --- (.+?) ---$", re.MULTILINE | re.DOTALL)
LEFT_OUT = ("=delete", "=default")  # and the macro that only exports
EXPORTS = "VPMM_API"


@dataclass
class Item:
    """A declaration: `code` as readers see it, `text` its comment in Markdown, `members` those of a class."""

    header: str
    line: int
    name: str
    code: str
    text: str = ""
    is_behind: bool = False  # the comment stands behind it, on its line
    is_aggregate: bool = False
    members: list[Item] = field(default_factory=list)


# --- from Doxygen's XML to items --------------------------------------------------------------------------------------


def source(header: str) -> list[str]:
    return (INCLUDE / header).read_text().splitlines()


def introduction(header: str) -> str:
    """The comment that the header begins with."""
    lines = [re.sub(r"^(// ?|/\* ?| \* ?| \*/$)", "", line) for line in source(header)]
    text = "\n".join(lines[: next(index for index, line in enumerate(lines) if line.startswith("#"))])
    text = re.sub(r"(?<!\n)\n- ", r"\n\n- ", re.sub(r"^\w+: ", "", text), count=1)
    return text[0].upper() + text[1:].rstrip(" */\n")


def escaped(text: str) -> str:
    return re.sub(r"([\[\]*`])", r"\\\1", html.escape(text, quote=False))


def plain(text: str) -> str:
    return html.unescape(re.sub(r"\\(?=[\[\]*`])", "", text))


def inline(node: ElementTree.Element) -> str:
    """A paragraph or a part of one, without the blocks in it."""
    parts = [escaped(node.text or "")]
    for child in node:
        if child.tag == "computeroutput":
            parts.append(f"`{''.join(child.itertext())}`")
        elif child.tag not in ("itemizedlist", "orderedlist", "verbatim"):
            parts.append(inline(child))
        parts.append(escaped(child.tail or ""))
    return "".join(parts)


def description(node: ElementTree.Element) -> str:
    blocks: list[str] = []
    for para in [*node.findall("briefdescription/para"), *node.findall("detaileddescription/para")]:
        blocks.append(" ".join(inline(para).split()))
        for entries in [*para.findall("itemizedlist"), *para.findall("orderedlist")]:
            texts = [" ".join(inline(part).split()) for entry in entries for part in entry.findall("para")]
            blocks.append("\n".join(f"- {text}" for text in texts))
    return "\n\n".join(block for block in blocks if block)


def place(node: ElementTree.Element) -> tuple[str, int]:
    location = node.find("location")
    assert location is not None
    return location.get("declfile", location.get("file", "")), int(location.get("declline", location.get("line", "0")))


def declaration(header: str, line: int, stops: str) -> str:
    """The source from that line to the first of the characters outside parentheses, as the header lays it out."""
    lines = source(header)
    first = line - 1
    while re.fullmatch(r"\s*template <.*|VPMM_API \w+", lines[first - 1]):  # the latter: a result on a line of its own
        first -= 1
    text = "\n".join(lines[first : line + 12])
    code = re.sub(r"//.*|/\*.*?\*/", lambda comment: " " * len(comment.group()), text).replace("::", "\0\0")
    depths = itertools.accumulate((letter == "(") - (letter == ")") for letter in code)
    end = next(index for index, depth in enumerate(depths) if depth == 0 and code[index] in stops)
    text = textwrap.dedent(text[:end].rstrip())
    return re.sub(r"\b(VPMM_API|inline) ", "", re.sub(r"^(VPMM_API \w+)\n", r"\1 ", text)) + ";"


def body(node: ElementTree.Element, header: str) -> str:
    """An enum or a struct as the header has it."""
    location = node.find("location")
    assert location is not None
    first, last = int(location.get("bodystart", "0")), int(location.get("bodyend", "0"))
    return textwrap.dedent("\n".join(source(header)[first - 1 : last]))


def member_item(node: ElementTree.Element) -> Item | None:
    header, line = place(node)
    name = node.findtext("name", "")
    if node.get("prot") != "public" or name == EXPORTS or (node.findtext("argsstring") or "").endswith(LEFT_OUT):
        return None
    is_enum = node.get("kind") == "enum"
    if source(header)[line - 1].startswith("}"):  # the typedef of a struct or an enum, which has an item of its own
        return None
    if is_enum:
        code = body(node, header)
    elif node.get("kind") == "define":
        code = source(header)[line - 1]
    else:
        code = declaration(header, line, "{;:" if node.get("kind") == "function" else ";")
    if is_enum and name.startswith("@"):
        name = node.findtext("enumvalue/name", "")
    is_behind = not is_enum and re.search(r"\S +(//|/\*) ", source(header)[line - 1]) is not None
    return Item(header, line, name, code, description(node), is_behind, is_aggregate=is_enum)


def class_item(node: ElementTree.Element) -> Item:
    header, line = place(node)
    name = re.sub(r"^vpmm::(emm::v1::)?", "", node.findtext("compoundname", ""))
    sections = [section for section in node.findall("sectiondef") if section.get("kind", "").startswith("public")]
    nodes = [member for section in sections for member in section.findall("memberdef")]
    item = Item(header, line, name, "", description(node))
    if (
        nodes
        and all(member.get("kind") == "variable" for member in nodes)
        and len(nodes) == len(list(node.iter("memberdef")))
    ):
        item.code, item.is_aggregate = body(node, header), True
        return item
    item.code = declaration(header, line, "{;")
    item.members = sorted(filter(None, map(member_item, nodes)), key=lambda member: member.line)
    return item


def items() -> list[Item]:
    """Everything public of all headers, once: Doxygen lists some of it with the file and with the namespace."""
    found: list[Item] = []
    for path in sorted(XML.glob("*.xml")):
        node = ElementTree.parse(path).getroot().find("compounddef")
        name = node.findtext("compoundname", "") if node is not None else ""
        if node is None or "detail" in name or name.startswith("std"):
            continue
        if node.get("kind") in ("class", "struct") and node.get("prot") == "public":
            found.append(class_item(node))
        elif node.get("kind") in ("file", "namespace"):
            found += filter(None, map(member_item, node.iter("memberdef")))
    return list({(item.header, item.line, item.name): item for item in found}.values())


# --- from items to pages ----------------------------------------------------------------------------------------------


def shares(last: Item, item: Item) -> bool:
    """Whether a declaration belongs under the heading of the one before it."""
    if last.is_aggregate or item.is_aggregate or item.members:
        return False
    return item.is_behind == last.is_behind if item.is_behind or last.is_behind else not item.text


def groups(members: Iterable[Item]) -> list[list[Item]]:
    """Declarations that share a comment: those without one follow the one that has it, with no line between them."""
    found: list[list[Item]] = []
    for item in members:
        last = found[-1][-1] if found else None
        lines = source(item.header)
        follows = last is not None and last.header == item.header and "" not in lines[last.line : item.line]
        if last is not None and follows and shares(last, item):
            found[-1].append(item)
        else:
            found.append([item])
    return found


class Page:
    """Writes one page; `links` has the address of every name."""

    def __init__(self, name: str, title: str, links: dict[str, str]) -> None:
        self.blocks = [f"# {title}"]
        self.name, self.links, self.anchors = name, links, set[str]()

    def linked(self, text: str) -> str:
        """With links from the names of C functions and types to their entries."""

        def link(match: re.Match[str]) -> str:
            address = self.links.get(match.group())
            return f"[{match.group()}]({address})" if address else match.group()

        return re.sub(r"\bvpmm_\w+\b", link, text)

    def add(self, *blocks: str) -> None:
        self.blocks += filter(None, blocks)

    def anchor(self, name: str) -> str:
        """An address on this page that nothing has yet, or none: overloads share the first one's."""
        anchor = re.sub(r"[^\w.~]+", "_", name)
        is_new = anchor not in self.anchors
        self.anchors.add(anchor)
        return anchor if is_new else ""

    def write_group(self, group: list[Item], level: int, owner: str = "") -> None:
        names = list(dict.fromkeys(item.name for item in group))
        first, *others = [anchor for name in names if (anchor := self.anchor(owner + name))] or [""]
        heading = "".join(f'<a id="{anchor}"></a>' for anchor in others) + ", ".join(f"`{name}`" for name in names)
        self.add(f"{'#' * level} {heading}" + (f" {{#{first}}}" if first else ""))
        code = [item.code + (f"  // {plain(item.text)}" if item.is_behind and item.text else "") for item in group]
        self.add("\n".join(["```cpp", *code, "```"]))
        self.add(*(self.linked(item.text) for item in group if not item.is_behind))
        for item in group:
            for members in groups(item.members):
                self.write_group(members, level + 1, f"{item.name}.")

    def write_header(self, header: str, first_title: str, found: list[Item]) -> None:
        self.add(f"## {first_title}", f"`#include <{header}>`", self.linked(introduction(header)))
        text = (INCLUDE / header).read_text()
        sections = [(text.count("\n", 0, match.end()) + 1, match) for match in SECTION.finditer(text)]
        for group in groups(sorted(found, key=lambda item: item.line)):
            while sections and sections[0][0] < group[0].line:
                section = sections.pop(0)[1]
                title = section.group(1) or section.group(3)
                self.add(
                    f"## {title[0].upper()}{title[1:]}",
                    self.linked(re.sub(r"^ \* ?", "", section.group(2) or "", flags=re.MULTILINE).strip()),
                )
            self.write_group(group, 3)


def pages() -> dict[str, str]:
    """Runs Doxygen. The pages by the path that they have among the documents."""
    XML.parent.mkdir(parents=True, exist_ok=True)  # doxygen makes one folder, not two
    subprocess.run(["doxygen", "tools/site/Doxyfile"], cwd=ROOT, check=True)
    found = items()
    links = {
        item.name: f"{name}.md#{item.name}"
        for name, _, headers in PAGES
        for item in found
        if item.header.removeprefix("vpmm/") in headers
    }
    texts = {}
    for name, title, headers in PAGES:
        page = Page(name, title, links)
        for header in (f"vpmm/{header}" for header in headers):
            title = header.removeprefix("vpmm/") if len(headers) > 1 else "Rules and types"
            page.write_header(header, title, [item for item in found if item.header == header])
        texts[f"{FOLDER}/{name}.md"] = "\n\n".join(page.blocks) + "\n"
    return texts
