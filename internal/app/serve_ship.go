package app

import (
	"path/filepath"

	"github.com/ferula-io/ferula/internal/app/shipping"
	"github.com/ferula-io/ferula/internal/hint"
)

// newShipping sets up shipping. The configuration must be loaded and the store created.
func (s *Serve) newShipping() error {
	opts, external := s.opts.Ship, s.config.externalLabels
	if err := opts.CheckLocal(s.store.Options(), external()); err != nil {
		return err
	}
	var err error
	if s.shipping, err = shipping.New(opts, s.opts.Store.Dir, "ferula", external, s.opts.Logger, s.reg); err != nil {
		return hint.Invalid("objstore.config", err)
	}
	s.process.Note = func() string { return s.shipping.Note() + s.profiles.note() }
	s.shipping.AddProfiles(filepath.Join(s.profilesDir(), "profiles"), opts, s.opts.Logger, s.reg)
	return nil
}

// profilesDir returns the parent of the directory "profiles".
func (s *Serve) profilesDir() string {
	if dir := s.opts.Profiles.Store.Dir; dir != "" {
		return dir
	}
	return s.opts.Store.Dir
}
