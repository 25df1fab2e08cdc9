"""What each model version has done, in the vocabulary of the Open Inference Protocol."""

from dataclasses import dataclass, field

from mcprun.protocol.inference import grpc_service_pb2 as oip
from mcprun.protocol.v1 import worker_pb2


@dataclass(slots=True)
class Duration:
    """A count and the time that it took together."""

    count: int = 0
    ns: int = 0

    def add(self, count: int, ns: int) -> None:
        """Adds `count` events that took `ns` nanoseconds in all."""
        self.count += count
        self.ns += ns

    def message(self) -> oip.StatisticDuration:
        """As protobuf."""
        return oip.StatisticDuration(count=self.count, ns=self.ns)


@dataclass(slots=True)
class _BatchSize:
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ModelStatistics:
    """The sums of one model version since the batcher started. All times in nanoseconds."""

    last_inference_ms: int = 0
    """When the last batch ended, in milliseconds since the epoch."""
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, _BatchSize] = field(default_factory=dict)

    def add_served(self, requests: int, queued_ns: int) -> None:
        """`requests` succeeded after `queued_ns` in the queue in all."""
        self.queue.add(requests, queued_ns)

    def add_batch(self, result: worker_pb2.BatchResult, *, requests: int, now_ms: int) -> None:
        """A batch of `requests` is finished."""
        if not result.rows:
            return
        self.last_inference_ms = now_ms
        self.inference_count += result.rows
        self.execution_count += 1
        self.compute_input.add(requests, result.compute_input_ns * requests)
        self.compute_infer.add(requests, result.compute_infer_ns * requests)
        self.compute_output.add(requests, result.compute_output_ns * requests)
        size = self.batches.get(result.rows)
        if size is None:
            size = self.batches[result.rows] = _BatchSize()
        size.compute_input.add(1, result.compute_input_ns)
        size.compute_infer.add(1, result.compute_infer_ns)
        size.compute_output.add(1, result.compute_output_ns)

    def message(self, name: str, version: str) -> oip.ModelStatistics:
        """As protobuf."""
        return oip.ModelStatistics(
            name=name,
            version=version,
            last_inference=self.last_inference_ms,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            inference_stats=oip.InferStatistics(
                success=self.success.message(),
                fail=self.fail.message(),
                queue=self.queue.message(),
                compute_input=self.compute_input.message(),
                compute_infer=self.compute_infer.message(),
                compute_output=self.compute_output.message(),
            ),
            batch_stats=[
                oip.InferBatchStatistics(
                    batch_size=size,
                    compute_input=batch.compute_input.message(),
                    compute_infer=batch.compute_infer.message(),
                    compute_output=batch.compute_output.message(),
                )
                for size, batch in sorted(self.batches.items())
            ],
        )
