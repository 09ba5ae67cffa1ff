"""Parses pages with the strict OpenMetrics parser of prometheus-client, and prints a line for each URL."""

import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

ACCEPT = "application/openmetrics-text; version=1.0.0"

for url in sys.argv[1:]:
    try:
        request = urllib.request.Request(url, headers={"Accept": ACCEPT})
        with urllib.request.urlopen(request, timeout=30) as response:
            kind, page = response.headers["Content-Type"], response.read().decode()
        if not kind.startswith("application/openmetrics-text"):
            raise ValueError("content type " + kind)
        families = list(text_string_to_metric_families(page))
        print("pass", url, len(families))
    except Exception as e:  # any error is a verdict
        print("fail", url + ":", type(e).__name__, str(e).replace("\n", " "))
