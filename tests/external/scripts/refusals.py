"""Posts a file again and again with http.client, which sends all of a body before it looks for an answer."""

import http.client
import pathlib
import sys
import urllib.parse

url = urllib.parse.urlsplit(sys.argv[1])
body = pathlib.Path(sys.argv[2]).read_bytes()

for _ in range(int(sys.argv[3])):
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    try:
        connection.request("POST", url.path, body, {"content-type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        print(answer.status)
    except OSError as error:
        print(repr(error))
    connection.close()
