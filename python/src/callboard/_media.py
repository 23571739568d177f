"""Files as types of arguments and results: pictures, sounds, and any other bytes.

An argument comes as a file of a form, as a body of its own media type, as bytes, or as base64 in a text. A result goes
as bytes, which JSON writes as base64.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import contextvars
import functools
import io
import mimetypes
import os
import re
import sys
import types
import typing
import wave
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from callboard._elsewhere import FILES, no_attribute
from callboard._exceptions import InvalidInput
from callboard._fetch import Fetched

if TYPE_CHECKING:
    import PIL.Image

F = TypeVar("F", bound="File")

BYTES = "application/octet-stream"

# The hints that a file may be inside of.
_WRAPPERS = (list, tuple, types.UnionType, typing.Union)

# The place and the bytes by which a media type is known. The HTTP edge has the same list, in `file_type.rs`.
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"BM", "image/bmp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\3\4", "application/zip"),
)

# The formats that callers may send, by Pillow's names.
_PILLOW_FORMATS = {
    "image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP", "image/avif": "AVIF",
    "image/tiff": "TIFF", "image/bmp": "BMP",
}  # fmt: skip
# The reader of WebP holds the picture twice more than the others.
_COUNTED_TWICE = "WEBP"
# The bytes of a pixel of RGB, for which Pillow's limit of pixels is made.
_BYTES_OF_RGB = 3
# How many pixels become an array at once.
_STRIP_PIXELS = 4 << 20
# The most bytes of samples of a sound: the larger of a fixed size and a multiple of the bytes of its file.
_MAX_SAMPLES = 256 << 20
_MAX_SAMPLES_FOR_A_BYTE = 64
# The modes of Pillow that PNG has; others become RGB.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


class File:
    """A file as a hint: its bytes, and a media type such as `"application/pdf"`, by default what its first bytes say.

    As an argument it comes as a field of a form, as the body, as bytes in MessagePack, as base64 in JSON, or by its
    URL. As a result it is bytes, which JSON has as base64. With a `media_type` or a `name` it is sent as it is, to be
    saved under that name, if the request accepts its media type.
    """

    # The media types of its files, as the documentation shows them.
    media_range: ClassVar[str] = BYTES

    __slots__ = ("_is_chosen", "_media_type", "data", "name")

    data: bytes
    """The bytes of the file."""
    name: str | None
    """The name under which a client should save it."""

    def __init__(self, data: bytes, media_type: str | None = None, name: str | None = None) -> None:
        self.data = data
        self.name = name
        self._media_type = media_type
        # Whether the code of a service has chosen what it is. An input does not.
        self._is_chosen = media_type is not None or name is not None

    @classmethod
    def open(cls: type[F], path: str | os.PathLike[str]) -> F:
        """The file of this name. Raises `OSError` if it cannot be read."""
        with open(path, "rb") as file:
            return cls(file.read())

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            no_attribute(type(self), name, FILES)

    @property
    def media_type(self) -> str:
        """Such as `"image/png"`, by its bytes, else by its name; `"application/octet-stream"` if neither is known."""
        found = self._media_type or media_type_of(self.data)
        return (found == BYTES and self.name and mimetypes.guess_type(self.name)[0]) or found

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        """A field of a model of pydantic."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(functools.partial(convert, cls))

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        return schema(cls)

    def __len__(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and type(other) is type(self) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.data)} bytes of {self.media_type})"


