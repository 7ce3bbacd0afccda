"""A local server that speaks the Messages API over HTTP, as scripted: answers, and faults.

It refuses what the API refuses of current models, keeps a prompt cache, and counts usage by kind, so that a client
which is wrong about any of these is told so. A token stands for four bytes here.
"""

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

MODEL = "claude-sonnet-5-5"
_ids = count(1)


# What a script is made of


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def thinking(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": f"signed:{words}"}


def use(tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": tool, "input": given}


def edit(old: str, new: str, **more: Any) -> dict[str, Any]:
    return use("str_replace", old_str=old, new_str=new, **more)


def submit(hypothesis: str = "a higher rate learns faster", category: str = "learning rate", expected: float = -0.01):
    return use("submit_proposal", hypothesis=hypothesis, category=category, expected_bpb=expected)


def answer(*blocks: dict[str, Any], stop: str | None = None, **more: Any) -> dict[str, Any]:
    """A message; `usage={…}` replaces what the server would count, `stop_details={…}` and the like are added."""
    uses = any(block["type"] == "tool_use" for block in blocks)
    return {"content": [*blocks], "stop_reason": stop or ("tool_use" if uses else "end_turn"), **more}


class Fault:
    """An answer that is no message."""

    def __init__(self, status: int = 0, body: Any = None, **headers: str) -> None:
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def error(status: int, message: str = "as scripted", **headers: str) -> Fault:
    kind = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}.get(status, "api_error")
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return Fault(status, body, **headers)


DROP = Fault()
"""The connection is closed without an answer."""
HANG = Fault()
"""Nothing comes until the server is closed."""
TRICKLE = Fault(200)
"""A blank every tenth of a second, as some servers send to keep a connection, until the server is closed."""
GARBAGE = Fault(200, b"<html>a proxy's page</html>")

Scripted = dict[str, Any] | Fault | Callable[[dict[str, Any]], Any]


class MessagesServer:
    """Answers requests in order by a script; a last entry that is a list is repeated for ever.

    Args:
        script: answers and faults, or functions of a request's body that return one.
    """

    def __init__(self, *script: Scripted | list[Scripted]) -> None:
        self._script = [*script]
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._cache: set[str] = set()
        self._paused: list[dict[str, Any]] | None = None
        self.requests: list[dict[str, Any]] = []
        """Bodies, in order."""
        self.headers: list[dict[str, str]] = []
        self.usages: list[dict[str, Any]] = []
        """That were served."""
        self.refused: list[str] = []
        """Why requests were answered with status 400."""
        self.arrived = threading.Semaphore(0)
        """Released once for each request."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._serve(self)

            def log_message(self, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def say(self, *script: Scripted | list[Scripted]) -> None:
        """Append to the script."""
        with self._lock:
            self._script += script

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        request = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self._lock:
            self.requests.append(request)
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            done = self._next(request)
        self.arrived.release()
        if handler.path != "/v1/messages":
            done = error(404, f"no {handler.path}")
        if done is HANG:
            self._closed.wait()
        if done in (HANG, DROP):
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if done is TRICKLE:
            self._trickle(handler)
            return
        status, headers, body = (done.status, done.headers, done.body) if isinstance(done, Fault) else (200, {}, done)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(raw)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(raw)

    def _trickle(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        with contextlib.suppress(OSError):  # the other side has enough
            while not self._closed.wait(0.1):
                handler.wfile.write(b" ")
        handler.close_connection = True

    def _next(self, request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        prefilled = last["role"] == "assistant" and last["content"] != self._paused
        if problem := refusal(request) or (prefilled and "This model does not support assistant message prefill."):
            self.refused.append(problem)
            return error(400, problem)
        if not self._script:
            return error(400, "the script is at its end")
        step = self._script[0]
        if isinstance(step, list):
            step = step[0]
        else:
            self._script.pop(0)
        if callable(step):
            step = step(request)
        if isinstance(step, Fault):
            return step
        self._paused = step["content"] if step["stop_reason"] == "pause_turn" else None
        usage = step.get("usage", self._usage(request, step))
        self.usages.append(usage)
        return {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": request["model"],
                "stop_sequence": None, **step, "usage": usage}  # fmt: skip

    def _usage(self, request: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
        """Tokens by kind: read as far as a prefix is cached, written up to the last mark, the rest plain input."""
        blocks = [*request.get("tools", []), *_system(request)]
        blocks += [block for message in request["messages"] for block in _blocks(message)]
        sizes, hashes, marks = [], [], []
        digest = hashlib.sha256()
        for at, block in enumerate(blocks):
            raw = json.dumps({key: value for key, value in block.items() if key != "cache_control"}).encode()
            digest.update(raw)
            sizes.append(tokens(raw))
            hashes.append(digest.hexdigest())
            if "cache_control" in block:
                marks.append((at, block["cache_control"].get("ttl", "5m")))
        last = marks[-1][0] if marks else -1
        read_to = max((at for at in range(last + 1) if hashes[at] in self._cache), default=-1)
        written = {"5m": 0, "1h": 0}
        start = read_to + 1
        for at, ttl in marks:
            if at >= start:
                written[ttl] += sum(sizes[start : at + 1])
                start = at + 1
            self._cache.add(hashes[at])
        return {
            "input_tokens": sum(sizes[last + 1 :]),
            "output_tokens": tokens(json.dumps(step["content"]).encode()),
            "cache_read_input_tokens": sum(sizes[: read_to + 1]),
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {
                "ephemeral_5m_input_tokens": written["5m"],
                "ephemeral_1h_input_tokens": written["1h"],
            },
        }


def tokens(raw: bytes) -> int:
    return -(-len(raw) // 4)


def _system(request: dict[str, Any]) -> list[dict[str, Any]]:
    system = request.get("system", [])
    return [text(system)] if isinstance(system, str) else system


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


def refusal(request: dict[str, Any]) -> str:
    """Why the API would answer with status 400; "" where it would not."""
    for name in ("model", "max_tokens", "messages"):
        if name not in request:
            return f"{name}: field required"
    for name in ("temperature", "top_p", "top_k"):
        if name in request:
            return f"{name} is not supported for this model"
    if request.get("thinking", {}).get("type") in ("enabled", "disabled"):
        return '"thinking.type.enabled" is not supported for this model'
    if request.get("tool_choice", {}).get("type") in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    if request["max_tokens"] < 1:
        return "max_tokens: must be positive"
    return _marks_refused(request) or _messages_refused(request["messages"])


def _marks_refused(request: dict[str, Any]) -> str:
    blocks = [*request.get("tools", []), *_system(request)]
    blocks += [block for message in request["messages"] for block in _blocks(message)]
    ttls = [block["cache_control"].get("ttl", "5m") for block in blocks if "cache_control" in block]
    if len(ttls) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(ttls)}."
    return "a ttl of 1h must come before one of 5m" if ttls != sorted(ttls) else ""


def _messages_refused(messages: list[dict[str, Any]]) -> str:
    open_uses: set[str] = set()
    for message in messages:
        blocks = _blocks(message)
        if not blocks:
            return "messages: all messages must have non-empty content"
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return "messages: text content blocks must be non-empty"
        results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if results != open_uses:
            return f"`tool_use` ids {open_uses} need `tool_result` blocks in the next message, found {results}"
        open_uses = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return ""
