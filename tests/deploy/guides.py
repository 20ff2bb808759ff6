# SPDX-License-Identifier: Apache-2.0
"""The pages for operators, as tests read them: sections with blocks of commands, tables, inline code.

A block of `sh` is run: by guides_test.py, in the order of the page. What needs a cluster or a container
runtime is in blocks of `console`, behind `$ `, and is looked at only.
"""
import pathlib
import re
from dataclasses import dataclass, field

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = REPOSITORY / "deploy"
PAGES = [DEPLOY / name for name in ("operating.md", "large_models.md", "from_vllm.md", "from_llama_server.md")]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")


@dataclass
class Block:
    language: str
    commands: list  # one a line, with the lines that a backslash joins


@dataclass
class Section:
    title: str
    text: str  # without its blocks
    blocks: list = field(default_factory=list)

    def code(self):
        return CODE.findall(self.text)

    def tables(self):
        """Rows of cells, without the two lines of each header."""
        for lines in re.findall(r"(?:^\|.*\n?)+", self.text, re.M):
            yield [cells(line) for line in lines.splitlines()[2:]]


def cells(line):
    """Bars that a backslash or code protects are no borders."""
    parts = re.split(r"(`[^`]*`|\\\|)", line.strip().strip("|"))
    marked = "".join(part if part.startswith(("`", "\\")) else part.replace("|", "\0")
                     for part in parts)
    return [cell.strip() for cell in marked.split("\0")]


def commands(text):
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def sections(page):
    text = page.read_text()
    for part in re.split(r"^(?=#{1,2} )", text, flags=re.M):
        if not part.strip():
            continue
        title, _, body = part.partition("\n")
        section = Section(title.strip("# "), FENCE.sub("", body))
        for language, content in FENCE.findall(body):
            section.blocks.append(Block(language, commands(content)))
        yield section


def section(page, title):
    found = [each for each in sections(page) if each.title == title]
    assert len(found) == 1, f"{page.name}: {len(found)} sections are called {title}"
    return found[0]
