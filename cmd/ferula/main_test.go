package main

import (
	_ "github.com/prometheus/prometheus/promql/promqltest"
	_ "github.com/prometheus/prometheus/web/api/v1"
	_ "go.uber.org/goleak"
	_ "pgregory.net/rapid"
)
