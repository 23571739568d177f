"""Uploads pictures with requests: as a form, as raw bytes and as base64 in JSON; reads a problem document."""

import base64
import pathlib
import sys

import requests

url = f"http://{sys.argv[1]}/digits"
digits = pathlib.Path("examples/digits")
words = {"zero": "0", "three": "3", "five": "5", "seven": "7", "eight": "8"}

with requests.Session() as session:
    for word, label in words.items():
        picture = (digits / f"{word}.png").read_bytes()
        asked = [
            session.post(url, files={"image": picture}),
            session.post(url, data=picture, headers={"content-type": "image/png"}),
            session.post(url, json={"image": base64.b64encode(picture).decode()}),
        ]
        for answer in asked:
            assert answer.status_code == 200, answer.text
            assert answer.json()["label"] == label, answer.text

    answer = session.post(url, json={"picture": ""})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json", answer.headers
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
