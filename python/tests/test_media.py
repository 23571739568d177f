"""Files as arguments and results."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import warnings
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node import Node

import callboard as cb
from callboard._envelope import decode, encode
from callboard._media import media_type_of
from callboard._target import routes_of

PNG = b"\x89PNG\r\n\x1a\n" + 8 * b"\0"


@cb.function
def weigh(image: cb.Image, scale: float = 1.0) -> dict[str, Any]:
    return {"type": image.media_type, "weight": len(image) * scale}


def weight(value: Any) -> Any:
    with cb.test_client(weigh) as client:
        return client.call(value)


def test_a_file_comes_as_bytes_or_as_base64() -> None:
    text = base64.b64encode(PNG).decode()
    expected = {"type": "image/png", "weight": 16.0}
    lines = "\r\n".join(text[start : start + 8] for start in range(0, len(text), 8))
    for value in (PNG, cb.Image(PNG), text, lines, f"data:image/png;base64,{text}", f"DATA:;Base64,{text}"):
        assert weight({"image": value}) == expected
        # A body that is the file itself, and the output of another stage.
        assert weight(value) == expected
    assert weight({"image": f"data:image/x-other;name=a;base64,{text}"})["type"] == "image/x-other"
    assert weight({"image": PNG, "scale": 2})["weight"] == 32


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"image": "https://example.org/a.png"}, "got a URL: this server fetches none"),
        ({"image": "no base64!"}, r"got a text that is not base64: .* - at `\$.image`"),
        ({"image": "AP8"}, "not base64"),
        ({"image": 7}, r"Expected a file, as bytes or as base64 in a text, got `int` - at `\$.image`"),
        ({}, "missing required field `image`"),
        (None, "got `NoneType`"),
    ],
)
def test_what_is_no_file_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(cb.InvalidInput, match=message):
        weight(value)


@dataclass
class Page:
    title: str
    scans: list[cb.File]


@cb.function
def pages(page: Page, cover: cb.Image | None = None) -> int:
    return sum(map(len, page.scans))


@cb.function
def album(pictures: list[cb.Image]) -> list[cb.Image]:
    return pictures


def test_files_are_inside_of_other_types() -> None:
    with cb.test_client(pages) as client:
        assert client.call({"page": {"title": "a", "scans": [b"\0\1", "AAA="]}}) == 4
    with cb.test_client(album) as client:
        assert client.call({"pictures": [PNG, b"x"]}) == [PNG, b"x"]


def described(app: Any) -> dict[str, Any]:
    (route,) = routes_of(app, "app")
    return json.loads(json.dumps(route.describe()))


def test_a_form_has_a_field_for_each_file() -> None:
    found = described(weigh)
    assert found["input"]["properties"]["image"] == {
        "type": "string",
        "contentEncoding": "base64",
        "contentMediaType": "image/*",
        "description": "a file: bytes, base64 as text, or an https URL if the server allows its host",
    }
    assert (found["input"]["type"], found["input"]["required"]) == ("object", ["image"])
    assert found["raw_body"] == {"field": "image", "media_types": ["image/*", "application/octet-stream"]}
    # Two files, or one that may be missing: no body is one of them.
    assert described(pages)["raw_body"] is None and described(album)["raw_body"] is None
    assert described(album)["input"]["properties"]["pictures"]["items"]["contentEncoding"] == "base64"
    assert described(album)["output"]["items"]["contentMediaType"] == "image/*"


def test_a_batch_of_files_is_a_list_of_them() -> None:
    @cb.function
    @cb.batched
    def sizes(files: list[cb.File]) -> list[int]:
        return [len(file) for file in files]

    assert described(sizes)["raw_body"] == {"field": "files", "media_types": ["application/octet-stream"]}
    with cb.test_client(sizes) as client:
        assert client.batch([b"a", {"files": b"ab"}, {"files": "AAAA"}]) == [1, 2, 3]


def test_the_first_bytes_say_what_a_file_is(tmp_path: Path) -> None:
    types = {
        PNG: "image/png",
        b"RIFF....WAVEfmt ": "audio/wav",
        b"%PDF-1.7": "application/pdf",
        b"": cb.File(b"").media_type,
    }
    for data, name in types.items():
        assert media_type_of(data) == name
    assert cb.File(PNG, "text/csv").media_type == "text/csv"
    (tmp_path / "a.png").write_bytes(PNG)
    image = cb.Image.open(tmp_path / "a.png")
    assert (image.data, repr(image)) == (PNG, "Image(16 bytes of image/png)")
    assert image == cb.Image(PNG) and image != cb.File(PNG) and len({image, cb.Image(PNG)}) == 1


# ---- Pictures --------------------------------------------------------------------------------------------------------


def test_a_picture_is_pixels_and_back() -> None:
    pytest.importorskip("PIL")
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image = cb.Image.from_array(pixels)
    assert image.media_type == "image/png" and np.array_equal(image.array(), pixels)
    assert image.pil().size == (3, 2) and image.array("L").shape == (2, 3)
    assert cb.Image.from_array(pixels, "JPEG").media_type == "image/jpeg"
    # A mode that PNG lacks.
    assert cb.Image.from_pil(image.pil("CMYK")).pil().mode == "RGB"


def test_pictures_of_pillow_are_arguments_and_results() -> None:
    pillow = pytest.importorskip("PIL.Image")

    @cb.function
    def turn(image: Any) -> Any:
        return image.rotate(90, expand=True)

    turn.__annotations__.update({"image": pillow.Image, "return": pillow.Image})
    found = described(turn)
    assert found["raw_body"]["field"] == "image" and found["output"]["contentMediaType"] == "image/*"
    with cb.test_client(turn) as client:
        answer = client.call(cb.Image.from_array(np.zeros((2, 3), np.uint8)))
    assert cb.Image(answer).pil().size == (2, 3)


def test_what_is_no_picture_is_invalid_input() -> None:
    pillow = pytest.importorskip("PIL.Image")
    whole = cb.Image.from_array(np.zeros((50, 50, 3), np.uint8)).data
    for data in (b"", b"not a picture", PNG, whole[: len(whole) // 2]):
        with pytest.raises(cb.InvalidInput, match=f"a picture of {len(data)} bytes .*: it cannot be decoded"):
            cb.Image(data).pil()
    most, pillow.MAX_IMAGE_PIXELS = pillow.MAX_IMAGE_PIXELS, 100
    try:
        with pytest.raises(cb.InvalidInput, match="exceeds limit of"):
            cb.Image(whole).pil()
    finally:
        pillow.MAX_IMAGE_PIXELS = most


def saved(image: Any, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def test_only_the_formats_of_pictures_that_callers_send_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    features = pytest.importorskip("PIL.features")
    picture = pillow.new("RGB", (3, 2))
    for format in ("PNG", "JPEG", "GIF", "WEBP", "AVIF", "TIFF", "BMP"):
        if format in ("WEBP", "AVIF") and not features.check(format.lower()):
            continue
        assert cb.Image(saved(picture, format)).pil("RGB").size == (3, 2)
    # Pillow gives PostScript to a program of the PATH, and names others by an extension that nobody asked for.
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    for data in (postscript, saved(picture, "PPM"), saved(picture, "ICO"), saved(picture, "TGA"), b"GIF8" + bytes(40)):
        with pytest.raises(cb.InvalidInput, match="it cannot be decoded"):
            cb.Image(data, "image/png").pil()
    assert not (tmp_path / "started").exists()


def test_a_picture_is_bounded_by_its_bytes_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 10_000)
    for mode, taken in (("L", True), ("1", True), ("P", True), ("RGB", True), ("LA", True), ("RGBA", False)):
        picture = cb.Image(saved(pillow.new(mode, (100, 100)), "PNG"))
        if taken:
            assert picture.pil().mode == mode
            # The converted bytes count, too.
            with pytest.raises(cb.InvalidInput, match=r"too many pixels \(100 by 100 of 4 bytes\)"):
                picture.pil("RGBA")
        else:
            with pytest.raises(cb.InvalidInput, match="too many pixels"):
                picture.pil("L")
    with pytest.raises(cb.InvalidInput, match="too many pixels"):
        cb.Image(saved(pillow.new("F", (100, 100)), "TIFF")).pil()
    if pytest.importorskip("PIL.features").check("webp"):
        assert cb.Image(saved(pillow.new("RGB", (70, 70)), "WEBP")).pil().size == (70, 70)
        with pytest.raises(cb.InvalidInput, match="too many pixels"):
            cb.Image(saved(pillow.new("RGB", (100, 100)), "WEBP")).pil()
    with pytest.raises(ValueError, match="mode='XYZ': Pillow does not know it"):
        cb.Image(PNG).pil("XYZ")


PEAK = """
import sys
import callboard as cb

