"""Throughput and latency through the whole mesh, edge included, beside Triton without any proxy and ONNX Runtime in process.

All of it in one run, since only ratios of one run mean anything. `make bench` runs it; --help tells its options.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import h2load, triton
from bench.models import MLP, RESNET50, BenchModel
from bench.onnxruntime_limit import rows_per_second
from mcprun.testing import Mesh

IN_FLIGHT = (1, 16, 64)
_TURNS = 5
RESULTS = Path(__file__).parent / "results"

# The target of each model: against what, and the least share of it.
TARGETS = {"mlp": ("Triton at 64 in flight", 0.4), "resnet50": ("ONNX Runtime in process", 0.9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is repeated, in turns; medians are shown")
    parser.add_argument("--models", nargs="*", choices=["mlp", "resnet50"], default=["mlp", "resnet50"])
    parser.add_argument("--without-triton", action="store_true", help="leave Triton out, which needs 500 MB of downloads")
    options = parser.parse_args()
    h2load.ensure()
    site = None if options.without_triton else triton.install(Path(__file__).resolve().parents[1] / ".venv-triton")
    RESULTS.mkdir(exist_ok=True)
    console = Console()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in (MLP, RESNET50):
            if model.name in options.models:
                results[model.name] = measure(model, Path(scratch), site, options, console)
    (RESULTS / "throughput.json").write_text(json.dumps(results, indent=2))
    console.print(f"Written to {RESULTS / 'throughput.json'}")


def measure(model: BenchModel, scratch: Path, site: Path | None, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    repository = scratch / "models"
    file = repository / model.name / "model.onnx"
    file.parent.mkdir(parents=True)
    model.write(file)
    (file.parent / "model.yaml").write_text(f"model_path: model.onnx\ndynamic_batching: {{max_batch_size: {model.max_batch_size}}}\n")
    runs: dict[str, dict[int, list[h2load.Measured]]] = {}
    limits: list[float] = []
    request = model.request(model.name)

    def load(name: str, port: int) -> None:
        for in_flight in IN_FLIGHT:
            console.print(f"{model.name}: {name}, {in_flight} in flight ...", highlight=False)
            # A slow model is asked a number of times, of which each call has its turn at least `_TURNS` times.
            calls = max(_TURNS * in_flight, round(limits[-1] * options.seconds))
            slow = limits[-1] * options.seconds < _TURNS * _TURNS * in_flight
            if slow:
                # Memory for each new size of batch is taken once.
                h2load.run(port, request, in_flight=in_flight, seconds=options.seconds, calls=4 * in_flight)
            measured = h2load.run(port, request, in_flight=in_flight, seconds=options.seconds, calls=calls if slow else None)
            runs.setdefault(name, {}).setdefault(in_flight, []).append(measured)

    for _ in range(options.rounds):
        console.print(f"{model.name}: ONNX Runtime in process ...")
        limits.append(max(rows_per_second(model, file, batches=(1, 8, 32), seconds=options.seconds / 2).values()))
        with Mesh(repository) as mesh:
            load("mcprun", int(mesh.grpc_target.rpartition(":")[2]))
        if site is not None:
            for delay_us in (0, 2000):
                with triton.serving(model, file, site=site, scratch=scratch / f"triton-{model.name}", delay_us=delay_us) as port:
                    load(f"Triton, delay {delay_us / 1000:g} ms", port)
    (repository / model.name / "model.yaml").unlink()
    return show(model, runs, limits, console)


def show(model: BenchModel, runs: dict[str, dict[int, list[h2load.Measured]]], limits: list[float], console: Console) -> dict[str, Any]:
    table = Table(title=f"{model.name} (ONNX Runtime in process: {statistics.median(limits):,.0f} rows/s)")
    for column in ("server", "in flight", "answers/s", "of ONNX Runtime", "of Triton", "P50 ms", "P99 ms", "failed"):
        table.add_column(column, justify="left" if column == "server" else "right")
    shown: list[dict[str, Any]] = []
    peers = [by_count for name, by_count in runs.items() if name != "mcprun"]

    def ratio(measured: list[h2load.Measured], others: list[float]) -> float:
        """The median of the rounds' own ratios: what disturbs a whole round disturbs both."""
        return statistics.median(run.per_second / other for run, other in zip(measured, others, strict=True))

    for name, by_count in runs.items():
        for count, measured in by_count.items():
            middle = {key: statistics.median(asdict(run)[key] for run in measured) for key in ("per_second", "p50", "p99")}
            best = [max(turn) for turn in zip(*([run.per_second for run in peer[count]] for peer in peers), strict=True)]
            row = {
                "server": name,
                "in_flight": count,
                **middle,
                "of_onnxruntime": ratio(measured, limits),
                "of_triton": ratio(measured, best) if best else None,
                "failed": sum(run.failed for run in measured),
            }
            shown.append(row)
            table.add_row(
                name,
                str(count),
                f"{row['per_second']:,.1f}",
                f"{row['of_onnxruntime']:.2f}",
                f"{row['of_triton']:.2f}" if best else "-",
                f"{row['p50'] * 1000:.2f}",
                f"{row['p99'] * 1000:.2f}",
                str(row["failed"]),
            )
    console.print(table)
    return {"onnxruntime_rows_per_second": limits, "rows": shown}


if __name__ == "__main__":
    main()
