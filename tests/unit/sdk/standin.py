"""Stands in for a service: `python standin.py NAME [--diary FILE] [--http PORT] [--stubborn] [--exit CODE] [--say LINE]`.

It writes its name to the diary when it is told to stop, and answers every HTTP request with 200.
"""

import argparse
import http.server
import os
import signal
import socketserver
import threading

arguments = argparse.ArgumentParser()
arguments.add_argument("name")
arguments.add_argument("--diary")
arguments.add_argument("--http", type=int)
arguments.add_argument("--stubborn", action="store_true")
arguments.add_argument("--exit", type=int)
arguments.add_argument("--say", default="")
given = arguments.parse_args()

stop = threading.Event()


def told(*_: object) -> None:
    if not given.stubborn:
        stop.set()


signal.signal(signal.SIGTERM, told)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


if given.say:
    print(given.say, flush=True)
if given.exit is not None:
    raise SystemExit(given.exit)
if given.http:
    socketserver.TCPServer.allow_reuse_address = True
    server = http.server.ThreadingHTTPServer(("127.0.0.1", given.http), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
print('{"level": "info", "event": "serving"}', flush=True)
stop.wait()
if given.diary:
    file = os.open(given.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{given.name}\n".encode())
