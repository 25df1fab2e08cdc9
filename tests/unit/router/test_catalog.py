"""Which version a request means, and what is known while workers and batchers come and go."""

import pytest

from mcprun.errors import NotFound, Unavailable
from mcprun.protocol.v1 import batcher_pb2, model_pb2
from mcprun_router.catalog import Catalog

READY, LOADING, UNAVAILABLE = (
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_LOADING,
    model_pb2.MODEL_STATE_UNAVAILABLE,
)


def version(number: str, *labels: str, state: model_pb2.ModelState = READY, name: str = "m") -> model_pb2.ModelVersion:
    return model_pb2.ModelVersion(
        name=name,
        version=number,
        labels=labels,
        state=state,
        inputs=[model_pb2.TensorSpec(name="x", datatype="FP32", shape=[-1, 2])],
        reason="broken" if state == UNAVAILABLE else "",
    )


def catalog(*versions: model_pb2.ModelVersion, settled: bool = True) -> Catalog:
    made = Catalog()
    made.update(batcher_pb2.Catalog(models=versions, settled=settled))
    return made


def test_a_version_is_found_by_number_by_label_and_by_default() -> None:
    known = catalog(version("2", "canary"), version("10"), version("1", "stable"))
    assert known.resolve("m", "10").version == "10"
    assert known.resolve("m", "canary").version == "2"
    assert known.resolve("m", "").version == "1"
    assert known.resolve("m", "", "canary").version == "2"
    assert known.resolve("m", "10", "canary").version == "10"
    assert known.resolve("m", "", "missing").version == "1"
    assert [model.version for model in known.versions("m")] == ["1", "2", "10"]


def test_without_a_stable_label_the_highest_ready_version_is_the_default() -> None:
    known = catalog(version("2"), version("10", state=UNAVAILABLE), version("9"))
    assert known.resolve("m", "").version == "9"


def test_unknown_names_are_not_found_once_the_mesh_has_settled() -> None:
    with pytest.raises(NotFound, match="'n'"):
        catalog(version("1")).resolve("n", "")
    with pytest.raises(Unavailable, match="starting"):
        catalog(settled=False).resolve("n", "")
    with pytest.raises(NotFound, match="it has 1"):
        catalog(version("1")).resolve("m", "7")


def test_a_version_that_cannot_run_says_why() -> None:
    with pytest.raises(Unavailable, match="broken"):
        catalog(version("1", state=UNAVAILABLE)).usable("m", "")
    loading = model_pb2.ModelVersion(name="m", version="1", state=LOADING)
    with pytest.raises(Unavailable, match="still loading"):
        catalog(loading).usable("m", "")


def test_a_version_whose_worker_is_away_takes_requests_but_is_not_ready() -> None:
    model = catalog(version("1", state=LOADING)).usable("m", "")
    assert not model.ready


def test_a_batcher_that_was_restarted_and_knows_nothing_yet_makes_nothing_forgotten() -> None:
    known = catalog(version("1"))
    known.update(batcher_pb2.Catalog(settled=False))
    assert not known.usable("m", "").ready
    known.update(batcher_pb2.Catalog(models=[version("1")], settled=True))
    assert known.usable("m", "").ready
    known.update(batcher_pb2.Catalog(settled=True))
    with pytest.raises(NotFound):
        known.resolve("m", "")
