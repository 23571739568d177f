"""What each decoder of the package may take for the bytes of an input, counted: no input costs many times its size."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import struct
import tracemalloc
import wave
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import callboard as cb
from callboard._conversion import convert
from callboard._envelope import EnvelopeError, TooLargeError, decode, encode
from callboard._envelope import texts as texts_module
from callboard._exceptions import InvalidInput

# The memory of a decoder that does not depend on its input: imports, caches, and the padding of short texts.
CONSTANT = 4 << 20


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that were allocated at the same time while it ran. What it raises for a bad input is no matter."""
    tracemalloc.start()
    try:
        kept = work()
        del kept
        return tracemalloc.get_traced_memory()[1]
    except (EnvelopeError, InvalidInput, ValueError):
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def array_of_texts(texts: list[str]) -> bytes:
    """An envelope of texts, also of some for which NumPy would have no memory."""
    return encode(np.array(texts, np.dtypes.StringDType()))


needs_strings = pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no StringDType")


@needs_strings
@pytest.mark.parametrize(
    "texts",
    [
        ["x" * (2 << 20), *[""] * 15],
        ["x" * (1 << 20), *[""] * 100_000],
        ["", *["x" * 5000] * 200, "\U0001f600" * 5000],
        ["\U0001f600" + "x" * 100_000] * 10,
        [""] * 200_000,
        ["ab"] * 100_000,
        ["a\0"] * 100_000,
    ],
    ids=["one long", "many empty", "mixed", "wide letters", "empty", "short", "zeros"],
)
def test_an_array_of_texts_takes_no_more_than_twelve_times_its_bytes(texts: list[str]) -> None:
    envelope = array_of_texts(texts)
    assert peak_of(lambda: decode(envelope)) < 12 * len(envelope) + CONSTANT
    assert decode(envelope).tolist() == texts


@needs_strings
def test_many_small_arrays_of_texts_share_the_room_for_padding() -> None:
    each = np.array(["x" * 300, *[""] * 300], np.dtypes.StringDType())
    envelope = encode([each] * 300)
    arrays = decode(envelope)
    assert arrays[0].dtype == np.dtype("<U300") and arrays[-1].dtype == np.dtypes.StringDType()
    assert peak_of(lambda: decode(envelope)) < 12 * len(envelope) + CONSTANT


@needs_strings
@pytest.mark.parametrize("hint", [np.ndarray, np.ndarray[Any, np.dtype[np.float32]], int])
def test_one_long_text_in_a_list_is_not_what_all_others_are_padded_to(hint: Any) -> None:
    texts = ["x" * 100_000, *[""] * 10_000]
    for value in (texts, [texts, texts], {"a": texts}, [b"x" * 100_000, *[b""] * 10_000], [np.array(["x" * 100_000])]):
        assert peak_of(lambda value=value: convert(value, hint)) < CONSTANT
    array = convert(texts, np.ndarray)
    assert array.dtype == np.dtypes.StringDType() and array.tolist() == texts


def test_texts_of_any_length_can_be_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = encode(np.array(["x" * 2500, *[""] * 2500]))
    for dtype in (texts_module._VARIABLE, texts_module._OBJECTS):
        monkeypatch.setattr(texts_module, "_VARIABLE", dtype)
        array = decode(envelope)
        assert array.dtype == dtype and encode(convert(array, np.ndarray)) == envelope
        assert decode(encode(array[1:].reshape(50, 50))).tolist() == [[""] * 50] * 50
    with pytest.raises(TypeError, match="dtype `object` cannot be sent"):
        encode(np.array(["a"], object))


