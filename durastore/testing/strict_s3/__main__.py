"""The server as a program: `python -m durastore.testing.strict_s3 --port 0 --script FILE|-`.

Duty: start, say on the first line of stdout where and with which keys it answers (JSON), serve until told to stop or
until the process that started it is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import InvalidInput
from durastore.testing.strict_s3.control import ControlListener
from durastore.testing.strict_s3.rules import Rule, parse_rules
from durastore.testing.strict_s3.server import HOST, S3Listener
from durastore.testing.strict_s3.service import Service
from durastore.testing.strict_s3.sigv4 import Signer
from durastore.testing.strict_s3.storage import REGION

_WATCH_S = 0.25


def main() -> int:
    """Run the server; returns once the parent is gone."""
    options = _parser().parse_args()
    parent = os.getppid() if options.parent is None else options.parent
    access_key, secret_key = "DS" + secrets.token_hex(9).upper(), secrets.token_urlsafe(30)
    service = Service(Signer(access_key, secret_key, region=REGION))
    service.rules.write(_load_rules(options.script))
    for name in options.bucket:
        service.storage.make_bucket(name)
    token = secrets.token_urlsafe(32)
    listener, control = S3Listener(service, port=options.port), ControlListener(service, token=token)
    listener.start()
    control.start()
    hello = {
        "endpoint_url": f"http://{HOST}:{listener.port}",
        "access_key": access_key,
        "secret_key": secret_key,
        "region": REGION,
        "control_port": control.port,
        "control_token": token,
    }
    sys.stdout.write(json.dumps(hello) + "\n")
    sys.stdout.flush()
    # Polled, because the kernel's parent-death signal is bound to the thread that started us, not to its process.
    while os.getppid() == parent:
        SYSTEM_CLOCK.sleep(_WATCH_S)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m durastore.testing.strict_s3", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--script", default="", help="a JSON file of rules, or - for stdin")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket; can be repeated")
    parser.add_argument("--parent", type=int, default=None, help="end with this process instead of the starting one")
    return parser


def _load_rules(script: str) -> tuple[Rule, ...]:
    if not script:
        return ()
    text = sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
    try:
        return parse_rules(text)
    except InvalidInput as exc:
        sys.exit(f"{script}: {exc}")


if __name__ == "__main__":
    sys.exit(main())
