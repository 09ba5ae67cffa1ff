//go:build !linux

package metrics

func (p *page) appendProcMetrics() {}

func (p *page) appendFDMetrics() {}
