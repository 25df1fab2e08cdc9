"""What a preprocess chain gives, worked out without running it."""

from dataclasses import dataclass, replace

from mcprun.errors import InvalidInput
from mcprun.model.steps import ByteWindow, Cast, Crop, Decode, Layout, Normalize, Resize, Step
from mcprun_worker.backends.base import TensorSpec


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch at some place in a chain."""

    datatype: str
    shape: tuple[int, ...]
    """Of one row; -1 where it depends on the request."""

    def after(self, step: Step) -> "Rows":
        """The same rows behind one more step."""
        if isinstance(step, Resize | Crop):
            if isinstance(step.size, int) and isinstance(step, Resize) and step.fit != "exact":
                return replace(self, shape=(-1, -1, self.shape[2]))
            height, width = (step.size, step.size) if isinstance(step.size, int) else step.size
            return replace(self, shape=(height, width, self.shape[2]))
        if isinstance(step, Cast):
            return replace(self, datatype=step.datatype)
        if isinstance(step, Normalize):
            return replace(self, datatype="FP32")
        if isinstance(step, Layout) and len(self.shape) == 3:
            first, second, third = self.shape
            return replace(self, shape=(third, first, second) if step.order == "CHW" else (second, third, first))
        return self

    def check(self, graph: TensorSpec) -> None:
        """Raises InvalidInput when these rows are not what the graph takes."""
        wanted = graph.shape[1:]
        same = len(wanted) == len(self.shape) and all(-1 in pair or pair[0] == pair[1] for pair in zip(wanted, self.shape, strict=True))
        if self.datatype != graph.datatype or not same:
            raise InvalidInput(
                f"preprocess: the chain must give {graph.datatype} {list(graph.shape)} for the model's input {graph.name!r}, "
                f"got {self.datatype} {[graph.shape[0] if graph.shape else 1, *self.shape]} (-1 is free)"
            )


def source_rows(step: Decode | ByteWindow) -> Rows:
    """What a source step gives for one element."""
    if isinstance(step, Decode):
        return Rows("UINT8", (-1, -1, 1 if step.mode == "L" else 3))
    return Rows("INT32", (step.head + step.tail,))
