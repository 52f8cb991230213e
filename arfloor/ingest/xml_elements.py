"""Elements of a foreign XML with their line numbers, read so that a hostile file can do no harm.

Entities are never expanded and nothing external is fetched (defusedxml); text, depth and number of
elements are bounded. A file that breaks off or breaks its syntax gives what stood before the break.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler

from defusedxml.common import DefusedXmlException
from defusedxml.sax import make_parser

from arfloor.ingest.outside import IngestError, Warned, bounded, one_line

_PLAIN_DOCTYPE = re.compile(r"<!DOCTYPE[^<>\[\]&%]{1,300}>")

MAX_DEPTH = 64
MAX_ELEMENTS = 50_000
MAX_ATTRIBUTE = 4_096


@dataclass(slots=True)
class Element:
    """One element: its tag, attributes, line, and the elements within it."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def get(self, name: str) -> str:
        """An attribute without surrounding space, the empty string when it is missing."""
        return self.attributes.get(name, "").strip()

    def walk(self) -> Iterator[Element]:
        """This element and all within it, in the order of the file."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    def find(self, tag: str) -> list[Element]:
        """All elements of that tag within this one."""
        return [e for e in self.walk() if e.tag == tag and e is not self]


class _Builder(ContentHandler):
    def __init__(self, line: Callable[[], int | None]) -> None:
        super().__init__()
        self.root = Element("", {}, 0)
        self.stack = [self.root]
        self.count = 0
        self.line = line

    def startElement(self, name: str, attrs: Any) -> None:
        line = self.line() or 0
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.stack) > MAX_DEPTH:
            limit = f"{MAX_ELEMENTS} elements" if self.count > MAX_ELEMENTS else f"a depth of {MAX_DEPTH}"
            raise IngestError(f"line {line}: more than {limit}, which no machine has")
        attributes = {k: v[:MAX_ATTRIBUTE] for k, v in attrs.items()}
        element = Element(name, attributes, line)
        self.stack[-1].children.append(element)
        self.stack.append(element)

    def endElement(self, name: str) -> None:
        self.stack.pop()


def read_elements(text: str, what: str) -> tuple[Element, list[Warned]]:
    """The elements of an XML text under one nameless root, and what could not be read.

    Raises IngestError when nothing could be read, when it declares an entity, or when it is too large.
    """
    text = bounded(text, what)
    start, end = text.find("<"), text.rfind(">")
    if start < 0 or end < start:
        raise IngestError(f"not {what}: expected XML, found no tag")
    # hwloc names its DTD; a DOCTYPE that declares nothing itself is blanked rather than refused
    text = _PLAIN_DOCTYPE.sub(lambda m: "\n" * m[0].count("\n"), text, count=1)
    start, end = text.find("<"), text.rfind(">")
    skipped = text.count("\n", 0, start)
    parser = make_parser()
    builder = _Builder(parser.getLineNumber)
    parser.setContentHandler(builder)
    warned: list[Warned] = []
    try:
        parser.feed(text[start : end + 1].encode("utf-8", errors="replace").decode("utf-8"))
        parser.close()
    except DefusedXmlException as error:
        raise IngestError(
            f"not {what}: it declares an entity or points outside itself ({type(error).__name__}), "
            "which is never followed"
        ) from error
    except SAXParseException as error:
        line = (error.getLineNumber() or 0) + skipped
        text = f"the XML breaks here ({one_line(error.getMessage())}); what stood before is read"
        warned.append(Warned(line=line, text=text))
    except (SAXException, ValueError, LookupError) as error:
        raise IngestError(f"not {what}: the XML cannot be read ({one_line(error)})") from error
    if not builder.root.children:
        where = f" ({warned[0]})" if warned else ""
        raise IngestError(f"not {what}: expected XML, found no element{where}")
    for element in builder.root.walk():
        element.line += skipped
    return builder.root, warned