def test_an_array_is_no_list_before_its_hint_asks_for_one() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("M", x=(int, ...))
    array = np.full(4 << 20, -100, np.int8)
    for hint in (int, str, list[str], dict[str, int], list[list[int]], model):
        for value in (array, {"x": array}, [{"x": [array]}]):
            assert peak_of(lambda value=value, hint=hint: convert(value, hint)) < CONSTANT
    # A hint of lists gets them, with and without a length.
    numbers = [1.5] * 2000
    pair = tuple[tuple(float for _ in numbers)]  # type: ignore[misc]
    for hint in (list[float], pair, pydantic.create_model("N", x=(list[float], pydantic.Field(min_length=1500)))):
        value = np.array(numbers) if not hasattr(hint, "model_fields") else {"x": np.array(numbers)}
        found = convert(value, hint)
        assert list(getattr(found, "x", found)) == numbers


@pytest.mark.parametrize("filling", [";", ";a", "a b ", " ", "data:", ",", ";base64"])
def test_a_text_in_the_place_of_a_file_is_read_in_one_pass(filling: str) -> None:
    for text in (f"data:{filling * (1 << 19)}", f"data:;base64,{filling * (1 << 19)}", filling * (1 << 19)):
        assert peak_of(lambda text=text: convert(text, cb.Image)) < 4 * len(text) + CONSTANT


def test_the_head_of_a_data_url_has_a_bound() -> None:
    assert convert(f"data:{';a=b' * 250};base64,AAAA", cb.File).data == b"\0\0\0"
    with pytest.raises(InvalidInput, match="got a data URL without `;base64,` in its first 1024 characters"):
        convert(f"data:{';a=b' * 300};base64,AAAA", cb.File)


@pytest.mark.parametrize("piece", [b"\x90", b"\x80", b"\xc0", b"\xa2ab", b"\x81\xa1a\x80", b"\x91\x90"])
def test_a_tree_takes_no_more_than_a_hundred_times_its_bytes(piece: bytes) -> None:
    count = 50_000
    tree = b"\xdd" + struct.pack(">I", count) + piece * count
    assert peak_of(lambda: decode(envelope_of(tree))) < 100 * len(tree) + CONSTANT


@pytest.mark.parametrize(
    "leaf", [np.zeros((), np.int8), np.array(["a"]), np.float32(1), (), b"", np.zeros((0,) * 9)], ids=repr
)
def test_small_leaves_take_no_more_than_a_hundred_times_their_bytes(leaf: Any) -> None:
    envelope = encode([leaf] * 5_000)
    assert peak_of(lambda: decode(envelope)) < 100 * len(envelope) + CONSTANT


def test_keys_of_a_map_take_no_more_than_fifty_times_their_bytes() -> None:
    envelope = encode({f"{n:x}": None for n in range(200_000)})
    assert peak_of(lambda: decode(envelope)) < 50 * len(envelope) + CONSTANT


def envelope_of(tree: bytes) -> bytes:
    return b"\x89CBE\x01\0\0\0" + struct.pack("<IIQ", len(tree), 0, 24 + len(tree)) + tree


