"""The steps between what clients send and what the graph takes."""

import io
from pathlib import Path

import numpy as np
import pytest
import zoo
from PIL import Image

from mcprun.errors import InvalidInput, MeshError
from mcprun.model.config import load_model_config
from mcprun.model.steps import ByteWindow, Crop, Decode, Resize
from mcprun_worker.chain import files, images, scores
from mcprun_worker.version import LoadedVersion, load

RED = (200, 30, 10)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, form, **options)  # type: ignore[arg-type]
    return target.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "WEBP", "JPEG", "GIF"])
def test_every_format_gives_the_same_pixels(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else ({"quality": 100, "subsampling": 0} if form == "JPEG" else {})
    pixels = images.decode(Decode(), encoded(Image.new("RGB", (5, 3), RED), form, **options))
    assert pixels.shape == (3, 5, 3)
    np.testing.assert_allclose(pixels, np.broadcast_to(RED, (3, 5, 3)), atol=3)


def test_exif_rotation_is_applied() -> None:
    image = Image.new("RGB", (4, 2), (0, 0, 0))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    pixels = images.decode(Decode(), encoded(image, "PNG", exif=exif))
    assert pixels.shape == (4, 2, 3)
    assert pixels[0, 1].tolist() == [255, 255, 255]


def test_sixteen_bits_are_scaled_to_eight() -> None:
    wide = Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16))
    assert images.decode(Decode(mode="L"), encoded(wide, "PNG"))[0, :, 0].tolist() == [0, 100, 255]


def test_palettes_cmyk_and_transparency_become_rgb() -> None:
    palette = Image.new("RGB", (2, 2), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    np.testing.assert_allclose(images.decode(Decode(), encoded(palette, "PNG"))[0, 0], RED, atol=2)
    cmyk = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    assert images.decode(Decode(), encoded(cmyk, "TIFF"))[0, 0].tolist() == [255, 0, 0]
    clear = Image.new("RGBA", (2, 2), (255, 255, 255, 0))
    assert images.decode(Decode(), encoded(clear, "PNG"))[0, 0].tolist() == [0, 0, 0]


def test_channel_orders() -> None:
    png = encoded(Image.new("RGB", (1, 1), RED), "PNG")
    assert images.decode(Decode(mode="BGR"), png)[0, 0].tolist() == list(reversed(RED))
    assert images.decode(Decode(mode="L"), png).shape == (1, 1, 1)


def test_an_image_over_the_bound_is_refused_before_it_is_decoded() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)), "PNG")
    assert len(bomb) < 100_000
    with pytest.raises(InvalidInput, match="20000 x 20000"):
        images.decode(Decode(), bomb)


@pytest.mark.parametrize("cut", [0, 1, 10, 40, 60])
def test_broken_images_are_refused(cut: int) -> None:
    whole = encoded(Image.effect_noise((64, 64), 90), "PNG")
    with pytest.raises(InvalidInput):
        images.decode(Decode(), whole[:cut] if cut < 60 else whole[: len(whole) // 2])
    with pytest.raises(InvalidInput):
        images.decode(Decode(), b"<svg xmlns='http://www.w3.org/2000/svg'/>")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Resize(size=4), (4, 8)),
        (Resize(size=(3, 5)), (3, 5)),
        (Resize(size=4, fit="exact"), (4, 4)),
    ],
)
def test_resizing(step: Resize, expected: tuple[int, int]) -> None:
    for channels in (1, 3):
        assert images.resize(step, np.zeros((10, 20, channels), np.uint8)).shape == (*expected, channels)


def test_cropping_takes_the_centre_and_pads_what_is_too_small() -> None:
    pixels = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    assert images.crop(Crop(size=2), pixels)[:, :, 0].tolist() == [[14, 15], [20, 21]]
    padded = images.crop(Crop(size=8), pixels)
    assert padded.shape == (8, 8, 1)
    assert padded[0].sum() == 0
    np.testing.assert_array_equal(padded[1:7, 1:7], pixels)


def test_the_window_of_a_short_and_of_a_long_file() -> None:
    step = ByteWindow(head=4, tail=4, block=8, pad=256)
    assert files.byte_window(step, b"  ab \n").tolist() == [97, 98, 32, 10, 32, 32, 97, 98]
    assert files.byte_window(step, b"").tolist() == [256] * 8
    assert files.byte_window(step, bytes(range(33, 53))).tolist() == [33, 34, 35, 36, 49, 50, 51, 52]
    assert files.byte_window(step, b"a").tolist() == [97, 256, 256, 256, 256, 256, 256, 97]


