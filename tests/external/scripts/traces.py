"""A collector that reads OTLP with OpenTelemetry's own messages, and the server that sends to it: who is whose parent, what is
linked to what, and that the last spans come before the server ends."""

import concurrent.futures
import http.client
import http.server
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import threading
import urllib.request

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

binary, directory = sys.argv[1:]
received = []


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf", self.path
        received.append(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{collector.server_address[1]}"

# Four callers make a batch, however slowly they come.
config = pathlib.Path(directory) / "callboard.toml"
model = pathlib.Path("examples/digits/digits.onnx").resolve()
config.write_text(f"""
[[stage]]
name = "digits"
kind = "onnx"
model = {json.dumps(str(model))}
max_batch_size = 4
max_delay = "20s"

[[route]]
path = "/digits"
stages = "digits"

[traces]
endpoint = "{endpoint}"
ratio = 0
""")
environment = {name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")}
server = subprocess.Popen(
    [binary, "serve", str(config), "--http", "127.0.0.1:0", "--admin", "off"],
    stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment,
)
try:
    said = []
    for line in server.stderr:
        said.append(line)
        if found := re.search(r"listening on http://(\S+)", line):
            break
    else:
        raise AssertionError("".join(said))
    address = found[1]
    # Nobody blocks on a full pipe.
    threading.Thread(target=lambda: said.extend(server.stderr), daemon=True).start()
    picture = json.dumps([[[0.0] * 8] * 8])

    def call(sampled):
        trace, parent = secrets.token_hex(16), secrets.token_hex(8)
        headers = {"content-type": "application/json", "traceparent": f"00-{trace}-{parent}-{int(sampled):02x}"}
        request = urllib.request.Request(f"http://{address}/digits", picture.encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            told = answer.headers["traceparent"].split("-")
            assert told[1] == trace and told[2] != parent, told
            return trace, parent, told[2]

    # One of the four is not to be seen.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = list(pool.map(call, [True, True, True, False]))

    client = http.client.HTTPConnection(address, timeout=60)
    client.request("GET", "/digits", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    assert client.getresponse().read() is not None
    client.close()

    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, said
finally:
    server.kill()
    server.wait()

# The server has ended: all that it had to say is here.
resources = [resource for request in received for resource in request.resource_spans]
for resource in resources:
    about = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert about["service.name"] == pathlib.Path(directory).name, about
spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
assert len({span.span_id for span in spans}) == len(spans)


def attributes(span):
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def named(name, trace=None):
    return [span for span in spans if span.name == name and (trace is None or span.trace_id.hex() == trace)]


sampled = calls[:3]
assert not [span for span in spans if span.trace_id.hex() == calls[3][0]], "the caller said no"
[batch] = named("batch digits")
assert attributes(batch)["callboard.batch.size"] == 4 and attributes(batch)["callboard.batch.release"] == "full"
assert batch.parent_span_id == b"" and batch.kind == Span.SPAN_KIND_INTERNAL
links = {(link.trace_id.hex(), link.span_id.hex()) for link in batch.links}
assert links == {(trace, own) for trace, _, own in sampled}, (links, sampled)

for trace, parent, own in sampled:
    [request] = named("POST /digits", trace)
    assert (request.span_id.hex(), request.parent_span_id.hex()) == (own, parent)
    assert request.kind == Span.SPAN_KIND_SERVER and request.status.code == Status.STATUS_CODE_UNSET
    assert attributes(request)["http.route"] == "/digits" and attributes(request)["http.response.status_code"] == 200
    [queue], [compute] = named("queue digits", trace), named("compute digits", trace)
    for part in queue, compute:
        assert part.parent_span_id == request.span_id and part.kind == Span.SPAN_KIND_INTERNAL
        assert request.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= request.end_time_unix_nano
    assert queue.end_time_unix_nano <= compute.start_time_unix_nano
    assert [(link.trace_id, link.span_id) for link in compute.links] == [(batch.trace_id, batch.span_id)]
    assert attributes(compute)["callboard.replica"] == 0 and attributes(compute)["callboard.run.end"] == "done"

[refused] = named("GET /digits")
assert refused.trace_id.hex() == "a" * 32 and refused.parent_span_id.hex() == "b" * 16
assert attributes(refused)["http.response.status_code"] == 405
assert len(spans) == 1 + 3 * 3 + 1, [span.name for span in spans]
print(f"{len(spans)} spans in {len(received)} messages")
