"""Opens the documentation of a server in Chromium without an internet, tries a route, and looks at the answer.

    browser.py CHROMIUM ADDRESS ROUTE EXPECTED SCREENSHOT

Drives the browser by its own protocol (CDP). Fails when the page asks any other host for anything, when a script of it fails, when
it needs what its content security policy forbids, or when the answer is not there in time.
"""

import base64
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import websocket

PATIENCE = 120

# In pixels, of a laptop.
TWO_SCREENS = 2000


class Page:
    """One tab."""

    def __init__(self, url):
        # No origin: the browser refuses those it does not know.
        self.socket = websocket.create_connection(url, timeout=PATIENCE, suppress_origin=True)
        self.count = 0
        self.asked = []
        self.failures = []

    def command(self, method, **parameters):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, event):
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.failures.append(json.dumps(event["params"]["exceptionDetails"])[:2000])
        issue = event.get("params", {}).get("issue", {})
        if issue.get("code") == "ContentSecurityPolicyIssue":
            self.failures.append(json.dumps(issue)[:2000])

    def value(self, script):
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def listen(self):
        for domain in ("Page", "Runtime", "Network", "Audits"):
            self.command(f"{domain}.enable")

    def press(self, key):
        code = {"Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, text="\r", windowsVirtualKeyCode=code)

    def stayed_at(self, address):
        """Asked no other host, and neither failed nor broke its policy."""
        others = [url for url in self.asked if not url.startswith((f"http://{address}/", "data:", "blob:"))]
        assert not others, f"the page asked others: {others}"
        assert not self.failures, self.failures

    def becomes(self, script, pause=0.05):
        """Waits until this is true, and gives what it is then."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            value = self.value(script)
            if value:
                return value
            time.sleep(pause)
        raise AssertionError(f"never became true: {script}\n{self.value('document.body.innerText')}")


def tab(directory):
    """The address of the browser's only tab, once it has one."""
    port_file = Path(directory) / "DevToolsActivePort"
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if port_file.exists() and port_file.read_text().count("\n"):
            port = port_file.read_text().split("\n")[0]
            tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
            pages = [tab for tab in tabs if tab["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("the browser did not start")


def try_route(page, address, route, expected, screenshot):
    page.listen()
    page.command("Page.navigate", url=f"http://{address}/")
    # 46rem: its style is the one that its policy names.
    page.becomes("document.body && getComputedStyle(document.body).maxWidth === '736px'")
    page.command("Page.navigate", url=f"http://{address}/docs")
    block = f"document.querySelector('#operations-routes-post{route.replace('/', '_')}')"
    # Each step is asked for until the next is there: what is drawn may not listen yet.
    height = None
    for wanted, click in (
        ("", None),
        (".try-out__btn", ".opblock:not(.is-open) .opblock-summary-control, .opblock-summary-control[aria-expanded='false']"),
        (".execute", ".try-out__btn:not(.cancel)"),
        (".live-responses-table tbody .response-col_status", ".execute"),
    ):
        there = f"{block}?.querySelector({json.dumps(wanted)})" if wanted else block
        step = f"{block}?.querySelector({json.dumps(click)})?.click()" if click else "null"
        page.becomes(f"!!{there} || ({step}, false)", pause=0.5)
        if wanted == ".execute":
            height = page.value(f"{block}.getBoundingClientRect().height")
    status = page.becomes(f"{block}.querySelector('.live-responses-table tbody .response-col_status')?.innerText")
    assert status.startswith("200"), status
    answer = page.becomes(f"{block}.querySelector('.live-responses-table .highlight-code')?.innerText")
    assert expected in answer, answer
    assert height <= TWO_SCREENS, f"an operation that is {height} px high is read by nobody"
    page.value(f"{block}.querySelector('.live-responses-table').scrollIntoView()")
    shot = page.command("Page.captureScreenshot", format="png")
    Path(screenshot).write_bytes(base64.b64decode(shot["data"]))
    page.stayed_at(address)
    assert any("/openapi.json" in url for url in page.asked), page.asked


@contextlib.contextmanager
def chromium(program):
    """A browser of its own, with one tab."""
    directory = tempfile.mkdtemp()
    command = [
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        # There is no internet: every name but our own leads nowhere.
        "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        "--remote-debugging-port=0",
        "--window-size=1100,1400",
        f"--user-data-dir={directory}",
        "about:blank",
    ]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Page(tab(directory))
    finally:
        browser.kill()
        browser.wait()
        shutil.rmtree(directory, ignore_errors=True)


def main(program, address, route, expected, screenshot):
    with chromium(program) as page:
        try_route(page, address, route, expected, screenshot)


if __name__ == "__main__":
    main(*sys.argv[1:])
