package main

import (
	"time"

	"github.com/ferula-io/ferula/internal/promql/rules"
)

// ruleFlags are the flags of serve about rules and alerts.
type ruleFlags struct {
	Tolerance   duration `name:"rules.alert.for-outage-tolerance" default:"1h"`
	Grace       duration `name:"rules.alert.for-grace-period" default:"10m"`
	ResendDelay duration `name:"rules.alert.resend-delay" default:"1m"`
	Concurrent  int      `name:"rules.max-concurrent-evals" default:"4"`
	Queue       int      `name:"alertmanager.notification-queue-capacity" min:"1" default:"10000"`
	Batch       int      `name:"alertmanager.notification-batch-size" min:"1" default:"256"`
	Drain       bool     `name:"alertmanager.drain-notification-queue-on-shutdown" default:"true" negatable:""`
}

func (f ruleFlags) options() rules.Options {
	return rules.Options{
		OutageTolerance: time.Duration(f.Tolerance), ForGracePeriod: time.Duration(f.Grace),
		ResendDelay:        time.Duration(f.ResendDelay),
		MaxConcurrentEvals: f.Concurrent,
		QueueCapacity:      f.Queue, BatchSize: f.Batch, DropOnShutdown: !f.Drain,
	}
}
