"""Posts a file again and again with httpx over HTTP/2, all on one connection."""

import pathlib
import sys

import httpx

url, file, requests = sys.argv[1:]
body = pathlib.Path(file).read_bytes()

with httpx.Client(http1=False, http2=True, timeout=60) as client:
    for _ in range(int(requests)):
        try:
            print(client.post(url, content=body, headers={"content-type": "image/png"}).status_code)
        except httpx.HTTPError as error:
            print(repr(error))
