"""Services with files, for the tests."""

from __future__ import annotations

import callboard as cb


@cb.function
@cb.batched(max_batch_size=8)
def sizes(image: list[cb.Image]) -> list[tuple[str, int]]:
    return [(each.media_type, len(each)) for each in image]


@cb.function
async def sizes_async(image: cb.Image) -> tuple[str, int]:
    return image.media_type, len(image)


@cb.function
def pixels(image: cb.Image) -> int:
    return image.array("L").size
