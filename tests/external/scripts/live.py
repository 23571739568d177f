"""Opens the live page of a node's admin listener in Chromium without an internet, and looks at what it draws.

    live.py CHROMIUM ADMIN KEY EDGE PICTURE SCREENSHOT

Calls the digits all the time with a picture, types the key if one is given, waits for the rate of the route, pauses, and
takes a screenshot in light and in dark.
"""

import base64
import http.client
import json
import sys
import threading
from pathlib import Path

from browser import Page, chromium


ROUTE, STAGE = "/digits", "digits"


def keep_calling(edge, picture, is_over):
    connection, body = http.client.HTTPConnection(edge, timeout=60), Path(picture).read_bytes()
    while not is_over.wait(0.02):
        connection.request("POST", ROUTE, body, {"content-type": "image/png"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()


def look(page, admin, key, screenshot):
    page.listen()
    page.command("Page.navigate", url=f"http://{admin}/")
    if key:
        page.becomes("document.activeElement?.id === 'key'")
        page.command("Input.insertText", text="not-the-key")
        page.press("Enter")
        page.becomes("document.querySelector('#refused').textContent === 'This key was refused.'")
        page.command("Input.insertText", text=key)
        page.press("Enter")
    row = "[...document.querySelectorAll('tbody tr')].find(row => row.cells[0].innerText === %s)"
    calls = f"Number({row % json.dumps(ROUTE)}?.cells[1].innerText.replace(',', ''))"
    page.becomes(f"{calls} > 0", pause=0.2)
    assert page.value("document.querySelector('#state').innerText") == "ready"
    of_stage = row % json.dumps(STAGE)
    # Names for those who do not see: a dot for each replica, and a line for a minute.
    assert "busy" in page.value(f"{of_stage}.querySelector('svg.dots').getAttribute('aria-label')")
    page.becomes(f"{of_stage}.querySelector('svg.spark').getAttribute('aria-label').includes('last minute')")
    # A few seconds of lines.
    page.becomes("document.querySelector('svg.spark polyline:last-child').getAttribute('points').split(' ').length >= 4", pause=0.2)
    # By the keyboard alone.
    page.value("document.querySelector('#pause').focus()")
    page.press("Enter")
    assert page.value("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    colours = []
    for scheme in ("light", "dark"):
        page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.append(page.value("getComputedStyle(document.body).backgroundColor"))
        shot = page.command("Page.captureScreenshot", format="png")
        Path(screenshot.replace(".png", f"-{scheme}.png")).write_bytes(base64.b64decode(shot["data"]))
    assert colours[0] != colours[1], colours
    page.stayed_at(admin)


def main(program, admin, key, edge, picture, screenshot):
    is_over = threading.Event()
    threading.Thread(target=keep_calling, args=(edge, picture, is_over), daemon=True).start()
    with chromium(program) as page:
        look(page, admin, key, screenshot)
    is_over.set()


main(*sys.argv[1:])