def peak():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) << 10

data = sys.stdin.buffer.read()
small = cb.Image(bytes.fromhex(sys.argv[1]))
small.array()
before = peak()
pixels = cb.Image(data).array()
print((peak() - before) / (pixels.shape[0] * pixels.shape[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="its peak of memory is read from /proc")
def test_a_picture_takes_at_most_five_times_the_memory_that_is_counted_for_it() -> None:
    pillow = pytest.importorskip("PIL.Image")
    features = pytest.importorskip("PIL.features")
    large = pillow.new("RGB", (4000, 4000), (9, 99, 199))
    for format in ("PNG", "JPEG", "GIF", "WEBP", "AVIF", "TIFF", "BMP"):
        if format in ("WEBP", "AVIF") and not features.check(format.lower()):
            continue
        small = saved(large.resize((2, 2)), format)
        command = [sys.executable, "-c", PEAK, small.hex()]
        done = subprocess.run(command, input=saved(large, format), stdout=subprocess.PIPE, check=True)
        bytes_of_pixel = float(done.stdout)
        counted = 6 if format == "WEBP" else 3
        # The array, and what the reader of the format holds.
        assert 3 <= bytes_of_pixel <= 5 * counted, (format, bytes_of_pixel)


def test_of_an_animated_picture_the_first_frame_is_all_that_is_read() -> None:
    pillow = pytest.importorskip("PIL.Image")
    frames = [pillow.new("RGB", (4, 4), (index * 60, 0, 0)) for index in range(4)]
    for format in ("GIF", "TIFF", "PNG", "WEBP"):
        picture = cb.Image(saved(frames[0], format, save_all=True, append_images=frames[1:]))
        first = picture.pil()
        assert first.size == (4, 4) and getattr(first, "n_frames", 1) == 1
        assert first.convert("RGB").getpixel((0, 0)) == (0, 0, 0)
        with pytest.raises(EOFError):
            first.seek(1)


def test_a_large_picture_is_the_same_array_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL.Image")
    pixels = np.arange(50 * 7 * 3, dtype=np.uint8).reshape(50, 7, 3)
    picture = cb.Image.from_array(pixels)
    whole = [picture.array(mode) for mode in ("RGB", "L", "RGBA")]
    monkeypatch.setattr("callboard._media._STRIP_PIXELS", 30)
    for array, mode in zip(whole, ("RGB", "L", "RGBA"), strict=True):
        found = picture.array(mode)
        assert np.array_equal(found, array) and found.dtype == np.uint8 and not found.flags.writeable


def test_damaged_pictures_are_invalid_input_and_no_failure() -> None:
    pillow = pytest.importorskip("PIL.Image")
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for format in ("PNG", "JPEG", "GIF", "TIFF", "BMP"):
        good = saved(pillow.effect_noise((40, 30), 50), format)
        for _ in range(60):
            bad = bytearray(good[: chance.randrange(len(good) // 2, len(good) + 1)])
            for _ in range(chance.randrange(1, 8)):
                bad[chance.randrange(8, len(bad))] = chance.randrange(256)
            with contextlib.suppress(cb.InvalidInput), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cb.Image(bytes(bad)).array()


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ModuleNotFoundError, match=r"pictures needs pillow; install it: .* -m pip install pillow"):
        cb.Image(PNG).pil()
    with pytest.raises(ModuleNotFoundError, match="audio/flac needs soundfile; install it"):
        cb.Audio(b"fLaC....").array()
    with pytest.raises(cb.InvalidInput, match="a sound of 1 bytes"):
        cb.Audio(b"x").array()
    with pytest.raises(cb.InvalidInput, match=r"a sound of 16 bytes \(image/png\): it cannot be decoded"):
        cb.Audio(PNG).array()


# ---- Sounds ----------------------------------------------------------------------------------------------------------


def test_a_sound_is_samples_and_back() -> None:
    samples = np.array([[0.0, 0.5], [-1.0, 1.0]], np.float32)
    sound = cb.Audio.from_array(samples, 8000)
    read, rate = sound.array()
    assert (sound.media_type, rate, read.dtype) == ("audio/wav", 8000, np.float32)
    assert np.allclose(read, samples, atol=1e-4)
    assert cb.Audio.from_array(samples[:, 0], 8000).array()[0].shape == (2, 1)


@pytest.mark.parametrize(("width", "raw"), [(1, b"\xc0\x00"), (2, b"\0\x40\0\x80"), (3, b"\0\0\x40\0\0\x80")])
def test_integers_of_each_width_are_from_minus_one_to_one(width: int, raw: bytes) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(width)
        writer.setframerate(100)
        writer.writeframes(raw)
    assert cb.Audio(file.getvalue()).array()[0].tolist() == [[0.5], [-1.0]]


def test_the_samples_of_a_sound_are_bounded_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.zeros((1 << 20, 2), np.float32), 8000, format="FLAC")
    sound = cb.Audio(file.getvalue())
    assert len(sound) < 50_000 and sound.array()[0].shape == (1 << 20, 2)
    # Announced are 2^36 - 1 samples in 5 bytes at the end of a fixed header.
    announced = bytearray(sound.data)
    announced[21] |= 0x0F
    announced[22:26] = b"\xff" * 4
    with pytest.raises(
        cb.InvalidInput, match=r"a sound of \d+ bytes: 549755813880 bytes of samples are more than 268435456"
    ):
        cb.Audio(bytes(announced)).array()
    monkeypatch.setattr("callboard._media._MAX_SAMPLES", 1 << 20)
    monkeypatch.setattr("callboard._media._MAX_SAMPLES_FOR_A_BYTE", 1)
    with pytest.raises(cb.InvalidInput, match="8388608 bytes of samples are more than 1048576"):
        sound.array()
    # A WAV file has all of its samples in it.
    whole = cb.Audio.from_array(np.zeros((1 << 18, 1), np.float32), 8000)
    assert len(whole.array()[0]) == 1 << 18
    for bad in (b"OggS" + bytes(60), b"fLaC" + bytes(100), b"RIFF\xff\xff\xff\x7fWAVEfmt " + bytes(40)):
        with pytest.raises(cb.InvalidInput):
            cb.Audio(bad).array()


# ---- Results ---------------------------------------------------------------------------------------------------------


def test_a_file_is_sent_as_its_bytes() -> None:
    large = bytes(range(256)) * 8
    assert decode(encode({"a": cb.File(PNG), "b": [cb.Image(large)]})) == {"a": PNG, "b": [large]}


def test_a_picture_with_too_many_pixels_fails_its_item_only() -> None:
    image = pytest.importorskip("PIL.Image")
    # Few kilobytes, and 100 million pixels: over the limit at which Pillow warns.
    small, large = (cb.Image.from_pil(image.new("1", size)).data for size in ((2, 2), (10_000, 10_000)))
    with Node("media.py:pixels").ready() as node:
        good, bomb, after = node.call(small, large, small)
        assert good == after == 4
        assert bomb["invalid"] and "too many pixels (10000 by 10000 of 1 bytes)" in bomb["message"]
