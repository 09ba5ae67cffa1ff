package app

import (
	"net/url"

	"github.com/ferula-io/ferula/internal/promql/rules"
)

// newRules creates the manager of rules and reads the rule files of the configuration, so
// that a fault in one of them ends the process before the storage is opened.
func (s *Serve) newRules(external *url.URL) (err error) {
	s.rules, err = rules.New(s.opts.Rules, rules.Deps{
		Engine:      s.queries,
		Parser:      s.engine.Parser,
		Queryable:   s.remotes,
		Local:       s.store,
		Appendable:  s.sender.Samples(),
		ExternalURL: external,
		SDMetrics:   s.scraper.SDMetrics,
		Logger:      s.opts.Logger,
		Registerer:  s.reg,
	})
	if err != nil {
		return err
	}
	cfg := s.config.current()
	s.config.rules, err = s.rules.Prepare(&cfg)
	return err
}
