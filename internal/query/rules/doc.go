// Package rules evaluates recording and alerting rules and sends alerts to Alertmanagers,
// by Prometheus' packages.
//
// Prepare reads the rule files of a configuration and returns every error in them. Apply puts the result of Prepare into
// effect and does not read the files again. While Run is running each group is evaluated at its interval by the query
// engine. Results, ALERTS and ALERTS_FOR_STATE are appended to the storage, and alerts go to the queue of each
// Alertmanager that discovery has found:
//
//	rule_files -> Prepare -> Apply -> groups -> engine -> appender
//	                                              `----> queues -> Alertmanagers
//
// The state of an alert is in the storage: after a restart it is read from
// ALERTS_FOR_STATE. The package contains no HTTP API and no watching of files.
package rules
