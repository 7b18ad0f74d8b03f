"""durastore in a loop of your own: `python examples/own_loop/loop.py [BUCKET [SPOOL]]`, as often as you like."""

import sys
from pathlib import Path

import numpy as np

import durastore


def states_of(text: str) -> dict[str, np.ndarray]:
    """Stands for your model: one vector a character."""
    codes = np.array([ord(letter) for letter in text], dtype=np.float32)
    return {"hidden_states": np.outer(codes, np.arange(8, dtype=np.float32))}


bucket, spool = (*sys.argv[1:], "./build/own-loop/bucket", "./build/own-loop/spool")[:2]
if "://" not in bucket:
    Path(bucket).mkdir(parents=True, exist_ok=True)
# A folder on the same disk is no second copy, so nothing may be freed; with a real bucket leave `reclaim` out.
reclaim = "lazy" if "://" in bucket else "never"
rows = [(f"poem/{number}", f"line number {number}") for number in range(20)]

with durastore.open(bucket, local=spool, reclaim=reclaim, run={"model": "characters", "layers": [0]}) as store:
    missing = [(sample_id, text) for sample_id, text in rows if sample_id not in store]
    for sample_id, text in missing:
        store.put(sample_id, states_of(text), meta={"text": text})
    store.flush()  # all of it is proven and in the bucket's manifest

with durastore.Dataset(bucket) as dataset:
    shape = dataset["poem/7"].tensors["hidden_states"].shape
    sys.stdout.write(f"{len(missing)} made, {len(dataset)} in the bucket, poem/7 is {tuple(shape)}\n")