class Image(File):
    """A picture as a hint: the bytes of a PNG, JPEG or other file. The other methods need Pillow.

    Without Pillow they raise `ModuleNotFoundError`, with the command that installs it.
    """

    media_range: ClassVar[str] = "image/*"

    __slots__ = ()

    def pil(self, mode: str | None = None) -> PIL.Image.Image:
        """The picture as Pillow's, in a mode such as `"RGB"` if one is given.

        It is a PNG, JPEG, GIF, WebP, AVIF, TIFF or BMP; Pillow reads other formats only from `data`. Of an animated one
        or one of several pages it is the first. Raises `InvalidInput`, which is status 422, if the bytes are no such
        picture, or more than `PIL.Image.MAX_IMAGE_PIXELS` (89 million pixels, with three bytes each: 256 MiB; of WebP
        half as many); `ValueError` for a mode that Pillow does not know.
        """
        pillow = _pillow()
        wanted = 0 if mode is None else _bytes_of_pixel(mode)
        # Its other formats run programs, or are read by code that few people use.
        format = _PILLOW_FORMATS.get(media_type_of(self.data))
        try:
            if format is None:
                raise ValueError("an unknown format")
            image: PIL.Image.Image = pillow.open(io.BytesIO(self.data), formats=[format])
            if pillow.MAX_IMAGE_PIXELS:
                bytes_of_pixel = max(wanted, _bytes_of_pixel(image.mode)) * (2 if format == _COUNTED_TWICE else 1)
                _check_size(image.size, bytes_of_pixel, pillow.MAX_IMAGE_PIXELS)
            is_first_of_many = _has_second_frame(image)
            image.load()
        except (_TooLarge, pillow.DecompressionBombError, MemoryError) as error:
            raise InvalidInput(f"a picture of {len(self.data)} bytes: it has too many pixels ({error})") from error
        except Exception as error:
            # Readers of damaged files raise what they come across.
            message = f"a picture of {len(self.data)} bytes ({self.media_type}): it cannot be decoded"
            raise InvalidInput(message) from error
        if mode is not None and image.mode != mode:
            return image.convert(mode)
        # The other frames may have any size.
        return image.copy() if is_first_of_many else image

    def array(self, mode: str = "RGB") -> NDArray[np.uint8]:
        """The pixels as an array of `uint8` from 0 to 255, which is not writable.

        Its shape is `(height, width, channels)`, with 3 channels in mode `"RGB"` and 4 in `"RGBA"`; in mode `"L"`,
        which is grey, it is `(height, width)`. Raises as `pil`.
        """
        image = self.pil(mode)
        rows = max(1, _STRIP_PIXELS // max(1, image.width))
        if image.height <= rows:
            return np.asarray(image)
        # Pillow copies what it gives to NumPy twice.
        tops = range(0, image.height, rows)
        strips = (image.crop((0, top, image.width, min(top + rows, image.height))) for top in tops)
        pixels: NDArray[np.uint8] | None = None
        for top, strip in zip(tops, map(np.asarray, strips), strict=True):
            if pixels is None:
                pixels = np.empty((image.height, *strip.shape[1:]), strip.dtype)
            pixels[top : top + len(strip)] = strip
        assert pixels is not None
        pixels.flags.writeable = False
        return pixels

    @classmethod
    def from_pil(cls, image: PIL.Image.Image, format: str | None = None) -> Image:
        """A picture of Pillow's as a file of a `format` such as `"JPEG"`, by default PNG.

        Raises `KeyError` for a format that Pillow does not know, and `OSError` if the format cannot hold the mode of
        the picture, such as JPEG an `"RGBA"` one.
        """
        format = format or "PNG"
        if format == "PNG" and image.mode not in _PNG_MODES:
            image = image.convert("RGB")
        file = io.BytesIO()
        image.save(file, format)
        return cls(file.getvalue())

    @classmethod
    def from_array(cls, pixels: NDArray[Any], format: str | None = None) -> Image:
        """Pixels as a file of a `format` such as `"JPEG"`, by default PNG.

        `pixels` are `uint8` from 0 to 255, of the shape `(height, width)`, which is grey, or `(height, width, 3)` for
        RGB or `(height, width, 4)` for RGBA. Raises `TypeError` for a dtype or shape that Pillow does not take, and as
        `from_pil`.
        """
        return cls.from_pil(_pillow().fromarray(np.ascontiguousarray(pixels)), format)


class Audio(File):
    """A sound as a hint: the bytes of a WAV, FLAC, Ogg or other file."""

    media_range: ClassVar[str] = "audio/*"

    __slots__ = ()

    def array(self) -> tuple[NDArray[np.float32], int]:
        """The samples and their rate in Hz.

        The samples are `float32` from -1 to 1, of the shape `(frames, channels)`. WAV files of integers need nothing
        else; other files need the package `soundfile`, and raise `ModuleNotFoundError` without it. Raises
        `InvalidInput`, which is status 422, if the bytes are no sound, or one whose samples have more than 256 MiB and
        more than 64 times the bytes of its file.
        """
        try:
            with wave.open(io.BytesIO(self.data)) as file:
                return _samples(file), file.getframerate()
        except (wave.Error, EOFError, OSError, ValueError):
            return self._by_soundfile()

    def _by_soundfile(self) -> tuple[NDArray[np.float32], int]:
        try:
            import soundfile
        except (ImportError, OSError):
            if not self.media_type.startswith("audio/"):
                message = f"a sound of {len(self.data)} bytes ({self.media_type}): it cannot be decoded"
                raise InvalidInput(message) from None
            raise _missing("soundfile", f"reading {self.media_type}") from None
        try:
            with soundfile.SoundFile(io.BytesIO(self.data)) as file:
                size = 4 * file.frames * file.channels
                most = max(_MAX_SAMPLES, _MAX_SAMPLES_FOR_A_BYTE * len(self.data))
                if size > most:
                    raise InvalidInput(
                        f"a sound of {len(self.data)} bytes: {size} bytes of samples are more than {most}"
                    )
                samples, rate = file.read(dtype="float32", always_2d=True), file.samplerate
        except InvalidInput:
            raise
        except Exception as error:
            message = f"a sound of {len(self.data)} bytes ({self.media_type}): it cannot be decoded"
            raise InvalidInput(message) from error
        return samples, int(rate)

    @classmethod
    def from_array(cls, samples: NDArray[Any], rate: int) -> Audio:
        """Samples as a WAV file of 16 bits.

        `samples` are numbers from -1 to 1, of the shape `(frames,)` or `(frames, channels)`; larger ones are cut off.
        `rate` is in Hz. Raises `wave.Error` for a rate below 1.
        """
        frames = samples.reshape(len(samples), -1)
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(frames.shape[1])
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes((np.clip(frames, -1, 1) * 32767).round().astype("<i2").tobytes())
        return cls(file.getvalue())


def media_type_of(data: bytes) -> str:
    """The media type of a file, by its first bytes."""
    found = (name for place, mark, name in _SIGNATURES if data[place : place + len(mark)] == mark)
    return next(found, BYTES)


def _samples(file: wave.Wave_read) -> NDArray[np.float32]:
    width = file.getsampwidth()
    if width > 4:
        raise wave.Error(f"samples of {8 * width} bits")
    raw = file.readframes(file.getnframes())
    samples: NDArray[np.float32]
    if width == 1:
        # The only width without a sign.
        samples = np.frombuffer(raw, np.uint8).astype(np.float32)
        samples -= 128
    elif width == 3:
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        samples = padded.view("<i4").astype(np.float32)
    else:
        samples = np.frombuffer(raw, f"<i{width}").astype(np.float32)
    samples /= 2.0 ** (31 if width == 3 else 8 * width - 1)
    return samples.reshape(-1, file.getnchannels())


class _TooLarge(Exception):
    pass


def _bytes_of_pixel(mode: str) -> int:
    from PIL import ImageMode

    try:
        described = ImageMode.getmode(mode)
    except KeyError:
        raise ValueError(f"mode={mode!r}: Pillow does not know it") from None
    return len(described.bands) * int(described.typestr[-1])


def _check_size(size: tuple[int, int], bytes_of_pixel: int, max_pixels: int) -> None:
    """Pillow itself only warns up to twice its limit, and counts a pixel of any mode alike."""
    pixels = size[0] * size[1]
    if pixels > max_pixels or pixels * bytes_of_pixel > _BYTES_OF_RGB * max_pixels:
        raise _TooLarge(f"{size[0]} by {size[1]} of {bytes_of_pixel} bytes")


def _has_second_frame(image: PIL.Image.Image) -> bool:
    """To count all frames would read the whole file, some formats again and again."""
    try:
        image.seek(1)
    except EOFError:
        return False
    image.seek(0)
    return True


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError:
        raise _missing("pillow", "reading and writing pictures") from None
    return PIL.Image


def _missing(package: str, purpose: str) -> ModuleNotFoundError:
    message = f"{purpose} needs {package}; install it: {sys.executable} -m pip install {package}"
    return ModuleNotFoundError(message, name=package)


# ---- Hints -----------------------------------------------------------------------------------------------------------


def is_file(hint: Any) -> bool:
    """Whether an argument of this hint is one file."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return isinstance(hint, type) and (issubclass(hint, File) or is_pillow(hint))


def has_file(hint: Any) -> bool:
    """Whether an argument of this hint is a file, a list of files, or may be one."""
    return is_file(hint) or (get_origin(hint) in _WRAPPERS and any(map(has_file, get_args(hint))))


def is_pillow(kind: type) -> bool:
    """Whether this is Pillow's type of pictures."""
    return kind.__module__.partition(".")[0] == "PIL" and hasattr(kind, "tobitmap")


def media_range_of(hint: Any) -> str:
    """The media types of the files of a hint, such as `image/*`."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return hint.media_range if issubclass(hint, File) else Image.media_range


def schema(kind: type) -> dict[str, Any]:
    """The JSON Schema of a file."""
    media_range = media_range_of(kind)
    known = {} if media_range == BYTES else {"contentMediaType": media_range}
    description = "a file: bytes, base64 as text, or an https URL if the server allows its host"
    return {"type": "string", "contentEncoding": "base64", **known, "description": description}


def convert(kind: type, value: Any) -> Any:
    """An input as a file of this type. `ValueError` says what it is instead."""
    file = _converted(kind, value)
    if isinstance(file, File):
        file._is_chosen = False
    return file


def _converted(kind: type, value: Any) -> Any:
    if is_pillow(kind):
        image = convert(Image, value)
        return _pillow().new("1", (1, 1)) if image.data is _PENDING else image.pil()
    if isinstance(value, File):
        return kind(value.data, value.media_type)
    url = url_of(value)
    if url is not None:
        return _by_url(kind, url)
    if isinstance(value, str):
        data, media_type = _from_text(value)
        return kind(data, media_type)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return kind(bytes(value))
    raise ValueError(f"Expected a file, as bytes or as base64 in a text, got `{type(value).__name__}`")


# The bytes of a file that is still to be fetched.
_PENDING = bytes(bytearray(b"pending"))
# Gives the file of a URL while an input is converted: None to wait for it. Without this, URLs are refused.
_resolve: contextvars.ContextVar[Callable[[str], Fetched | None] | None] = contextvars.ContextVar(
    "callboard_files", default=None
)
_GENERIC = (None, BYTES, "binary/octet-stream")


@contextlib.contextmanager
def resolving(resolve: Callable[[str], Fetched | None]) -> Iterator[None]:
    """While inputs are converted whose URLs stand for these files."""
    token = _resolve.set(resolve)
    try:
        yield
    finally:
        _resolve.reset(token)


def url_of(value: Any) -> str | None:
    """The URL in the place of a file: a text, or `{"url": "https://…"}`."""
    if isinstance(value, dict) and list(value) == ["url"]:
        value = value["url"]
    return value if isinstance(value, str) and _URL.match(value) else None


def has_url(value: Any) -> bool:
    """Whether there may be such a place in an input."""
    if isinstance(value, (list, tuple)):
        return any(map(has_url, value))
    return any(map(has_url, value.values())) if isinstance(value, dict) else url_of(value) is not None


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def _by_url(kind: type[File], url: str) -> File:
    resolve = _resolve.get()
    if resolve is None:
        cure = "send the file in a form, or as base64"
        raise ValueError(f"Expected a file, got a URL: this server fetches none (setting files.hosts); {cure}")
    try:
        file = resolve(url)
    except ValueError as error:
        raise ValueError(f"Expected a file, got a URL: {error}") from None
    if file is None:
        return kind(_PENDING)
    by_bytes = media_type_of(file.data)
    for media_type in (file.media_type, by_bytes):
        if media_type not in _GENERIC and not _is_in(str(media_type), kind.media_range):
            raise ValueError(f"Expected a file of {kind.media_range}, got {media_type} from its URL")
    return kind(file.data, by_bytes if file.media_type in _GENERIC else file.media_type)


def _is_in(media_type: str, media_range: str) -> bool:
    return media_range == BYTES or media_type.startswith(media_range.removesuffix("*"))


# The longest start of a `data:` URL: its media type and parameters.
_DATA_HEAD = 1024


def _from_text(text: str) -> tuple[bytes, str | None]:
    """Base64 as in mail (RFC 4648, with padding), or a `data:` URL of it (RFC 2397)."""
    media_type = None
    if text[:5].lower() == "data:":
        head, comma, _ = text[:_DATA_HEAD].partition(",")
        first, *parameters = head[5:].split(";")
        if not comma or not parameters or parameters[-1].lower() != "base64":
            raise ValueError(f"Expected a file, got a data URL without `;base64,` in its first {_DATA_HEAD} characters")
        media_type, text = first.lower() or None, text[len(head) + 1 :]
    try:
        # For bytes this needs one copy, whatever lies between the spaces.
        return base64.b64decode(text.encode("ascii").translate(None, b" \t\r\n"), validate=True), media_type
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"Expected a file, got a text that is not base64: {error}") from None


# ---- Results ---------------------------------------------------------------------------------------------------------


def as_bytes(value: Any) -> bytes | None:
    """The bytes of a file or of Pillow's picture; None of other values."""
    if isinstance(value, File):
        return value.data
    return Image.from_pil(value).data if is_pillow(type(value)) else None
