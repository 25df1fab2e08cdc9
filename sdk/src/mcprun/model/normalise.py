"""From what people may write in model.yaml to the one form of `ModelConfig`, and the mistakes that only the whole shows."""

from typing import Any

from mcprun.document import Document, Location, Problem, shown
from mcprun.mistakes import nearest
from mcprun.model.steps import POSTPROCESS, PREPROCESS, SOURCES, Step

_PIXELS = ("resize", "crop")
_NUMBERS = ("cast", "normalize", "layout")


def normalise(document: Document) -> tuple[dict[str, Any], list[Problem]]:
    """The values of a model.yaml with its shorthands resolved, and what is wrong with them.

    Where a shorthand is resolved, `document.origins` is told where the resolved form stands in the file.
    """
    return _Normaliser(document).run()


class _Normaliser:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._values = dict(document.values)
        self._problems: list[Problem] = []

    def run(self) -> tuple[dict[str, Any], list[Problem]]:
        self._name()
        self._versions()
        self._tensors()
        before = self._chain("preprocess", PREPROCESS)
        after = self._chain("postprocess", POSTPROCESS)
        self._order(before, after)
        return self._values, self._problems

    def _wrong(self, location: Location, expected: str, got: str, hint: str = "") -> None:
        self._problems.append(self._document.problem(location, expected, got, hint=hint))

    def _moved(self, resolved: Location, written: Location) -> None:
        self._document.origins[resolved] = written

    def _name(self) -> None:
        folder = self._document.file.absolute().parent.name
        name = self._values.setdefault("name", folder)
        if name != folder:
            self._wrong(("name",), f"the folder's name, {folder!r}", shown(name))

    def _versions(self) -> None:
        both = "model_path" in self._values and "versions" in self._values
        path = self._values.pop("model_path", None)
        if both:
            self._wrong(("model_path",), "either model_path or versions", "both")
        elif "versions" not in self._values:
            self._moved(("versions", "1", "model_path"), ("model_path",))
            if path is None:
                self._wrong(
                    ("model_path",), "model_path or versions", "neither" if "model_path" not in self._document.values else "nothing"
                )
                self._values["versions"] = {"1": {"model_path": "."}}
                return
            self._values["versions"] = {"1": {"model_path": path, "labels": ["stable"]}}

    def _tensors(self) -> None:
        if "input_shape" in self._values:
            shape = self._values.pop("input_shape")
            if "inputs" in self._values:
                self._wrong(("input_shape",), "either input_shape or inputs", "both")
            else:
                self._values["inputs"] = [{"name": "*", "shape": shape}]
                self._moved(("inputs", 0, "shape"), ("input_shape",))
        if "output_names" in self._values:
            names = self._values.pop("output_names")
            if "outputs" in self._values:
                self._wrong(("output_names",), "either output_names or outputs", "both")
            elif not isinstance(names, list):
                self._wrong(("output_names",), "a list of names", shown(names))
            else:
                self._values["outputs"] = [{"name": name} for name in names]
                for index in range(len(names)):
                    self._moved(("outputs", index, "name"), ("output_names", index))

    def _chain(self, chain: str, known: dict[str, type[Step]]) -> list[tuple[int, str]]:
        """Resolves the steps of a chain; returns their positions in the file and their names, those that are known."""
        steps = self._values.pop(chain, None)
        if steps is None:
            return []
        if not isinstance(steps, list):
            self._wrong((chain,), "a list of steps", shown(steps))
            return []
        names: list[tuple[int, str]] = []
        resolved: list[dict[str, Any]] = []
        for index, step in enumerate(steps):
            normal = self._step(step, known, (chain, len(resolved)), (chain, index))
            if normal is not None:
                names.append((index, normal["kind"]))
                resolved.append(normal)
        self._values[chain] = resolved
        return names

    def _step(self, step: Any, known: dict[str, type[Step]], resolved: Location, at: Location) -> dict[str, Any] | None:
        if isinstance(step, str):
            step = {step: None}
        if not isinstance(step, dict) or len(step) != 1:
            got = f"{len(step)} keys" if isinstance(step, dict) else shown(step)
            self._wrong(at, f"a step, which is a name or a mapping of one key, such as {next(iter(known))}", got)
            return None
        ((name, options),) = step.items()
        written = (*at, name) if (*at, name) in self._document.positions else at
        kind = known.get(name)
        if kind is None:
            self._wrong(written, f"one of {', '.join(known)}", repr(name), nearest(name, list(known)))
            return None
        self._moved(resolved, at)
        self._moved((*resolved, name), (*at, name))
        if options is None:
            options = {}
        elif not isinstance(options, dict):
            if kind.shorthand is None:
                self._wrong(written, "a mapping of options", shown(options))
                return None
            self._moved((*resolved, name, kind.shorthand), written)
            options = {kind.shorthand: options}
        return {**options, "kind": name}

    def _order(self, before: list[tuple[int, str]], after: list[tuple[int, str]]) -> None:
        names = [name for _, name in before]
        source = names[0] if names and names[0] in SOURCES else None
        for position, (index, name) in enumerate(before):
            location: Location = ("preprocess", index)
            earlier = names[:position]
            if name in SOURCES and position:
                self._wrong(location, f"{name} as the first step, since it takes BYTES", f"it after {earlier[-1]}")
            elif source == "tokenize" and position:
                self._wrong(location, "no step after tokenize", name)
            elif name in _PIXELS and source != "decode":
                self._wrong(location, f"a decode step before {name}", "none")
            elif name in _PIXELS and (later := next((step for step in earlier if step in _NUMBERS), None)):
                self._wrong(location, f"{name} before cast, normalize and layout", f"it after {later}")
        if self._values.get("preprocess_input") is not None and source is None:
            self._wrong(("preprocess_input",), f"a preprocess chain that begins with {' or '.join(SOURCES)}", "none")
        for position, (index, name) in enumerate(after):
            if name == "mean_pool" and source != "tokenize":
                self._wrong(("postprocess", index), "a tokenize step, whose attention mask mean_pool needs", "none")
            if name == "top_k" and position != len(after) - 1:
                self._wrong(("postprocess", index), "top_k as the last step", f"{after[position + 1][1]} after it")
