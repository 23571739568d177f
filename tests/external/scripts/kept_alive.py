"""Refused requests and good ones in turn on kept-alive connections: no good one may be lost.

`kept_alive.py CLIENT URL REQUESTS`: CLIENT is `http.client`, `requests` or `httpx`. Prints the good answers. With
`http.client-anew` each request has a connection of its own, for a proxy that keeps connections.
"""

import ssl
import sys
import urllib.parse

client, url, requests = sys.argv[1:]
parts = urllib.parse.urlsplit(url)
body = b"x" * 1000
refusals = [("/nowhere", "application/json"), ("/readyz", "application/json"), ("/digits", "application/zip")]
good = 0


def pieces():
    yield body
    yield body


if client.startswith("http.client"):
    import http.client

    if parts.scheme == "https":
        trusting = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(parts.netloc, timeout=60, context=trusting)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    for number in range(int(requests)):
        path, media_type = refusals[number % len(refusals)]
        # Head and body go in segments of their own.
        chunked = number % 5 == 4
        connection.request("POST", path, pieces() if chunked else body, {"content-type": media_type})
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (404, 405, 415), answer.status
        if client == "http.client-anew":
            connection.close()
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        if client == "http.client-anew":
            connection.close()
        good += answer.status == 200
elif client == "requests":
    import requests as library

    with library.Session() as session:
        for number in range(int(requests)):
            path, media_type = refusals[number % len(refusals)]
            data = pieces() if number % 5 == 4 else body
            answer = session.post(url + path, data=data, headers={"content-type": media_type}, timeout=60)
            assert answer.status_code in (404, 405, 415), answer.status_code
            good += session.get(url + "/livez", timeout=60).status_code == 200
else:
    import httpx

    with httpx.Client(http2=client == "httpx-2", http1=client != "httpx-2", timeout=60, verify=False) as session:
        for number in range(int(requests)):
            path, media_type = refusals[number % len(refusals)]
            content = pieces() if number % 5 == 4 else body
            answer = session.post(url + path, content=content, headers={"content-type": media_type})
            assert answer.status_code in (404, 405, 415), answer.status_code
            good += session.get(url + "/livez").status_code == 200
print(good)
