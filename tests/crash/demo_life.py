"""`durastore demo` with a diary of every sample forwarded and acknowledged. Usage: demo_life.py DIARY ARG..."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from durastore.extract.rows import TokenRow
from durastore.extract.transformers_engine import TransformersEngine
from durastore.store.store import Store
from durastore_cli.main import run


def main() -> int:
    diary = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    plain_extract, plain_put = TransformersEngine.extract, Store.put

    def extract(self: TransformersEngine, batch: Sequence[TokenRow]) -> Any:
        os.write(diary, "".join(f"forward {row.sample_id}\n" for row in batch).encode())
        return plain_extract(self, batch)

    def put(self: Store, sample_id: str, tensors: Any, **facts: Any) -> Any:
        ticket = plain_put(self, sample_id, tensors, **facts)
        os.write(diary, f"acknowledged {sample_id}\n".encode())
        return ticket

    setattr(TransformersEngine, "extract", extract)  # noqa: B010 - mypy refuses a plain assignment to a method
    setattr(Store, "put", put)  # noqa: B010
    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
