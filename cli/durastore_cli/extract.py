"""`durastore extract`: one call of `extract`, or of `extract_on_ray` with `--ray`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from durastore_cli.exits import EPILOG
from durastore_cli.options import (
    REMOTE_NAMES,
    SHARE,
    SIZE,
    F,
    bucket_option,
    given,
    local_option,
    needed_place,
    remote_options,
)
from durastore_cli.render import print_json, print_lines

if TYPE_CHECKING:
    from durastore.extract.job import ExtractRequest
    from durastore.extract.preflight import Budget
    from durastore.extract.report import ExtractReport
    from durastore.extract.semantic import CheckReport
    from durastore.extract.server_settings import ServerSettings

__all__ = ["command"]

_SHOWN = 10
_LEASE_HELP = "Seconds after which a worker that says nothing loses its samples to the others."
_STORE_OPTIONS = (
    *REMOTE_NAMES,
    "storage_class",
    "sse",
    "kms_key",
    "reclaim",
    "settle_s",
    "high_watermark_bytes",
)


def _store_options(command: F) -> F:
    for option in reversed(
        (
            click.option("--storage-class", metavar="NAME", help="Storage class of new objects."),
            click.option("--sse", metavar="NAME", help="Server-side encryption: AES256 or aws:kms."),
            click.option("--kms-key", metavar="ID", help="Key for --sse aws:kms."),
            click.option(
                "--reclaim",
                type=click.Choice(["lazy", "eager", "never"]),
                help="When proven packs leave the local disk (default lazy: above the low watermark).",
            ),
            click.option(
                "--settle",
                "settle_s",
                type=float,
                metavar="S",
                help="Least age of an upload for that (default 600).",
            ),
            click.option(
                "--high-watermark",
                "high_watermark_bytes",
                type=SIZE,
                help="Spool size at which work waits (default 64GiB).",
            ),
        )
    ):
        command = option(command)
    return command


def _model_options(command: F) -> F:
    for option in reversed(
        (
            click.option("--model", required=True, metavar="NAME", help="Model folder, .gguf file or hub name."),
            click.option("--layers", required=True, help="States to store, such as 2,15,27,last (0: embeddings)."),
            click.option("--normed-last", is_flag=True, help="Take 'last' after the final norm instead of before it."),
            click.option(
                "--dtype",
                type=click.Choice(["bfloat16", "float16", "float32"]),
                default="bfloat16",
                show_default=True,
                help="Of the model and of its states.",
            ),
            click.option("--device", metavar="NAME", help="cuda, cuda:1, cpu; the first GPU by default."),
            click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model."),
            click.option("--max-seq-len", type=click.IntRange(1), help="Longest sample (default: the model's own)."),
            click.option("--truncate", is_flag=True, help="Cut longer samples instead of failing them."),
            click.option(
                "--audit", type=SHARE, default=None, help="Share that also runs alone, to compare, such as 0.5%."
            ),
            click.option(
                "--batch-tokens",
                type=click.IntRange(1),
                default=8192,
                show_default=True,
                help="Most of one forward pass.",
            ),
        )
    ):
        command = option(command)
    return command


def _engine_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--engine",
                default="transformers",
                show_default=True,
                metavar="NAME",
                help="transformers, vllm, sglang, watch.",
            ),
            click.option("--endpoint", multiple=True, metavar="URL", help="Of the model server; several take turns."),
            click.option("--staging", type=click.Path(path_type=Path), help="Folder that the server writes to."),
            click.option("--staging-limit", type=SIZE, help="Most of it to use (default: 85 % of what is free)."),
            click.option(
                "--concurrency", type=click.IntRange(1), default=32, show_default=True, help="Requests at a time."
            ),
            click.option("--tries", type=click.IntRange(1), default=3, show_default=True, help="Requests a sample."),
            click.option(
                "--request-timeout",
                type=click.FloatRange(0, min_open=True),
                default=120.0,
                show_default=True,
                help="Seconds for one answer.",
            ),
            click.option(
                "--watch-idle",
                type=click.FloatRange(0, min_open=True),
                default=600.0,
                show_default=True,
                help="Seconds without a new entry that end a watch.",
            ),
            click.option("--unverified-input", is_flag=True, help="Take dumps without token ids, and record that."),
            click.option("--served-model", metavar="NAME", help="The server's name for the model, if it has several."),
        )
    ):
        command = option(command)
    return command


def _sharing_options(command: F) -> F:
    for option in reversed(
        (
            click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes that share INPUT."),
            click.option("--ray", metavar="ADDRESS", help="Workers on a Ray cluster: local, auto or host:port."),
            click.option("--num-gpus", type=click.FloatRange(0), metavar="F", help="GPUs of each (default 1, if any)."),
            click.option("--num-cpus", type=click.FloatRange(0), metavar="F", help="Cores of each (default 1)."),
            click.option("--lease", type=click.FloatRange(1), default=900.0, show_default=True, help=_LEASE_HELP),
            click.option("--shard", metavar="I/N", help="Only part I of N (default: torchrun's or srun's rank)."),
            click.option("--retry-failed", is_flag=True, help="Only samples that failed before."),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N rows of INPUT."),
        )
    ):
        command = option(command)
    return command


def _budget_options(command: F) -> F:
    price = click.FloatRange(0)
    for option in reversed(
        (
            click.option(
                "--preflight",
                is_flag=True,
                help="Only estimate bytes, requests, time and money; exit code 2 if it cannot work, 3 if rows cannot.",
            ),
            click.option("--deadline", type=click.FloatRange(0), metavar="HOURS", help="Refuse what takes longer."),
            click.option("--tokens-per-s", type=click.FloatRange(0, min_open=True), help="Rate, for time and money."),
            click.option("--price-per-hour", type=price, help="Of the machine."),
            click.option("--price-per-gb-month", type=price, help="Of the bucket."),
        )
    ):
        command = option(command)
    return command


@click.command(epilog=EPILOG)
@click.argument("input_file", metavar="INPUT")
@bucket_option
@local_option
@_model_options
@_engine_options
@remote_options
@_store_options
@_sharing_options
@_budget_options
@click.option(
    "--grace", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds to flush in after a signal."
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def command(input_file: str, *, bucket: str | None, local: str | None, as_json: bool, **options: Any) -> int:
    """Run a model over INPUT (JSON lines) and store its hidden states.

    A row has input_ids (and loss_mask), or messages, prompt or text to tokenise; its id is in id, sample_id or
    conversation_id, else made from its content. The same command again goes on with what is not done.

    With --workers, the same command started a second time joins: the processes of both share the samples. SIGTERM to a
    worker takes it out, SIGTERM or SIGUSR1 to the command stops all.
    """
    if options["ray"] is None and (options["num_gpus"] is not None or options["num_cpus"] is not None):
        raise click.UsageError("--num-gpus and --num-cpus are for the workers of --ray")
    from durastore.extract.entry import extract, refuse_hopeless

    local_root = Path(needed_place("local", local))
    request = _request_of(Path(input_file), needed_place("bucket", bucket), local=local_root, options=options)
    if options["preflight"]:
        return _show_preflight(request, _budget_of(options), as_json=as_json)
    refuse_hopeless(request, _budget_of(options))
    report = extract(request) if options["ray"] is None else _extract_on_ray(request, options)
    if as_json:
        print_json(report.render())
    else:
        print_lines(_lines(report))
    if report.error is not None:
        click.echo(f"durastore: {report.error} [{report.error.code}]", err=True)
    return report.exit_code


def _extract_on_ray(request: ExtractRequest, options: dict[str, Any]) -> ExtractReport:
    from durastore.integrations.ray_extract import RaySettings, extract_on_ray

    cpus = options["num_cpus"] if options["num_cpus"] is not None else 1.0
    settings = RaySettings(address=options["ray"], num_gpus=options["num_gpus"], num_cpus=cpus)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to its processes; stdout is for the report
        return extract_on_ray(request, settings)


def _request_of(input_path: Path, bucket: str, *, local: Path, options: dict[str, Any]) -> ExtractRequest:
    from durastore.extract.entry import with_shard
    from durastore.extract.job import ExtractRequest
    from durastore.extract.runner import RunnerLimits
    from durastore.extract.transformers_engine import ModelSettings
    from durastore.store.opening import OptionOverrides

    return with_shard(
        ExtractRequest(
            input=input_path,
            model=options["model"],
            layers=options["layers"],
            bucket=bucket,
            local=local,
            options=cast(OptionOverrides, given({name: options[name] for name in _STORE_OPTIONS})),
            settings=ModelSettings(
                dtype=options["dtype"], device=options["device"], is_remote_code_trusted=options["trust_remote_code"]
            ),
            engine=options["engine"],
            server=_server_of(options),
            limits=RunnerLimits(batch_tokens=options["batch_tokens"], audit_share=options["audit"] or 0.0),
            max_tokens=options["max_seq_len"],
            is_truncated=options["truncate"],
            is_last_normed=options["normed_last"],
            grace_s=options["grace"],
            limit=options["limit"],
            is_retry=options["retry_failed"],
            workers=options["workers"],
            lease_s=options["lease"],
            is_progress_shown=True,
            handles_signals=True,
            command=("durastore", *(click.get_current_context().obj or ())),
        ),
        options["shard"],
    )


def _server_of(options: dict[str, Any]) -> ServerSettings:
    from durastore.extract.request_stream import Pace
    from durastore.extract.server_settings import ServerSettings

    return ServerSettings(
        endpoints=tuple(options["endpoint"]),
        staging=options["staging"],
        staging_limit_bytes=options["staging_limit"],
        pace=Pace(concurrency=options["concurrency"], tries=options["tries"]),
        timeout_s=options["request_timeout"],
        served_model=options["served_model"],
        idle_s=options["watch_idle"],
        is_unverified_taken=options["unverified_input"],
    )


def _budget_of(options: dict[str, Any]) -> Budget:
    from durastore.extract.preflight import Budget

    return Budget(
        tokens_per_s=options["tokens_per_s"],
        deadline_s=options["deadline"] * 3600 if options["deadline"] is not None else None,
        price_per_hour=options["price_per_hour"],
        price_per_gb_month=options["price_per_gb_month"],
    )


def _show_preflight(request: ExtractRequest, budget: Budget, *, as_json: bool) -> int:
    from durastore.extract.preflight_look import look_ahead

    found = look_ahead(request, budget)
    facts = found.render()
    if as_json:
        print_json(facts)
    else:
        numbers = {name: value for name, value in facts.items() if not isinstance(value, list)}
        print_lines(f"{name}: {'not known' if value is None else value}" for name, value in numbers.items())
        print_lines(f"cannot be used: line {row.line}: {row.stage}: {row.reason}" for row in found.work.first_unusable)
        print_lines(f"cannot work: {refusal}" for refusal in found.refusals)
    return found.exit_code


def _lines(report: ExtractReport) -> Iterator[str]:
    counts = report.counts
    if report.shard != "0/1":
        yield f"part {report.shard} of the input; the other parts are other commands' work"
    yield f"inputs {counts.inputs}: ok {counts.ok}, failed {counts.failed}, skipped {counts.skipped} (done before)"
    if counts.left:
        yield f"not attempted: {counts.left}"
    if report.duplicates:
        yield f"repeated rows left out: {report.duplicates}"
    yield f"run {report.run}: {counts.tokens} tokens, {counts.tensor_bytes} bytes of tensors, {report.elapsed_s:.1f} s"
    yield from _check_lines(report.checks)
    for failure in report.failures[:_SHOWN]:
        name = f" ({failure.sample_id})" if failure.sample_id is not None else ""
        yield f"failed: line {failure.line}{name}: {failure.stage}: {failure.reason}"
    if counts.failed:
        yield f"all failures: {report.failures_file}"
    if report.local_only:
        names = ", ".join(report.local_only[:_SHOWN])
        more = f" and {len(report.local_only) - _SHOWN} more" if len(report.local_only) > _SHOWN else ""
        yield f"only on local disks so far: {len(report.local_only)} ({names}{more})"
    for left in report.left_behind:
        yield f"left on {left.host}: {left.spool}: {left.reason}; run `durastore drain` there"


def _check_lines(checks: CheckReport) -> Iterator[str]:
    if checks.audited:
        yield f"audit: {checks.audited} samples alone as well, largest difference {checks.worst_difference:.2g}"
    if checks.outlier_count:
        yield f"states far from the usual size: {checks.outlier_count} (kept; look at them)"
    for outlier in checks.outliers[:_SHOWN]:
        where = f"line {outlier.line} ({outlier.sample_id}), slot {outlier.layer}"
        yield f"  {where}: 2^{outlier.value:.1f}, usually 2^{outlier.usual:.1f}"
