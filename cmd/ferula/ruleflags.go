package main

import (
	"time"

	"github.com/ferula-io/ferula/internal/promql/rules"
)

// ruleFlags are the flags of serve about rules and alerts.
type ruleFlags struct {
	Tolerance   duration `name:"rules.alert.for-outage-tolerance" default:"1h" help:"Max time to tolerate an outage for restoring \"for\" state of alert."`
	Grace       duration `name:"rules.alert.for-grace-period" default:"10m" help:"Minimum duration between alert and restored \"for\" state. This is maintained only for alerts with configured \"for\" time greater than grace period."`
	ResendDelay duration `name:"rules.alert.resend-delay" default:"1m" help:"Minimum amount of time to wait before resending an alert to Alertmanager."`
	Concurrent  int      `name:"rules.max-concurrent-evals" default:"4" help:"Maximum number of independent rules, of all groups together, that are evaluated in addition to one rule of each group. It needs the feature concurrent-rule-eval."`
	Queue       int      `name:"alertmanager.notification-queue-capacity" min:"1" default:"10000" help:"The capacity of the queue for pending notifications of one Alertmanager. The oldest are dropped."`
	Batch       int      `name:"alertmanager.notification-batch-size" min:"1" default:"256" help:"The maximum number of notifications per batch to send to the Alertmanager."`
	Drain       bool     `name:"alertmanager.drain-notification-queue-on-shutdown" default:"true" negatable:"" help:"Send any outstanding Alertmanager notifications when shutting down, for at most 30s. If false, they are dropped."`
}

func (f ruleFlags) options() rules.Options {
	return rules.Options{
		OutageTolerance: time.Duration(f.Tolerance), ForGracePeriod: time.Duration(f.Grace),
		ResendDelay:        time.Duration(f.ResendDelay),
		MaxConcurrentEvals: f.Concurrent,
		QueueCapacity:      f.Queue, BatchSize: f.Batch, DropOnShutdown: !f.Drain,
	}
}