def test_damaged_envelopes_are_refused_at_a_bounded_cost() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    value = {
        "texts": np.array(["one", "", "three " * 200]),
        "small": np.array(["a", "bc"]),
        "array": np.arange(600.0).reshape(2, 300),
        "pair": (np.float32(1), np.zeros((2, 0), np.int8), b"x" * 2000, ["a", 1, None, 2**63]),
    }
    good = encode(value)
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            place = chance.randrange(24, len(bad)) if chance.random() < 0.9 else chance.randrange(len(bad))
            bad[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        taken = bytes(bad)

        def read(taken: bytes = taken) -> None:
            with contextlib.suppress(EnvelopeError):
                decode(taken)

        assert peak_of(read) < 100 * len(taken) + CONSTANT


def test_a_wav_file_takes_no_more_than_six_times_its_bytes() -> None:
    for width in (1, 2, 3, 4):
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setparams((1, width, 8000, 0, "NONE", ""))
            writer.writeframes(bytes(width << 20))
        sound = cb.Audio(file.getvalue())
        assert peak_of(sound.array) < 6 * len(sound) + CONSTANT


def test_an_answer_in_small_chunks_takes_no_more_than_four_times_its_bytes() -> None:
    httpx = pytest.importorskip("httpx")
    from callboard.client._http_reply import FrameReader, Reply

    def whole() -> None:
        response = httpx.Response(
            200,
            headers={"content-type": "application/vnd.callboard.envelope"},
            request=httpx.Request("POST", "http://node/echo"),
        )
        reply = Reply(response, 1 << 30)
        for _ in range(1 << 17):
            reply.push(b"ab")
        assert bytes(reply.body()) == b"ab" * (1 << 17)

    def stream() -> None:
        kind = "application/vnd.callboard.envelope-stream"
        reader = FrameReader(httpx.Response(200, headers={"content-type": kind}), 1 << 30)
        for piece in itertools.chain([struct.pack("<B3xI", 0, 2 << 17)], itertools.repeat(b"ab", 1 << 17)):
            outputs = list(reader.push(piece))
        assert outputs == [b"ab" * (1 << 17)]

    assert peak_of(whole) < 4 * (2 << 17) + (1 << 20)
    assert peak_of(stream) < 4 * (2 << 17) + (1 << 20)


# ---- Data frames -----------------------------------------------------------------------------------------------------


def stream_of(table: Any, **options: Any) -> bytes:
    """The envelope of a frame that another writer has made."""
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    stream = sink.getvalue().to_pybytes()
    return envelope_of(b"\xc9" + struct.pack(">Ib", len(stream), 5) + stream)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_frame_is_charged_with_what_it_unpacks_to(codec: str) -> None:
    pa = pytest.importorskip("pyarrow")
    envelope = stream_of(pa.table({"x": np.zeros(1 << 20)}), compression=codec)
    pool, exact = pa.default_memory_pool(), (8 << 20) + 1024
    assert decode(envelope, exact).num_rows == 1 << 20
    before = pool.max_memory()
    # All frames of one value together.
    for bad, limit in ((envelope, exact - 1), (envelope_of(b"\x92" + 2 * envelope[24:]), 2 * exact - 1)):
        with pytest.raises(TooLargeError, match=r"data frames that unpack to \d+ bytes or more exceed"):
            decode(bad, limit)
    assert pool.max_memory() <= before + exact


def test_rows_without_bytes_are_bounded_on_all_levels() -> None:
    pa = pytest.importorskip("pyarrow")
    rows = 1 << 20
    for column in (pa.nulls(rows), pa.array([b""] * 1000, pa.binary(0)), pa.array([[None] * 1000])):
        assert decode(stream_of(pa.table({"x": column}))).num_rows == len(column)
    inner = pa.FixedSizeListArray.from_arrays(pa.nulls(3 * rows), 3 * rows)
    for table in (pa.table({"x": pa.nulls(rows + 1)}), pa.table({"x": inner})):
        with pytest.raises(EnvelopeError, match="rows without bytes: at most 1048576"):
            decode(stream_of(table))


def test_damaged_frames_are_refused_at_a_bounded_cost() -> None:
    pa = pytest.importorskip("pyarrow")
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    words = pa.array(["a", None, "ccc"] * 50)
    table = pa.table({"n": np.arange(150), "w": words, "d": words.dictionary_encode(), "l": [[1, 2], [], None] * 50})
    pool = pa.default_memory_pool()
    for codec in (None, "lz4", "zstd"):
        good = stream_of(table, compression=codec)
        assert decode(good).equals(table)
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(chance.choice((1, 2, 8))):
                bad[chance.randrange(30, len(bad))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            before = pool.max_memory()
            taken = bytes(bad)

            def read(taken: bytes = taken) -> None:
                with contextlib.suppress(EnvelopeError):
                    decode(taken, 1 << 20)

            assert peak_of(read) < 100 * len(taken) + CONSTANT
            assert pool.max_memory() <= max(before, 16 << 20)
