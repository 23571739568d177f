"""Values as envelopes: the form in which every input and output crosses the socket.

An envelope is a header, a tree of MessagePack, and segments: large leaves as they lie in memory. A reader returns
arrays as read-only views of the received bytes. A writer returns pieces, so that a large array is never copied. The
format is in `docs/wire.md`, sections "Values in MessagePack" and "Envelope, version 1".

`layout.py` is what both sides agree on, `writing.py` and `reading.py` are the two sides, `texts.py` reads arrays of
texts, and `arrow.py` turns data frames into Arrow streams and back, which alone needs pyarrow; `frame_check.py` bounds
what they unpack to, and `frames.py` knows pandas and polars. `forms.py` says which hints keep keys and sets.
"""

from callboard._envelope.arrow import series_table
from callboard._envelope.forms import FRAMES, PACKED, forms_of
from callboard._envelope.layout import Buffer, EnvelopeError, MissingPackageError, TooLargeError, type_name
from callboard._envelope.reading import Decoder, decode
from callboard._envelope.texts import text_dtype
from callboard._envelope.writing import encode, encode_pieces

__all__ = [
    "FRAMES",
    "PACKED",
    "Buffer",
    "Decoder",
    "EnvelopeError",
    "MissingPackageError",
    "TooLargeError",
    "decode",
    "encode",
    "encode_pieces",
    "forms_of",
    "series_table",
    "text_dtype",
    "type_name",
]
