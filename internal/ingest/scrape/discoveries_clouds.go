//go:build clouds

package scrape

import (
	// The discoveries whose clients are large: with them a build without cache takes half
	// as long again. The released binary has them.
	_ "github.com/prometheus/prometheus/discovery/aws"
	_ "github.com/prometheus/prometheus/discovery/azure"
	_ "github.com/prometheus/prometheus/discovery/gce"
	_ "github.com/prometheus/prometheus/discovery/ionos"
	_ "github.com/prometheus/prometheus/discovery/oci"
	_ "github.com/prometheus/prometheus/discovery/outscale"
)