def test_scores() -> None:
    values = np.array([[1.0, 3.0, 2.0, 3.0]], np.float32)
    names, best = scores.top_k(values, 3, ("a", "b"))
    assert names.tolist() == [["b", "3", "2"]]
    assert best.tolist() == [[3, 3, 2]]
    np.testing.assert_allclose(scores.softmax(values).sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(scores.softmax(np.array([[1000.0, 1000.0]])), [[0.5, 0.5]])
    assert scores.l2_normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0, 0]]
    tokens = np.array([[[1.0], [3.0], [100.0]]])
    assert scores.mean_pool(tokens, np.array([[1, 1, 0]])).tolist() == [[2.0]]


def loaded(tmp_path: Path, config: str, onnx: bytes) -> LoadedVersion:
    folder = zoo.write(tmp_path, "m", config, model_onnx=onnx)
    return load(load_model_config(folder / "model.yaml"), folder, "1", threads=2, device="cpu")


IMAGE_CHAIN = """
model_path: model.onnx
preprocess:
- decode
- resize: {size: [8, 8]}
- normalize: {scale: 0.00392156862745098, mean: [0.5, 0.25, 0], std: [0.5, 0.25, 1]}
- layout: CHW
"""


def test_a_chain_normalises_each_channel(tmp_path: Path) -> None:
    version = loaded(tmp_path, IMAGE_CHAIN, zoo.channel_means())
    preprocess = version.pipeline.preprocess
    png = encoded(Image.new("RGB", (20, 10), (255, 0, 51)), "PNG")
    outputs = version.pipeline.run(preprocess.finish([preprocess.prepare([png, png])]))
    np.testing.assert_allclose(outputs["means"], [[1, -1, 0.2]] * 2, rtol=1e-5)
    assert [(spec.name, spec.datatype, list(spec.shape)) for spec in version.announcement.inputs] == [("image", "BYTES", [-1])]
    assert version.max_batch_size == 64


@pytest.mark.parametrize(
    ("config", "onnx", "words"),
    [
        (IMAGE_CHAIN.replace("[0.5, 0.25, 0]", "[1, 2]"), zoo.channel_means(), ("normalize.mean", "3", "2")),
        ("model_path: model.onnx\npreprocess: [tokenize: model.onnx]\n", zoo.channel_means(), ("tokenize", "image")),
        ("model_path: model.onnx\npreprocess: [decode]\n", zoo.add_sub(), ("decode", "INPUT0, INPUT1")),
        ("model_path: model.onnx\npostprocess: [softmax]\n", zoo.add_sub(), ("softmax", "INT32")),
        ("model_path: model.onnx\nlabels: [a]\npostprocess: [{top_k: 1}]\n", zoo.mlp(), ("labels", "10", "1")),
        ("model_path: model.onnx\ninputs: [{name: z}]\n", zoo.mlp(), ("inputs", "'z'")),
        ("model_path: model.onnx\ninputs: [{name: x, datatype: FP16}]\n", zoo.mlp(), ("'x'", "FP32", "FP16")),
        ("model_path: model.onnx\ninputs: [{name: x, shape: [-1, 65]}]\n", zoo.mlp(), ("'x'", "64", "65")),
        ("model_path: model.onnx\ninput_shape: [-1, 16]\n", zoo.add_sub(), ("input_shape",)),
        ("model_path: model.onnx\noutput_names: [q]\n", zoo.mlp(), ("outputs", "'q'")),
        ("model_path: model.onnx\ndynamic_batching: {}\n", zoo.identity("FP32", (3,)), ("dynamic_batching", "[3]")),
        ("model_path: model.onnx\nbackend: nothing\n", zoo.mlp(), ("backend", "onnxruntime", "'nothing'")),
        ("model_path: model.onnx\n", b"", ("empty",)),
        ("model_path: model.onnx\n", b"garbage", ("model.onnx",)),
        ("model_path: model.onnx\n", zoo.mlp()[:500], ("model.onnx",)),
    ],
)
def test_what_does_not_fit_the_graph_is_told_when_the_model_is_loaded(
    tmp_path: Path, config: str, onnx: bytes, words: tuple[str, ...]
) -> None:
    with pytest.raises(MeshError) as error:
        loaded(tmp_path, config, onnx)
    for word in words:
        assert word in error.value.message


@pytest.mark.parametrize(
    ("config", "onnx", "expected"),
    [
        ("", zoo.identity("FP32", ("N", 3)), 64),
        ("", zoo.identity("FP32", ("batch_size", 3)), 64),
        ("", zoo.identity("FP32", ("sequence", 3)), 0),
        ("", zoo.identity("FP32", (3,)), 0),
        ("dynamic_batching: false\n", zoo.identity("FP32", ("N", 3)), 0),
        ("dynamic_batching: {max_batch_size: 5}\n", zoo.identity("FP32", ("sequence", 3)), 5),
        ("", zoo.zeros(), 0),
    ],
)
def test_requests_are_joined_only_where_the_first_dimension_is_a_batch(tmp_path: Path, config: str, onnx: bytes, expected: int) -> None:
    assert loaded(tmp_path, f"model_path: model.onnx\n{config}", onnx).max_batch_size == expected
