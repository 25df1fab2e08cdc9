"""Encoded images to pixels, scaled and cut, by Pillow."""

import io
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mcprun.errors import InvalidInput
from mcprun.model.steps import Crop, Decode, Resize
from mcprun_worker.backends.base import Array

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_MAX_PIXELS = Decode().max_pixels
_ANY_ASPECT = 16
"""An image this many times as long as it is wide may be scaled whatever `max_pixels` is."""

# The bound is the step's own `max_pixels`, checked before anything is decoded.
Image.MAX_IMAGE_PIXELS = None


def decode(step: Decode, encoded: bytes) -> Array:
    """Pixels as uint8 [height, width, channels]. Raises InvalidInput."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
                if image.width * image.height > step.max_pixels:
                    raise InvalidInput(f"the image has {image.width} x {image.height} pixels, at most {step.max_pixels} are allowed")
                image.draft(None, None)
                upright = ImageOps.exif_transpose(image)
                converted = _convert(upright, "L" if step.mode == "L" else "RGB")
    except UnidentifiedImageError:
        raise InvalidInput(f"an image in one of {', '.join(FORMATS)} is expected, got {len(encoded)} bytes of something else") from None
    except InvalidInput:
        raise
    except Exception as error:  # Pillow's decoders raise anything from SyntaxError to struct.error for broken files
        raise InvalidInput(f"the image is broken: {str(error) or type(error).__name__}") from None
    pixels = np.asarray(converted)
    if step.mode == "L":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if step.mode == "BGR" else pixels


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        wide = np.asarray(image).astype(np.float64)
        image = Image.fromarray((np.clip(wide, 0, 65535) / 257 + 0.5).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        image = Image.alpha_composite(ground, rgba)
    return image.convert(mode)


def resize(step: Resize, pixels: Array, *, max_pixels: int = _MAX_PIXELS) -> Array:
    """Scales uint8 [height, width, channels]. Raises InvalidInput when the result would have more than `max_pixels`."""
    height, width = pixels.shape[:2]
    if isinstance(step.size, int) and step.fit != "exact":
        factor = step.size / min(height, width)
        target = (max(1, round(height * factor)), max(1, round(width * factor)))
    else:
        target = (step.size, step.size) if isinstance(step.size, int) else step.size
    if target == (height, width):
        return pixels
    # A strip of few pixels becomes huge when its short side is scaled up.
    allowed = max(max_pixels, _ANY_ASPECT * min(target) ** 2)
    if step.fit != "exact" and target[0] * target[1] > allowed:
        raise InvalidInput(
            f"the image of {width} x {height} pixels would be scaled to {target[1]} x {target[0]}, at most {allowed} pixels are allowed"
        )
    flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    scaled = np.asarray(Image.fromarray(np.ascontiguousarray(flat)).resize((target[1], target[0]), Image.Resampling.BILINEAR))
    return scaled[:, :, None] if scaled.ndim == 2 else scaled


def crop(step: Crop, pixels: Array) -> Array:
    """Cuts the centre out of uint8 [height, width, channels]."""
    height, width = (step.size, step.size) if isinstance(step.size, int) else step.size
    missing = (max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1]))
    if any(missing):
        before = (missing[0] // 2, missing[1] // 2)
        pixels = np.pad(pixels, ((before[0], missing[0] - before[0]), (before[1], missing[1] - before[1]), (0, 0)))
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def row_step(step: Resize | Crop, *, max_pixels: int) -> "Callable[[Array], Array]":
    """The step as a function of one image, which may have `max_pixels` at most."""
    if isinstance(step, Resize):
        return lambda pixels: resize(step, pixels, max_pixels=max_pixels)
    if isinstance(step, Crop):
        return lambda pixels: crop(step, pixels)
    raise TypeError(f"{step} is no step from pixels to pixels")
