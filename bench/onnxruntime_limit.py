"""ONNX Runtime alone in this process, with nothing around it: the limit."""

import os
import time
from pathlib import Path

import onnxruntime as ort

from bench.models import BenchModel


def rows_per_second(model: BenchModel, file: Path, *, batches: tuple[int, ...], seconds: float) -> dict[int, float]:
    """Rows a second by batch size, on all cores."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    result: dict[int, float] = {}
    for batch in batches:
        inputs = {model.input: model.data(batch)}
        session.run(None, inputs)
        runs, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            session.run(None, inputs)
            runs += 1
        result[batch] = runs * batch / (time.perf_counter() - started)
    return result
