package remotesend

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage/remote"
)

// Prometheus exports its queues, but neither a constructor that other modules can call nor the number of samples that a
// queue still has. So queues are taken from a remote.WriteStorage, and both are read from unexported fields (ADR 33).
// TestLibrary fails if a new version of Prometheus has other fields.

// field returns the address of a field below a pointer to a struct of the library.
func field[T any](of any, path ...string) (*T, error) {
	v := reflect.ValueOf(of)
	for _, name := range path {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || !v.FieldByName(name).IsValid() {
			return nil, fmt.Errorf("%T has no field %s", of, strings.Join(path, "."))
		}
		v = v.FieldByName(name)
	}
	if v.Type() != reflect.TypeFor[T]() {
		return nil, fmt.Errorf("field %s of %T is a %s", strings.Join(path, "."), of, v.Type())
	}
	return (*T)(v.Addr().UnsafePointer()), nil
}

// sending is a started queue of the library, with what it does not export.
type sending struct {
	*remote.QueueManager
	client   remote.WriteClient // that the library has made for the section
	enqueued [3]*int64          // samples, histograms and exemplars that have not been sent or refused
}

// take starts the queue of the only section of cfg. The queue does not belong to the library's storage any more.
func take(from *remote.WriteStorage, cfg *config.Config) (*sending, error) {
	queues, err := field[map[string]*remote.QueueManager](from, "queues")
	if err != nil {
		return nil, err
	}
	if err := from.ApplyConfig(cfg); err != nil {
		return nil, err
	}
	made := *queues
	*queues = nil
	for _, manager := range made {
		q := &sending{QueueManager: manager}
		client, err := field[remote.WriteClient](manager, "storeClient")
		for i, name := range []string{"enqueuedSamples", "enqueuedHistograms", "enqueuedExemplars"} {
			if err == nil {
				q.enqueued[i], err = field[int64](manager, "shards", name, "v")
			}
		}
		if err != nil {
			manager.Stop()
			return nil, err
		}
		q.client = *client
		return q, nil
	}
	return nil, fmt.Errorf("%T makes no queue", from)
}

// pending returns how many samples, histograms and exemplars are neither sent nor refused. It may be called only while
// nothing is enqueued: for a moment the library counts a sent sample as sent, but not as enqueued.
func (q *sending) pending() (sum int64) {
	for _, n := range q.enqueued {
		sum += atomic.LoadInt64(n)
	}
	return sum
}

// unwatched registers the metrics of the library except of its watchers, which read nothing here.
type unwatched struct{ prometheus.Registerer }

// MustRegister implements prometheus.Registerer.
func (u unwatched) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		described := make(chan *prometheus.Desc, 16) // each has one
		c.Describe(described)
		close(described)
		watchers := false
		for desc := range described {
			text := desc.String()
			watchers = watchers || strings.Contains(text, `"prometheus_wal_watcher_`) ||
				strings.Contains(text, `"prometheus_tsdb_wal_reader_`)
		}
		if !watchers {
			u.Registerer.MustRegister(c)
		}
	}
}
