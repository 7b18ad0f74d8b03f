"""Train a small EAGLE-3-style draft head on states in a bucket: `python train.py --bucket B --model M --out DIR`.

The target model's own next-token distribution is what the head learns to guess, one token ahead, from the states of
three layers and the token that was chosen. The same command again goes on after a kill, in the middle of an epoch: from
the newest checkpoint in DIR, or where DIR is gone, from the newest one in the bucket.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader

import durastore

HEAD_FILE = "target-head.safetensors"
Tensors = dict[str, torch.Tensor]


class Draft(nn.Module):
    """Fused states and the next token's embedding -> one decoder layer -> logits over the draft's vocabulary."""

    def __init__(self, head: Tensors) -> None:
        super().__init__()
        size = head["embedding"].shape[1]
        self.fuse = nn.Linear(3 * size, size)
        self.join = nn.Linear(2 * size, size)
        self.layer = nn.TransformerEncoderLayer(
            size, nhead=max(1, size // 64), dim_feedforward=2 * size, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm = nn.RMSNorm(size)
        self.logits = nn.Linear(size, len(head["vocabulary"]), bias=False)
        with torch.no_grad():  # begin where the target ends
            self.logits.weight.copy_(head["lm_head"][head["vocabulary"]])

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        joined = self.join(torch.cat([self.fuse(states), embedded], dim=-1))
        mask = nn.Transformer.generate_square_subsequent_mask(joined.shape[1])
        logits: torch.Tensor = self.logits(self.norm(self.layer(joined, src_mask=mask, is_causal=True)))
        return logits


def collate(samples: list[durastore.Sample]) -> Tensors:
    """Padded to the longest: states of three layers, the last state, tokens, and which places count."""
    length = max(len(sample.tensors["input_ids"]) for sample in samples)
    parts: dict[str, list[torch.Tensor]] = {"states": [], "last": [], "tokens": [], "counts": []}
    for sample in samples:
        states = sample.tensors["hidden_states"].float()
        tokens = sample.tensors["input_ids"].long()
        pad = length - len(tokens)
        parts["states"].append(nn.functional.pad(states[:, :-1].flatten(1), (0, 0, 0, pad)))
        parts["last"].append(nn.functional.pad(states[:, -1], (0, 0, 0, pad)))
        parts["tokens"].append(nn.functional.pad(tokens, (0, pad)))
        parts["counts"].append(torch.arange(length) < len(tokens) - 1)
    return {name: torch.stack(found) for name, found in parts.items()}


def step_loss(draft: Draft, head: Tensors, batch: Tensors) -> tuple[torch.Tensor, float]:
    """Cross-entropy against the target's distribution over the draft's vocabulary; how often both choose the same."""
    counts = batch["counts"][:, :-1]
    embedded = head["embedding"][batch["tokens"][:, 1:]]
    logits = draft(batch["states"][:, :-1], embedded)[counts]
    with torch.no_grad():
        last = batch["last"][:, 1:][counts]
        normed = nn.functional.rms_norm(last, last.shape[-1:], head["norm"], float(head["eps"]))
        target = normed @ head["lm_head"].T
    wanted = target[:, head["vocabulary"]].softmax(-1)
    loss = -(wanted * logits.log_softmax(-1)).sum(-1).mean()
    is_same = head["vocabulary"][logits.argmax(-1)] == target.argmax(-1)
    return loss, float(is_same.float().mean())


# --- the target's head -----------------------------------------------------------------------------------------------


def target_head(out: Path, model: str, dataset: durastore.Dataset, *, vocabulary: int) -> Tensors:
    """Embedding, norm and output layer of the target, kept beside the checkpoints: no restart loads the model."""
    path = out / HEAD_FILE
    if not path.exists():
        os.environ.setdefault("TQDM_DISABLE", "1")
        from durastore.extract.layers import LayerPlan
        from durastore.extract.model_identity import resolve_model
        from durastore.extract.transformers_engine import ModelSettings, find_parts, load_model

        network = load_model(resolve_model(model), ModelSettings(dtype="float32", device="cpu"))
        layers = network.config.num_hidden_layers
        norm = find_parts(network, LayerPlan(indices=(layers,), num_layers=layers, is_last_normed=True)).norm
        seen = torch.cat([sample.tensors["input_ids"].long() for sample in dataset])
        common = torch.bincount(seen, minlength=network.config.vocab_size).argsort(descending=True)[:vocabulary]
        save_file(
            {
                "embedding": network.get_input_embeddings().weight.detach().clone(),
                "lm_head": network.get_output_embeddings().weight.detach().clone(),
                "norm": norm.weight.detach().clone(),
                "eps": torch.tensor(network.config.rms_norm_eps, dtype=torch.float64),
                "vocabulary": common.sort().values,
            },
            out / f"saving-{HEAD_FILE}",
        )
        (out / f"saving-{HEAD_FILE}").rename(path)
    return load_file(path)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def save(out: Path, step: int, state: dict[str, Any]) -> None:
    """A checkpoint is a folder that has its name once it is complete."""
    folder = out / f"saving-{step}"
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "state.pt")
    folder.rename(out / f"step-{step}")


def newest_step(names: list[str]) -> int | None:
    return max((int(name.removeprefix("step-")) for name in names if name.startswith("step-")), default=None)


def load(out: Path, artifacts: durastore.Artifacts) -> dict[str, Any] | None:
    """The newest checkpoint of this folder; of a folder that is new, of the bucket."""
    step = newest_step([path.parent.name for path in out.glob("step-*/state.pt")])
    if step is None:
        kept = artifacts.newest()
        step = newest_step([file.path.text.split("/")[0] for file in kept.files]) if kept is not None else None
        if step is None:
            return None
        artifacts.pull(f"step-{step}", HEAD_FILE)
        sys.stdout.write(f"checkpoint {step} comes from the bucket\n")
    state: dict[str, Any] = torch.load(out / f"step-{step}" / "state.pt", weights_only=True)
    return state


# --- training --------------------------------------------------------------------------------------------------------


def train(args: argparse.Namespace) -> list[tuple[int, float, float]]:
    """(step, loss, accuracy) of every step of this call."""
    torch.manual_seed(args.seed)
    options = {} if args.endpoint_url is None else {"endpoint_url": args.endpoint_url}
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    keep = {"name": "drafter", "keep_last": args.keep_last or None, "exclude": ("saving-*", "saving-*/*")}
    disk = {"is_any_filesystem_allowed": True} if args.any_filesystem else {}
    settle = {"settle_s": args.settle} if args.settle is not None else {}
    log = []
    with durastore.Artifacts(out, bucket=args.bucket, **keep, **options, **disk, **settle) as artifacts:
        kept = load(out, artifacts)
        dataset = durastore.Dataset(args.bucket, snapshot=kept["snapshot"] if kept else None, **options)
        head = target_head(out, args.model, dataset, vocabulary=args.vocabulary)
        draft = Draft(head)
        optimizer = torch.optim.AdamW(draft.parameters(), lr=args.lr)
        sampler = dataset.sampler(shuffle=args.seed)
        loader = DataLoader(
            dataset, sampler=sampler, batch_size=args.batch_size, num_workers=args.workers, collate_fn=collate
        )
        loop = sampler.counted(loader)
        step = 0
        if kept is not None:
            draft.load_state_dict(kept["draft"])
            optimizer.load_state_dict(kept["optimizer"])
            loop.load_state_dict(kept["loop"])
            step = kept["step"]
            sys.stdout.write(f"goes on after step {step}, inside of epoch {kept['loop']['epoch']}\n")
        while step < args.steps:
            for batch in loop:
                loss, accuracy = step_loss(draft, head, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                log.append((step, loss.item(), accuracy))
                if step % args.log_every == 0:
                    sys.stdout.write(f"step {step}: loss {loss.item():.4f}, accuracy {accuracy:.3f}\n")
                    sys.stdout.flush()
                if step % args.save_every == 0:
                    state = {"draft": draft.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    save(out, step, {**state, "loop": loop.state_dict(), "snapshot": dataset.snapshot_id})
                    artifacts.saved()
                if step == args.die_at:
                    artifacts.close()  # so that the example shows the same each time; a kill may come at any moment
                    os.kill(os.getpid(), signal.SIGKILL)
                if step >= args.steps:
                    break
    return log


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--bucket", required=True, help="where the hidden states are; checkpoints go to artifacts/ in it")
    add("--endpoint-url", default=None)
    add("--model", required=True, help="the target model: a folder, a .gguf file or a hub name")
    add("--out", required=True, help="folder of checkpoints")
    add("--steps", type=int, default=200)
    add("--batch-size", type=int, default=4)
    add("--workers", type=int, default=2)
    add("--vocabulary", type=int, default=4096, help="of the draft: the most frequent tokens of the data")
    add("--lr", type=float, default=3e-4)
    add("--seed", type=int, default=17)
    add("--log-every", type=int, default=10)
    add("--save-every", type=int, default=25)
    add("--keep-last", type=int, default=2, help="checkpoints that stay on this disk; 0: all")
    add("--settle", type=float, default=None, help="seconds between upload and reclaim of an older checkpoint")
    add("--any-filesystem", action="store_true")
    add("--die-at", type=int, default=0, metavar="STEP", help="be killed (SIGKILL) after this step")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    train(parse())
