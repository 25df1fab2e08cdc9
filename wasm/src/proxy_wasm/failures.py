"""What is done about an exception in the filter's own code."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from proxy_wasm import log, pairs
from proxy_wasm.binding import bound
from proxy_wasm.metrics import Counter

if TYPE_CHECKING:
    from proxy_wasm.contexts import HttpContext

exceptions = Counter("proxy_wasm_exceptions")
"""How many exceptions the filter's callbacks raised."""

_MOST_BYTES = 6000
_MOST_CAUSES = 4
_FIRST_FRAMES, _LAST_FRAMES = 4, 16
_TEXT_CHARACTERS = 1000
_GRPC_INTERNAL = 13
_MESSAGE = b"internal error in a filter"
_JSON = b'{"error":"internal error in a filter"}'
_JSON_HEADERS = pairs.encode([(b"content-type", b"application/json")])
_DETAILS = b"proxy_wasm_exception"


def report(error: BaseException, where: str, context_id: int) -> None:
    """Logs the exception with its traceback as one message of bounded length, and counts it. Never raises."""
    try:
        log.error(f"exception in {where} of context {context_id}:\n{describe(error)}")
    except BaseException:
        log.error(f"exception in {where} of context {context_id}, which cannot be described")
    try:
        exceptions.increment()
    except Exception:
        log.error("the exception could not be counted")


def describe(error: BaseException) -> str:
    """The traceback as Python writes it, without source lines, which are not there at run time; in at most 6000 bytes.

    Not by the module `traceback`: it would bring the tokenizer and the reader of source files into the module.
    """
    parts: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(link))
        lines = _frames(link.__traceback__)
        lines.append(_summary(link))
        parts.insert(0, "\n".join(lines))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    text = "\nand then:\n".join(parts)
    # The end is what tells most: the last error's own line and the frames next to it.
    return text if len(text) <= _MOST_BYTES else "..." + text[-_MOST_BYTES:]


def refuse(context: HttpContext[Any]) -> bool:
    """Answers the client with status 500, in the protocol it speaks. False when it has been answered already."""
    host = bound.host
    if context._local_response_sent or context._response_started or int.from_bytes(host.get_property(b"response\0code") or b"", "little"):
        return False
    content_type = host.get_property(b"request\0headers\0content-type") or b""
    if content_type.startswith(b"application/grpc"):
        status = host.send_local_response(500, _DETAILS, _MESSAGE, pairs.EMPTY, _GRPC_INTERNAL)
    else:
        status = host.send_local_response(500, _DETAILS, _JSON, _JSON_HEADERS, -1)
    context._local_response_sent = status == 0
    return status == 0


def _frames(traceback: TracebackType | None) -> list[str]:
    first: list[str] = []
    last: list[str] = []
    left_out = 0
    while traceback is not None:
        code = traceback.tb_frame.f_code
        line = f"  {code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}"
        if len(first) < _FIRST_FRAMES:
            first.append(line)
        else:
            last.append(line)
            if len(last) > _LAST_FRAMES:
                del last[0]
                left_out += 1
        traceback = traceback.tb_next
    return [*first, *([f"  ... {left_out} more ..."] if left_out else []), *last]


def _summary(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except BaseException:
        text = "its text cannot be had"
    if len(text) > _TEXT_CHARACTERS:
        text = text[:_TEXT_CHARACTERS] + "..."
    return f"{name}: {text}" if text else name
