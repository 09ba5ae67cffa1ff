package main

import (
	"io"

	"github.com/alecthomas/kong"
)

// completionCommand prints a script for a shell.
type completionCommand struct {
	Shell string `arg:"" enum:"${shells}" help:"Shell: ${enum}."`
}

// Run is called by kong.
func (c *completionCommand) Run(k *kong.Context) error {
	script, err := completionScript(c.Shell, k.Model)
	if err != nil {
		return usageError{err}
	}
	_, err = io.WriteString(k.Stdout, script)
	return err
}

// manCommand prints the manual page.
type manCommand struct{}

// Run is called by kong.
func (*manCommand) Run(k *kong.Context) error {
	_, err := io.WriteString(k.Stdout, manual(k.Model, manualPage))
	return err
}

var manualPage = manualText{
	Description: []string{
		"ferula collects, stores and queries Prometheus-style metrics and Pyroscope-style profiles. Each command replaces " +
			"a program and speaks its protocols: serve replaces Prometheus and a small Pyroscope; query, query-frontend, " +
			"sidecar and store replace the commands of Thanos with these names.",
		"Flags of Prometheus and Thanos keep their names and meanings. A flag that ferula does not need is accepted, with " +
			"a warning in the log. A flag that cannot be ignored without changing results is refused, with the reason. This " +
			"page does not list such flags: see docs/ops/flags.md.",
		"Every server listens on loopback unless a flag sets another address, and has no authentication unless a file " +
			"configures it.",
	},
	ExitStatus: []manualEntry{
		{Term: "0", Text: "The command succeeded, or the server was stopped by SIGTERM or SIGINT."},
		{Term: "1", Text: "The command failed."},
		{Term: "2", Text: "The command line or a file that it names is wrong."},
		{Term: "3", Text: "check: there are findings, and --lint-fatal is set."},
	},
	Environment: []manualEntry{
		{Term: "GOMAXPROCS", Text: "Number of CPUs to use. By default the CPU limit of the container, or the CPUs of the " +
			"machine."},
		{Term: "GOMEMLIMIT", Text: "Memory above which garbage is collected more often. By default it follows from the " +
			"memory limit of the container or of the machine."},
	},
	Examples: []manualEntry{
		{Term: "ferula serve --config.file=prometheus.yml --storage.tsdb.path=data",
			Text: "Scrape, store and query metrics; the page is at http://127.0.0.1:9490/."},
		{Term: "ferula sidecar --prometheus.url=http://127.0.0.1:9090 --tsdb.path=/var/lib/prometheus " +
			"--objstore.config-file=bucket.yml", Text: "Serve a Prometheus as a StoreAPI and upload its blocks."},
		{Term: "ferula query --endpoint=127.0.0.1:10901 --grpc-address=127.0.0.1:10911 --http-address=127.0.0.1:10912 " +
			"--query.replica-label=replica", Text: "Query stores and deduplicate replicas."},
		{Term: "source <(ferula completion bash)", Text: "Complete commands, flags and values in this shell."},
	},
	SeeAlso: "prometheus(1), promtool(1). Documents: https://github.com/ferula-io/ferula/tree/main/docs",
}
