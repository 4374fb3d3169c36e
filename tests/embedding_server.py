"""OpenAI-compatible server of fake vectors, in a thread, that can misbehave on request."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from embedcache.keys import key_array
from embedcache.testing import FakeEncoder, fake_teacher

Answer = dict[str, Any]


@dataclass
class EmbeddingServer:
    """Server of one model; change its attributes while it runs.

    Attributes:
        url: base URL.
        seed: the model; those of two seeds have unrelated vectors.
        dimension: width of its vectors, unless a request asks for another.
        statuses: status, headers and whether the answer is cut, of the next requests; then all is well.
        change: changes each answer.
        is_float: answer with numbers in place of base64.
        requests: bodies received.
        headers: headers received.
    """

    url: str = ""
    seed: int = 0
    dimension: int = 8
    statuses: list[tuple[int, dict[str, str], bool]] = field(default_factory=list)
    change: Callable[[Answer], object] = lambda answer: None
    is_float: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def vectors(self, texts: list[str], dimension: int | None = None) -> np.ndarray:
        teacher = fake_teacher(dimension or self.dimension, seed=self.seed)
        return FakeEncoder(teacher)._vectors(key_array(texts))

    def texts(self) -> list[str]:
        """Return all texts received."""
        return [text for request in self.requests for text in request["input"]]

    def answer(self, request: dict[str, Any]) -> bytes:
        vectors = self.vectors(request["input"], request.get("dimensions"))
        data: list[Answer] = []
        for index, vector in enumerate(vectors):
            spelled = vector.tolist() if self.is_float else base64.b64encode(vector.tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": spelled})
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        answer = {"object": "list", "data": data, "model": request["model"], "usage": usage}
        self.change(answer)
        return json.dumps(answer).encode()


@contextmanager
def embedding_server(**settings: Any) -> Iterator[EmbeddingServer]:
    """Run a server while the block runs."""
    fake, lock = EmbeddingServer(**settings), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                fake.requests.append(request)
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, headers, is_cut = fake.statuses.pop(0) if fake.statuses else (200, {}, False)
            body = fake.answer(request) if status == 200 else b'{"error": {"message": "no"}}'
            self.send_response(status)
            for name, value in (headers | {"Content-Type": "application/json"}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
            self.close_connection = is_cut

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
