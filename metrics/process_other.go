//go:build !linux && !windows && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package metrics

func (p *page) appendProcMetrics() {}

func (p *page) appendFDMetrics() {}
