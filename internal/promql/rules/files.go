package rules

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/sigv4"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/precheck"
)

// Prepare reads and checks the rule files and the Alertmanagers of a configuration. It changes nothing. The error has
// every fault of the rule files, with file and line.
func (m *Manager) Prepare(cfg *config.Config) (*Prepared, error) {
	p, err := read(cfg, m.deps.Parser, m.logger)
	return p, errors.Join(err, CheckAlertmanagers(cfg))
}

func read(cfg *config.Config, p parser.Parser, logger *slog.Logger) (*Prepared, error) {
	prepared := &Prepared{cfg: cfg, files: map[string]*rulefmt.RuleGroups{}}
	var errs []error
	for _, pattern := range cfg.RuleFiles {
		names, err := filepath.Glob(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule_files: pattern %q: %w", pattern, err))
			continue
		}
		if len(names) == 0 {
			logger.Warn("No file matches a pattern of rule_files", "pattern", pattern)
		}
		for _, name := range names {
			if _, twice := prepared.files[name]; twice {
				continue
			}
			content, err := os.ReadFile(name)
			if err != nil {
				errs = append(errs, fmt.Errorf("rule file: %w", err))
				continue
			}
			groups, err := Parse(name, content, cfg.GlobalConfig.MetricNameValidationScheme, p, logger)
			errs = append(errs, err)
			prepared.names = append(prepared.names, name)
			prepared.files[name] = groups
		}
	}
	return prepared, errors.Join(errs...)
}

// Parse parses a rule file. The error has every fault, with the name of the file and the line.
func Parse(name string, content []byte, scheme model.ValidationScheme, p parser.Parser,
	logger *slog.Logger) (*rulefmt.RuleGroups, error) {
	groups, faults := rulefmt.Parse(content, false, scheme, Bounded{p}, logger)
	// It decodes a file twice, and returns a fault of its syntax as often.
	faults = slices.CompactFunc(faults, func(a, b error) bool { return a.Error() == b.Error() })
	errs := make([]error, len(faults))
	for i, fault := range faults {
		errs[i] = fmt.Errorf("rule file %s: %s%w", name, position(content, fault), fault)
	}
	return groups, errors.Join(errs...)
}

// position returns line and column of a faulty rule. It returns "" if the error has them already: only errors of
// labels, annotations and templates lack them.
func position(content []byte, fault error) string {
	var of *rulefmt.Error
	if !errors.As(fault, &of) || !strings.HasPrefix(fault.Error(), "group ") {
		return ""
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []yaml.Node
		}
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return ""
	}
	for _, g := range file.Groups {
		if g.Name == of.Group && of.Rule <= len(g.Rules) {
			at := g.Rules[of.Rule-1]
			return fmt.Sprintf("%d:%d: ", at.Line, at.Column)
		}
	}
	return ""
}

// CheckAlertmanagers returns the errors of all sections of Alertmanagers, such as TLS and password files that cannot be
// read. It creates and closes the HTTP client of each section. The notifier would return such an error only after it
// has changed other sections.
func CheckAlertmanagers(cfg *config.Config) error {
	var errs []error
	for i, section := range cfg.AlertingConfig.AlertmanagerConfigs {
		client, err := commonconfig.NewClientFromConfig(section.HTTPClientConfig, "alertmanager")
		if err == nil && section.SigV4Config != nil {
			_, err = sigv4.NewSigV4RoundTripper(section.SigV4Config, client.Transport)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("alerting: section %d of alertmanagers: %w", i+1, err))
			continue
		}
		client.CloseIdleConnections()
	}
	return errors.Join(errs...)
}

// Bounded is a parser for the expressions of rules, which rejects those nested too deeply.
type Bounded struct{ parser.Parser }

// ParseExpr implements parser.Parser.
func (b Bounded) ParseExpr(expr string) (parser.Expr, error) {
	if err := precheck.Query(expr, precheck.LevelsMax); err != nil {
		return nil, err
	}
	return b.Parser.ParseExpr(expr)
}

// loader passes the groups that Prepare has read to Prometheus' rules.Manager, which would
// otherwise read the files again.
type loader struct {
	parser parser.Parser

	mu    sync.Mutex
	files map[string]*rulefmt.RuleGroups
}

func (l *loader) set(files map[string]*rulefmt.RuleGroups) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = files
}

// Load implements Prometheus' GroupLoader.
func (l *loader) Load(name string, _ bool, _ model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	groups := l.files[name]
	if groups == nil {
		return nil, []error{fmt.Errorf("rule file %s was not read", name)}
	}
	return groups, nil
}

// Parse implements Prometheus' GroupLoader.
func (l *loader) Parse(expr string) (parser.Expr, error) { return l.parser.ParseExpr(expr) }
