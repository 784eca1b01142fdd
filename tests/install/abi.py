# SPDX-License-Identifier: Apache-2.0
"""tests: writes tests/install/abi.c, which compiles and links only where the C ABI is what it was.

`python3 tests/install/abi.py` adds what the headers have more; lines that are there never change.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("abi.c")
HEADERS = ("vpmm.h", "tags.h", "emm.h")
# Never grow: elements of arrays, and plain bytes. The others begin with their size.
FROZEN = ("vpmm_region", "vpmm_block", "vpmm_chunk", "vpmm_ipc_handle", "vpmm_emm_block")
INCLUDES = "".join(f"#include <vpmm/{name}>\n" for name in HEADERS)


def text_of(headers: Path) -> str:
    text = "".join((headers / "vpmm" / name).read_text() for name in HEADERS)
    return re.sub(
        r"\s+", " ", re.sub(r"/\*.*?\*/", "", re.sub(r"^ *#.*$", "", text, flags=re.MULTILINE), flags=re.DOTALL)
    )


def structs(text: str) -> dict[str, list[str]]:
    """The fields of each, in order."""
    found = {}
    for name, body in re.findall(r"\bstruct (\w+) \{(.*?)\}", text):
        fields = (
            re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?$", field.strip()) for field in body.split(";") if field.strip()
        )
        found[name] = [field.group(1) or field.group(2) for field in fields if field]
    return found


def enumerators(text: str) -> list[str]:
    bodies = re.findall(r"\benum(?: \w+)? \{(.*?)\}", text)
    return [name for body in bodies for name in re.findall(r"(\w+)(?: = [^,]+)?(?:,|$)", body.strip())]


def macros(headers: Path) -> list[str]:
    """Expressions of those that have a value; of one with a parameter, its value for one argument. A text is compared
    with the one that it is."""
    text = "".join((headers / "vpmm" / name).read_text() for name in HEADERS)
    found = re.findall(r"^#define (VPMM_(?!VERSION_|API\b)\w+)(\(\w+\))? +(\S+)", text, flags=re.MULTILINE)
    return [
        f"__builtin_strcmp({name}, {value})" if value.startswith('"') else f"{name}(25)" if parameter else name
        for name, parameter, value in found
    ]


def functions(text: str) -> list[str]:
    return [f"{declaration.strip()});" for declaration in re.findall(r"VPMM_API ([^;]*?)\);", text)]


def callbacks(text: str) -> list[str]:
    """Redeclarations of functions have only their names."""
    return re.findall(r"typedef [^;{}]*\(\*\w+\)\([^;]*\);", text)


def values(headers: Path, expressions: list[str]) -> list[int]:
    """What a compiler makes of them."""
    lines = "".join(f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "values.c"), Path(folder, "values")
        source.write_text(f"#include <stdio.h>\n{INCLUDES}int main(void) {{\n{lines}}}\n")
        subprocess.run(["cc", "-w", f"-I{headers}", str(source), "-o", str(program)], check=True)
        output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in output.splitlines()]


def promises(headers: Path) -> Iterator[str]:
    """The lines that hold of these headers."""
    text = text_of(headers)
    asked = {f"VALUE({expression}": [expression] for expression in enumerators(text) + macros(headers)}
    for name, fields in structs(text).items():
        for field in fields:
            asked[f"FIELD({name}, {field}"] = [
                f"offsetof(struct {name}, {field})",
                f"sizeof(((struct {name}*)0)->{field})",
            ]
        if name in FROZEN:
            asked[f"VALUE(sizeof(struct {name})"] = [f"sizeof(struct {name})"]
    found = iter(values(headers, [expression for each in asked.values() for expression in each]))
    for line, expressions in asked.items():
        yield f"{line}, {', '.join(str(next(found)) for _ in expressions)});"
    yield from functions(text)
    yield from callbacks(text)


def lines_of(file: str) -> list[str]:
    lists = file.split("// the list\n", 1)[1].split("typedef void (*address)", 1)[0]
    return [f"{' '.join(line.split())};" for line in lists.split(";") if line.strip()]


def source(lines: list[str]) -> str:
    """Redeclared with another type, a function or callback is an error of the compiler; a missing one of the linker."""
    holds = "\n".join(line for line in lines if line.startswith(("VALUE", "FIELD")))
    declared = "\n".join(
        fill(line, 100, subsequent_indent="    ") for line in lines if not line.startswith(("VALUE", "FIELD"))
    )
    used = "".join(f"  (address){name},\n" for name in re.findall(r"\b(vpmm_\w+)\((?!\*)", declared))
    return f"""/* SPDX-License-Identifier: Apache-2.0 */
/* tests: the C ABI of version 0; tests/install/abi.py writes this. */
/* clang-format off */
#include <stddef.h>
{INCLUDES}
#define VALUE(expression, value) _Static_assert(expression == value, #expression)
#define FIELD(type, field, offset, bytes) \\
  _Static_assert(offsetof(struct type, field) == offset && \\
                 sizeof(((struct type*)0)->field) == bytes, #type "." #field)
// the list

{holds}

{declared}

typedef void (*address)(void);
static const address all[] = {{
{used}}};
int main(void) {{
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i] == NULL) return 1;
  return 0;
}}
"""


def main() -> None:
    kept = lines_of(FILE.read_text()) if FILE.exists() else []
    added = [line for line in promises(ROOT / "include") if line not in kept]
    FILE.write_text(source(kept + added))
    print(f"{len(kept)} lines, {len(added)} added")


if __name__ == "__main__":
    main()
