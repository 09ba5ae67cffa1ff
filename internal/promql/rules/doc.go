// Package rules evaluates recording and alerting rules and sends alerts to Alertmanagers,
// by Prometheus' packages.
//
// Prepare reads the rule files of a configuration and returns every error in them. Apply puts the result of Prepare
// into effect and does not read the files again. While Run is running each group is evaluated at its interval by the
// query engine. Results, ALERTS and ALERTS_FOR_STATE are appended to the storage, and alerts go to the queue of each
// Alertmanager that discovery has found:
//
//	rule_files -> Prepare -> Apply -> groups -> engine -> appender
//	                                              `----> queues -> Alertmanagers
//
// After a restart the state of alerts is restored from the samples of ALERTS_FOR_STATE in the storage. The package
// has no HTTP API and does not watch files.
package rules
