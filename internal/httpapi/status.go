package httpapi

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func (a *API) statusConfig(*http.Request) (response, *apiError) {
	cfg := a.opts.Config()
	return response{write: func(s *stream) {
		s.field(`{"yaml":`, withoutSecrets(cfg))
		s.raw("}")
	}}, nil
}

func (a *API) statusFlags(*http.Request) (response, *apiError) {
	return response{write: func(s *stream) {
		s.raw("{")
		for i, name := range sortedKeys(a.opts.Flags) {
			s.comma(i)
			s.str(name)
			s.field(":", a.opts.Flags[name])
		}
		s.raw("}")
	}}, nil
}

func (a *API) statusBuildInfo(*http.Request) (response, *apiError) {
	b := a.opts.BuildInfo
	return response{write: func(s *stream) {
		s.field(`{"version":`, b.Version)
		s.field(`,"revision":`, b.Revision)
		s.field(`,"branch":`, b.Branch)
		s.field(`,"buildUser":`, b.BuildUser)
		s.field(`,"buildDate":`, b.BuildDate)
		s.field(`,"goVersion":`, b.GoVersion)
		s.field(`,"program":`, b.Program)
		s.raw("}")
	}}, nil
}

func (a *API) statusRuntimeInfo(*http.Request) (response, *apiError) {
	info, err := a.opts.RuntimeInfo()
	if err != nil {
		return response{}, &apiError{kindInternal, err}
	}
	return response{write: func(s *stream) {
		s.raw(`{"startTime":`)
		s.rfc3339(info.StartTime)
		s.field(`,"CWD":`, info.CWD)
		s.field(`,"hostname":`, info.Hostname)
		s.raw(`,"serverTime":`)
		s.rfc3339(a.opts.Now().UTC())
		s.raw(`,"reloadConfigSuccess":`)
		s.boolean(info.ReloadConfigSuccess)
		s.raw(`,"lastConfigTime":`)
		s.rfc3339(info.LastConfigTime)
		s.raw(`,"corruptionCount":`)
		s.integer(info.CorruptionCount)
		s.raw(`,"goroutineCount":`)
		s.integer(int64(runtime.NumGoroutine()))
		s.raw(`,"GOMAXPROCS":`)
		s.integer(int64(runtime.GOMAXPROCS(0)))
		s.raw(`,"GOMEMLIMIT":`)
		s.integer(debug.SetMemoryLimit(-1))
		s.field(`,"GOGC":`, os.Getenv("GOGC"))
		s.field(`,"GODEBUG":`, os.Getenv("GODEBUG"))
		s.field(`,"storageRetention":`, info.StorageRetention)
		s.raw("}")
	}}, nil
}

// tsdbStatsMax is the maximum of `limit` in status/tsdb.
const tsdbStatsMax = 10_000

func (a *API) statusTSDB(r *http.Request) (response, *apiError) {
	limit := 10
	if text := r.FormValue("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return response{}, badData(errors.New("limit must be a positive number"))
		}
		if limit > tsdbStatsMax {
			return response{}, badData(fmt.Errorf("limit must not exceed %d", tsdbStatsMax))
		}
	}
	stats, err := a.opts.Status.HeadStats(labels.MetricName, limit)
	if err != nil {
		return response{}, &apiError{kindInternal, err}
	}
	chunks, err := a.headChunks()
	if err != nil {
		return response{}, &apiError{kindInternal, fmt.Errorf("error gathering runtime status: %w", err)}
	}
	all := storeapi.StatisticsOf(stats)
	all.Chunks = chunks
	return response{write: func(s *stream) { s.tsdbStatistics(&all) }}, nil
}

// storeStatusTSDB is statusTSDB for all stores. As in Thanos `match[]` selects TSDBs by their
// external labels, and a limit of 0 is the default.
func (a *API) storeStatusTSDB(r *http.Request) (response, *apiError) {
	limit, apiErr := optionalInt(r, "limit") // -1 if it is absent
	switch {
	case apiErr != nil:
		return response{}, apiErr
	case limit < 0 && r.FormValue("limit") != "":
		return response{}, badData(errors.New("limit must be non-negative"))
	case limit > tsdbStatsMax:
		return response{}, badData(fmt.Errorf("limit must not exceed %d", tsdbStatsMax))
	case limit <= 0:
		limit = 10
	}
	p, apiErr := a.storeParams(r, purpose{})
	if apiErr != nil {
		return response{}, apiErr
	}
	var matchers []*labels.Matcher
	for _, text := range r.Form["match[]"] {
		some, err := a.opts.Parser.ParseMetricSelector(text)
		if err != nil {
			return response{}, invalidParameter("match[]", err)
		}
		matchers = append(matchers, some...)
	}
	all, warnings, err := a.opts.Stores.TSDBStatistics(r.Context(), p, matchers, limit)
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) {
		s.tsdbStatistics(&all)
	}, annotations: &responseAnnotations{list: warnings}}, nil
}

func (s *stream) tsdbStatistics(stats *storeapi.TSDBStatistics) {
	s.raw(`{"headStats":{"numSeries":`)
	s.unsigned(stats.Series)
	s.raw(`,"numLabelPairs":`)
	s.integer(stats.LabelPairs)
	s.raw(`,"chunkCount":`)
	s.integer(stats.Chunks)
	s.raw(`,"minTime":`)
	s.integer(stats.MinMS)
	s.raw(`,"maxTime":`)
	s.integer(stats.MaxMS)
	s.raw("}")
	s.cardinality(`,"seriesCountByMetricName":`, stats.SeriesByMetric)
	s.cardinality(`,"labelValueCountByLabelName":`, stats.ValuesByLabel)
	s.cardinality(`,"memoryInBytesByLabelName":`, stats.BytesByLabel)
	s.cardinality(`,"seriesCountByLabelValuePair":`, stats.SeriesByPair)
	s.raw("}")
}

func (s *stream) cardinality(key string, stats []storeapi.Statistic) {
	s.raw(key)
	s.raw("[")
	for i, stat := range stats {
		s.comma(i)
		s.field(`{"name":`, stat.Name)
		s.raw(`,"value":`)
		s.unsigned(stat.Value)
		s.raw("}")
		s.flushIfFull()
	}
	s.raw("]")
}

// headChunks returns the number of head chunks from the TSDB's gauge, its only source.
func (a *API) headChunks() (int64, error) {
	if a.opts.Gatherer == nil {
		return 0, nil
	}
	families, err := a.opts.Gatherer.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() == "prometheus_tsdb_head_chunks" && len(family.GetMetric()) > 0 {
			if g := family.GetMetric()[0].GetGauge(); g != nil {
				return int64(math.Round(g.GetValue())), nil
			}
		}
	}
	return 0, nil
}

func (a *API) statusWALReplay(*http.Request) (response, *apiError) {
	status := a.opts.Status.WALReplayStatus()
	return response{write: func(s *stream) {
		s.raw(`{"min":`)
		s.integer(int64(status.Min))
		s.raw(`,"max":`)
		s.integer(int64(status.Max))
		s.raw(`,"current":`)
		s.integer(int64(status.Current))
		s.raw("}")
	}}, nil
}
