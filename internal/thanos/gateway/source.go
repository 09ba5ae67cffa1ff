package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

var _ storeapi.Source = (*Store)(nil)

// Info implements storeapi.API.
func (s *Store) Info(context.Context) (storeapi.Info, error) {
	if s.opts.Ready != nil && !s.opts.Ready() {
		return storeapi.Info{}, fmt.Errorf("%w: the blocks are not listed yet", storeapi.ErrUnavailable)
	}
	info := storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{Sharding: true, WithoutReplicaLabels: true}}
	info.LabelSets, info.Store.TSDBs = s.Spans()
	info.Store.MinMS, info.Store.MaxMS = s.Range()
	return info, nil
}

// Capabilities implements storeapi.Source.
func (*Store) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// ExternalLabels implements storeapi.Source. It returns none: each block has its own, which Select adds.
func (*Store) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

// Series implements storeapi.API.
func (s *Store) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	selection, err := s.Select(ctx, r)
	if err != nil {
		return storeapi.Failed(withStatus(err))
	}
	return stream{selection}
}

// stream is a selection whose error has a status code.
type stream struct{ *Selection }

func (s stream) Err() error         { return withStatus(s.Selection.Err()) }
func (stream) BufferedBytes() int64 { return 0 }

func texts(warnings annotations.Annotations) (all []string) {
	for _, w := range warnings.AsErrors() {
		all = append(all, w.Error())
	}
	return all
}

// withStatus wraps an error of the store with the error of package storeapi that has its status code.
func withStatus(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrLimit), errors.Is(err, pages.ErrBudget):
		return fmt.Errorf("%w: %w", storeapi.ErrLimit, err)
	case errors.Is(err, ErrCorrupt):
		return fmt.Errorf("%w: %w", storeapi.ErrCorrupt, err)
	case errors.Is(err, ErrBlock), errors.Is(err, ErrClosed):
		return fmt.Errorf("%w: %w", storeapi.ErrUnavailable, err)
	}
	return err
}
