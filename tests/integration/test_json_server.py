"""Asking a model server: an answer is whole and in time, or it is none."""

from __future__ import annotations

import http.client
import threading
import time

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import EngineFailed
from durastore.extract.json_server import AskAgain, JsonServer, Unusable
from tests.integration.model_servers import JsonHandler, serving


class _Server(JsonHandler):
    """What it does is in the path."""

    def do_GET(self) -> None:
        kind = self.path.strip("/")
        if kind.isdecimal():
            self.answer({"error": "no"}, status=int(kind))
        elif kind == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b'{"a": 1}')
            self.close_connection = True
        elif kind == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(100):
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return
                time.sleep(0.05)
        elif kind == "text":
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")
        elif kind == "closing":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b'{"a": 1}')
            self.close_connection = True
        elif kind == "hang":
            self.waits_for_hang_up()
        else:
            self.answer({"path": self.path})


@pytest.mark.parametrize(
    "path, error, said",
    [
        ("/400", Unusable, "400"),
        ("/404", Unusable, "404"),
        ("/429", AskAgain, "429"),
        ("/500", AskAgain, "500"),
        ("/503", AskAgain, "503"),
        ("/401", EngineFailed, "credentials"),
        ("/cut", AskAgain, "IncompleteRead"),
        ("/drip", AskAgain, "no answer in"),
        ("/text", AskAgain, "not JSON"),
    ],
)
def test_what_is_no_answer_is_told_by_what_to_do(path: str, error: type[Exception], said: str) -> None:
    with serving(_Server) as url, pytest.raises(error, match=said):
        JsonServer(url, clock=SYSTEM_CLOCK).get(path, timeout_s=0.5 if path == "/drip" else 20.0)


def test_an_answer_that_is_closed_with_its_last_byte_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.13 does it: the socket is closed then, too."""
    read1 = http.client.HTTPResponse.read1

    def closing(response: http.client.HTTPResponse, n: int = -1) -> bytes:
        data = read1(response, n)
        if response.length == 0:
            response.close()
        return data

    monkeypatch.setattr(http.client.HTTPResponse, "read1", closing)
    with serving(_Server) as url:
        assert JsonServer(url, clock=SYSTEM_CLOCK).get("/closing", timeout_s=20.0) == {"a": 1}


def test_paths_go_below_the_address() -> None:
    with serving(_Server) as url:
        assert JsonServer(f"{url}/below/", clock=SYSTEM_CLOCK).get("/x", timeout_s=20.0) == {"path": "/below/x"}


def test_whoever_waits_is_woken_by_a_hang_up() -> None:
    reasons: list[str] = []
    with serving(_Server) as url:
        server = JsonServer(url, clock=SYSTEM_CLOCK)

        def ask() -> None:
            try:
                server.get("/hang", timeout_s=600.0)
            except AskAgain as exc:
                reasons.append(str(exc))

        thread = threading.Thread(target=ask)
        thread.start()
        while not server._open:
            time.sleep(0.01)
        server.hang_up()
        thread.join()
    assert len(reasons) == 1
    assert "no answer" in reasons[0]
