"""Parses pages with the strict OpenMetrics parser of prometheus-client, and prints a line for each NAME=URL."""

import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

ACCEPT = "application/openmetrics-text; version=1.0.0"

for argument in sys.argv[1:]:
    name, url = argument.split("=", 1)
    try:
        request = urllib.request.Request(url, headers={"Accept": ACCEPT})
        with urllib.request.urlopen(request, timeout=30) as response:
            kind, page = response.headers["Content-Type"], response.read().decode()
        if not kind.startswith("application/openmetrics-text"):
            raise ValueError("content type " + kind)
        families = list(text_string_to_metric_families(page))
        print("pass", name, len(families))
    except Exception as e:  # any error is a verdict
        print("fail", name + ":", type(e).__name__, str(e).replace("\n", " "))
