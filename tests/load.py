"""Callers that go on calling while a test breaks something, and remember how each call ended."""

import asyncio
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
import numpy as np

from mcprun.protocol.inference import grpc_service_pb2 as oip

METHOD = "/inference.GRPCInferenceService/ModelInfer"


def request(model: str, name: str, data: "np.ndarray", datatype: str) -> oip.ModelInferRequest:  # type: ignore[type-arg]
    message = oip.ModelInferRequest(model_name=model, raw_input_contents=[data.tobytes()])
    message.inputs.add(name=name, datatype=datatype, shape=data.shape)
    return message


def slow_request(turns: int) -> oip.ModelInferRequest:
    return request("slow", "turns", np.array([turns], np.int64), "INT64")


class Load:
    """Callers of the model `versions` at `target`, each with one call open at a time, until the context is left.

    Every answer is checked against its own request, so that an answer that goes to the wrong caller is seen.
    """

    def __init__(self, target: str, *, callers: int = 16) -> None:
        self._target = target
        self._callers = callers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.ended: Counter[str] = Counter()
        """Calls by the name of their gRPC code; WRONG counts answers to another request."""
        self.reasons: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_answers(50)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise AssertionError("a call was never answered")

    def wait_for_answers(self, count: int, *, seconds: float = 30) -> None:
        """Waits for that many more good answers."""
        until = self.ended["OK"] + count
        deadline = time.monotonic() + seconds
        while self.ended["OK"] < until:
            if time.monotonic() > deadline:
                raise AssertionError(f"no {count} answers came within {seconds} s: {self.ended} {self.reasons}")
            time.sleep(0.01)

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._target) as channel, asyncio.TaskGroup() as tasks:
            for number in range(self._callers):
                tasks.create_task(self._call(channel, number))

    async def _call(self, channel: grpc.aio.Channel, number: int) -> None:
        method = channel.unary_unary(
            METHOD,
            request_serializer=oip.ModelInferRequest.SerializeToString,
            response_deserializer=oip.ModelInferResponse.FromString,
        )
        turn = 0
        while not self._stop.is_set():
            turn += 1
            data = np.array([[number, turn, 0, 1]], np.float32)
            try:
                answer = await method(request("versions", "x", data, "FP32"), timeout=40)
            except grpc.aio.AioRpcError as error:
                self.ended[error.code().name] += 1
                self.reasons[error.details() or ""] += 1
                await asyncio.sleep(0.02)
            else:
                right = answer.raw_output_contents[0] == (2 * data).tobytes()
                self.ended["OK" if right else "WRONG"] += 1
