package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles/api"
	"github.com/ferula-io/ferula/internal/profiles/ingest"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// profileFlags are the flags of serve about profiles.
type profileFlags struct {
	Path          string   `name:"storage.profiles.path" default:"" placeholder:"DIR"`
	RetentionTime duration `name:"storage.profiles.retention.time" default:"15d"`
	RetentionSize size     `name:"storage.profiles.retention.size" default:"0"`

	BucketCache size     `name:"profiles.bucket-cache-size" min:"1MB" max:"1TB" default:"256MB"`
	BucketIndex size     `name:"profiles.bucket-index-memory" min:"1MB" default:"128MB"`
	BucketSync  duration `name:"profiles.bucket-sync-interval" min:"1s" default:"2m"`
	BucketKeep  duration `name:"profiles.bucket-retention" default:"0s"`
	BucketDelay duration `name:"profiles.bucket-delete-delay" min:"1m" default:"2h"`

	ConfigFile string `name:"profiles.config-file" placeholder:"FILE"`

	Self  bool     `name:"profiles.self" default:"true" negatable:""`
	Every duration `name:"profiles.self.interval" min:"1s" default:"15s"`

	HeadSize size `name:"profiles.head-size" min:"16MB" default:"512MB"`
	Memory   size `name:"profiles.memory" default:"0"`

	Multitenancy bool `name:"profiles.multitenancy"`

	MaxNodes int  `name:"profiles.max-nodes" min:"1" max:"1048576" default:"8192"`
	BodySize size `name:"profiles.max-request-size" min:"1B" max:"1GB" default:"64MB"`

	QueriesMax   int      `name:"profiles.query.max-concurrency" min:"1" default:"20"`
	QueryTimeout duration `name:"profiles.query.timeout" min:"1s" default:"2m"`
	QueryRange   duration `name:"profiles.query.max-range" default:"31d"`
	QueryPartial bool     `name:"profiles.query.partial-response" default:"true" negatable:""`

	DropLabels []string `name:"profiles.drop-sample-labels" placeholder:"NAME,..."`

	Rate         size     `name:"profiles.limit.rate" min:"1B" default:"32MB"`
	Burst        size     `name:"profiles.limit.burst" min:"1B" default:"64MB"`
	Series       int      `name:"profiles.limit.series" min:"1" default:"20000"`
	Profile      size     `name:"profiles.limit.profile-size" min:"1B" default:"16MB"`
	Decompressed size     `name:"profiles.limit.decompressed-size" min:"1B" default:"4MB"`
	Symbols      int      `name:"profiles.limit.symbols" min:"1" default:"500000"`
	Samples      int      `name:"profiles.limit.samples" min:"1" default:"16000"`
	Depth        int      `name:"profiles.limit.depth" min:"1" default:"1000"`
	Nodes        int      `name:"profiles.limit.nodes" min:"1" default:"500000"`
	Labels       int      `name:"profiles.limit.labels" min:"1" default:"30"`
	LabelNames   int      `name:"profiles.limit.label-name-length" min:"1" default:"1024"`
	LabelValues  int      `name:"profiles.limit.label-value-length" min:"1" default:"2048"`
	Age          duration `name:"profiles.limit.age" min:"1ms" default:"1h"`
	Future       duration `name:"profiles.limit.future" min:"1ms" default:"10m"`
	Tenants      int      `name:"profiles.limit.tenants" min:"1" default:"1000"`
}

// profileLimitFlags are the flags of ingest.Limits, for errors.
var profileLimitFlags = hint.Flags{
	"RateBytes": "--profiles.limit.rate", "BurstBytes": "--profiles.limit.burst", "Series": "--profiles.limit.series",
	"ProfileBytes": "--profiles.limit.profile-size", "DecompressedBytes": "--profiles.limit.decompressed-size",
	"Symbols": "--profiles.limit.symbols",
	"Samples": "--profiles.limit.samples", "Nodes": "--profiles.limit.nodes", "Labels": "--profiles.limit.labels",
	"LabelNameBytes": "--profiles.limit.label-name-length", "LabelValueBytes": "--profiles.limit.label-value-length",
	"Age": "--profiles.limit.age", "Future": "--profiles.limit.future", "Tenants": "--profiles.limit.tenants",
}

func (f profileFlags) Validate() error {
	var errs []error
	if keep := time.Duration(f.BucketKeep); keep != 0 &&
		(keep < 0 || f.RetentionTime == 0 || f.RetentionTime > f.BucketKeep) {
		local := f.RetentionTime.String()
		if f.RetentionTime == 0 {
			local += ", which means for ever"
		}
		errs = append(errs, fmt.Errorf("--profiles.bucket-retention=%s is shorter than --storage.profiles.retention.time=%s",
			f.BucketKeep, local))
	}
	if f.Memory != 0 && f.Memory < f.HeadSize+64<<20 {
		errs = append(errs, fmt.Errorf("--profiles.memory=%s must be at least 64MB more than --profiles.head-size=%s",
			f.Memory, f.HeadSize))
	}
	return errors.Join(errs...)
}

func (f profileFlags) options() app.ProfilesOptions {
	retention := cmp.Or(time.Duration(f.RetentionTime), -1) // for ever
	return app.ProfilesOptions{
		SingleTenant: !f.Multitenancy,
		ConfigFile:   f.ConfigFile,
		Store: store.Options{
			Dir: f.Path, Retention: retention, RetentionBytes: int64(f.RetentionSize), HeadsBytes: int64(f.HeadSize),
			MemoryBytes: int64(f.Memory), TenantsMax: f.Tenants, DropLabels: f.DropLabels,
			Flags: hint.Flags{"HeadsBytes": "--profiles.head-size", "MemoryBytes": "--profiles.memory",
				"TenantsMax": "--profiles.limit.tenants", "FreeBytesMin": "--storage.tsdb.min-free"},
			Limits: pprof.Limits{Depth: f.Depth}, RemoteEvery: time.Duration(f.BucketSync),
			RemoteRetention: time.Duration(f.BucketKeep), RemoteDeleteDelay: time.Duration(f.BucketDelay),
		},
		BucketCache: app.ProfileCacheOptions{PagesBytes: int64(f.BucketCache), IndexBytes: int64(f.BucketIndex),
			Flags: hint.Flags{"PagesBytes": "--profiles.bucket-cache-size"}},
		Limits: ingest.Limits{
			RateBytes: int(f.Rate), BurstBytes: int(f.Burst), Series: f.Series, ProfileBytes: int(f.Profile),
			DecompressedBytes: int(f.Decompressed),
			Symbols:           f.Symbols, Samples: f.Samples, Depth: f.Depth, Nodes: f.Nodes, Labels: f.Labels,
			LabelNameBytes: f.LabelNames, LabelValueBytes: f.LabelValues,
			Age: time.Duration(f.Age), Future: time.Duration(f.Future), Tenants: f.Tenants,
			Flags: profileLimitFlags,
		},
		Query: query.Options{ConcurrencyMax: f.QueriesMax, Timeout: time.Duration(f.QueryTimeout),
			RangeMax: time.Duration(f.QueryRange), FailPartial: !f.QueryPartial,
			Flags: hint.Flags{"RangeMax": "--profiles.query.max-range"}},
		API: api.Options{Flags: hint.Flags{"BodyMaxBytes": "--profiles.max-request-size"}, BodyMaxBytes: int(f.BodySize),
			NodesDefault: f.MaxNodes, QueryTimeout: max(2*time.Minute, time.Duration(f.QueryTimeout))},
		Self:  f.Self,
		Every: time.Duration(f.Every),
	}
}
