"""The parser of Prometheus' own client reads both pages of metrics. Argument: the address of a node."""

import sys
import urllib.request

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def page(path, accept):
    request = urllib.request.Request(f"http://{sys.argv[1]}{path}", headers={"accept": accept})
    with urllib.request.urlopen(request) as answer:
        return answer.headers["content-type"], answer.read().decode()


def samples(families):
    return {sample.name: sample.value for family in families for sample in family.samples}


for path, names in (
    ("/metrics", ["callboard_requests_total", "callboard_in_flight", "callboard_queued"]),
    ("/metrics/load", ["callboard_queued", "callboard_running", "callboard_saturation"]),
):
    for accept in ("text/plain", OPENMETRICS):
        media_type, text = page(path, accept)
        is_open = media_type.startswith("application/openmetrics-text")
        parse = openmetrics.text_string_to_metric_families if is_open else text_string_to_metric_families
        found = samples(parse(text))
        assert all(name in found for name in names), (path, media_type, sorted(found))
    print(path)
