"""A web server on this machine that misbehaves on request."""

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GOOD = "good"


class Mirror:
    """Serves `files`; `moods` are used up one a request, then all is well.

    good, 500, 404; cut: half of the rest; wrong: other bytes; deaf: ignores Range; slow: half, then silence;
    astray: another range than asked for; mute: hangs up without an answer; endless: never stops;
    bare: no Content-Length; chunked: the body as one HTTP/1.1 chunk, cut in the middle.
    """

    def __init__(self, files: dict[str, bytes], *moods: str | int, always: str | int = GOOD, delay: float = 0.0):
        self.files, self.moods, self.always, self.delay = files, list(moods), always, delay
        self.requests: list[tuple[str, str | None]] = []
        self.guard = threading.Lock()
        self.over = threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # or clients do not look for chunks

            def do_GET(self):
                mirror.answer(self)

            def log_message(self, format, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "Mirror":
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name, asked = handler.path.rsplit("/", 1)[-1], handler.headers.get("Range")
        with self.guard:
            self.requests.append((name, asked))
            mood = self.moods.pop(0) if self.moods else self.always
        handler.close_connection = True
        if mood == "mute":
            return
        if isinstance(mood, int) or name not in self.files:
            handler.send_error(mood if isinstance(mood, int) else 404)
            return
        data = self.files[name]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and mood != "deaf" else 0
        if start and start >= len(data):
            handler.send_error(416)
            return
        if mood == "wrong":
            data = bytes(255 - byte for byte in data)
        body = data[start:]
        handler.send_response(206 if start else 200)
        if start:
            shown = start + 1 if mood == "astray" else start
            handler.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        if mood == "chunked":
            handler.send_header("Transfer-Encoding", "chunked")
        elif mood not in ("bare", "endless"):
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client had enough
            self.send(handler, body, mood)

    def send(self, handler: BaseHTTPRequestHandler, body: bytes, mood: str | int) -> None:
        half = (len(body) + 1) // 2
        if mood == "chunked":
            handler.wfile.write(b"%x\r\n" % len(body) + body[:half])
            return
        handler.wfile.write(body[:half])
        handler.wfile.flush()
        time.sleep(self.delay)
        if mood == "slow":
            self.over.wait(5)
        while mood == "endless" and not self.over.is_set():
            handler.wfile.write(body)
        if mood not in ("cut", "slow"):
            handler.wfile.write(body[half:])
