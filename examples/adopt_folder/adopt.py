"""Old files of a script become samples that count as done: `python examples/adopt_folder/adopt.py [FILES] [MODEL]`.

MODEL is a folder with a model of at least 28 layers and its tokeniser; by default a small real one from a package.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.fsio.folder import Folder
from durastore_cli.main import run

LAYERS = (2, 15, 27)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    work = Path(tempfile.mkdtemp(prefix="adopt-"))
    model = Path(sys.argv[2]) if len(sys.argv) > 2 else _unpacked(find_model(), work / "model")
    with Folder.open(work) as folder:
        prompts = write_prompts(folder, count=count)
    old = work / "old"
    _write_old_files(old, model, prompts=prompts)
    damaged = old / "rows_0-2000" / "data_1.pt"
    damaged.write_bytes(damaged.read_bytes()[:1_000])
    layers = ",".join(map(str, LAYERS))
    (work / "run.toml").write_text(f'[extract]\nmodel = "{model}"\nlayers = "{layers}"\n', encoding="utf-8")
    with SeaweedServer.start(work / "server", log=work / "log") as server:
        os.environ.update(server.environment())
        os.environ["DURASTORE_SEAL_AGE_S"] = "1"
        where = ["--bucket", f"s3://{server.make_bucket()}/states", "--endpoint-url", server.endpoint_url]
        where += ["--local", str(work / "spool")]
        adopt = ["adopt", str(old), "--as-samples", "--run", str(work / "run.toml"), "--data", str(prompts), *where]
        _type("what would be adopted?", *adopt, "--dry-run")
        _type("adopt it", *adopt)
        extract = ["extract", str(prompts), "--model", str(model), "--layers", layers, "--batch-tokens", "1024", *where]
        _type("only the damaged one is extracted", *extract)
        _type("all of them are there", "ls", *where[:4])
        sys.stdout.write(f"all of it stays in {work}\n")


def _unpacked(model: Path, folder: Path) -> Path:
    """The model as a folder, which is read much quicker than its `.gguf` file."""
    os.environ["TQDM_DISABLE"] = "1"  # before torch, which imports tqdm
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    settings = {"gguf_file": model.name, "dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    AutoModelForCausalLM.from_pretrained(model.parent, **settings).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(folder)
    return folder


def _write_old_files(folder: Path, model: Path, *, prompts: Path) -> None:
    """What a short script with torch.save leaves: `rows_0-2000/data_<row>.pt`, states after three of the layers."""
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    target = folder / "rows_0-2000"
    target.mkdir(parents=True)
    for number, line in enumerate(prompts.read_text(encoding="utf-8").splitlines()):
        ids = tokenizer(json.loads(line)["prompt"], return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            states = network.model(input_ids=ids, output_hidden_states=True).hidden_states
        stacked = torch.stack([states[layer][0] for layer in LAYERS], dim=1)
        torch.save({"input_ids": ids[0], "hidden_states": stacked}, target / f"data_{number}.pt")


def _type(why: str, *command: str) -> None:
    sys.stdout.write(f"\n# {why}\n$ durastore {' '.join(command)}\n")
    sys.stdout.flush()
    code = run(command)
    sys.stdout.write(f"exit code {code}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
