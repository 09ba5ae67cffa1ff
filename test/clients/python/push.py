"""Pushes profiles of itself with Grafana's Python SDK to the server whose address is the argument."""

import sys
import time

import pyroscope


def hot_python(seconds):
    end, n = time.time() + seconds, 0
    while time.time() < end:
        n += 1
    return n


pyroscope.configure(application_name="python.client", server_address=sys.argv[1], tags={"region": "eu"})
hot_python(3)
pyroscope.shutdown()
