package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles/api"
	"github.com/ferula-io/ferula/internal/profiles/ingest"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// profileFlags are the flags of serve about profiles.
type profileFlags struct {
	Path          string   `name:"storage.profiles.path" default:"" placeholder:"DIR" help:"Parent of the directory profiles, which holds the profile blocks. Defaults to --storage.tsdb.path."`
	RetentionTime duration `name:"storage.profiles.retention.time" default:"15d" help:"How long to retain profiles. 0s means for ever."`
	RetentionSize size     `name:"storage.profiles.retention.size" default:"0" help:"Maximum bytes of a tenant's profile blocks to retain, e.g. 512MB. 0 means no limit."`

	BucketCache size     `name:"profiles.bucket-cache-size" default:"256MB" help:"Size of the file with pages of the profile blocks in the bucket of --objstore.config. All requests together hold at most these pages. At most 1TB; the disk must have this space."`
	BucketIndex size     `name:"profiles.bucket-index-memory" default:"128MB" help:"Maximum memory of the indexes of the profile blocks in the bucket that are kept open between queries."`
	BucketSync  duration `name:"profiles.bucket-sync-interval" default:"2m" help:"Interval at which the profile blocks in the bucket are listed."`
	BucketKeep  duration `name:"profiles.bucket-retention" default:"0s" help:"How long to retain profile blocks in the bucket; not shorter than --storage.profiles.retention.time. 0s means for ever."`
	BucketDelay duration `name:"profiles.bucket-delete-delay" default:"2h" help:"How long profile blocks stay in the bucket after a compacted block has replaced them, or after their retention."`

	ConfigFile string `name:"profiles.config-file" placeholder:"FILE" help:"File with the targets to scrape /debug/pprof from, relabelling, and limits of tenants."`

	Self  bool     `name:"profiles.self" default:"true" negatable:"" help:"Profile this process: continuous CPU, heap, goroutines, mutexes, blocking."`
	Every duration `name:"profiles.self.interval" default:"15s" help:"Length of one CPU profile of this process, and interval of its other profiles."`

	HeadSize size `name:"profiles.head-size" default:"512MB" help:"Maximum memory of the profiles in the heads of all tenants. A push that could need more than is free is rejected until heads have been written to blocks."`
	Memory   size `name:"profiles.memory" default:"0" help:"Maximum memory of heads, queries and decoded symbols together. A query that would exceed it fails. 0 means twice --profiles.head-size."`

	Multitenancy bool `name:"profiles.multitenancy" help:"Read the tenant of a request from its header X-Scope-OrgID. By default every request belongs to the tenant anonymous."`

	MaxNodes int  `name:"profiles.max-nodes" default:"8192" help:"Maximum nodes of a flame graph if the request does not set it."`
	BodySize size `name:"profiles.max-request-size" default:"64MB" help:"Maximum bytes of a request to the profile API, both compressed and decompressed."`

	QueriesMax   int      `name:"profiles.query.max-concurrency" default:"20" help:"Maximum number of concurrent profile queries. Further queries wait."`
	QueryTimeout duration `name:"profiles.query.timeout" default:"2m" help:"Maximum time of a profile query, including its wait."`
	QueryRange   duration `name:"profiles.query.max-range" default:"31d" help:"Maximum range of a profile query, from start to end. 0s means no limit."`
	QueryPartial bool     `name:"profiles.query.partial-response" default:"true" negatable:"" help:"Return a partial response with a warning if a profile block cannot be read. Otherwise the query fails."`

	DropLabels []string `name:"profiles.drop-sample-labels" placeholder:"NAME,..." help:"Sample labels to drop, for example request_id. Every distinct set of sample labels is a series of its own."`

	Rate         size     `name:"profiles.limit.rate" default:"32MB" help:"Maximum bytes of decompressed profiles that a tenant may push per second."`
	Burst        size     `name:"profiles.limit.burst" default:"64MB" help:"Maximum bytes of decompressed profiles that a tenant may push at once."`
	Series       int      `name:"profiles.limit.series" default:"20000" help:"Maximum label sets, including labels of samples, with which a tenant has pushed profiles in the last hour."`
	Profile      size     `name:"profiles.limit.profile-size" default:"16MB" help:"Maximum bytes of one profile as received, compressed or not."`
	Decompressed size     `name:"profiles.limit.decompressed-size" default:"4MB" help:"Maximum bytes of one profile after decompression."`
	Symbols      int      `name:"profiles.limit.symbols" default:"500000" help:"Maximum strings, functions and locations of one profile, each."`
	Samples      int      `name:"profiles.limit.samples" default:"16000" help:"Maximum samples of one profile."`
	Depth        int      `name:"profiles.limit.depth" default:"1000" help:"Maximum frames of one stack. A deeper stack loses the frames nearest to the leaf."`
	Nodes        int      `name:"profiles.limit.nodes" default:"500000" help:"Maximum nodes of the tree of stacks of one profile."`
	Labels       int      `name:"profiles.limit.labels" default:"30" help:"Maximum labels of one series."`
	LabelNames   int      `name:"profiles.limit.label-name-length" default:"1024" help:"Maximum bytes of a label name."`
	LabelValues  int      `name:"profiles.limit.label-value-length" default:"2048" help:"Maximum bytes of a label value."`
	Age          duration `name:"profiles.limit.age" default:"1h" help:"Maximum age of the start time of a pushed profile."`
	Future       duration `name:"profiles.limit.future" default:"10m" help:"Maximum time that the start of a pushed profile may be in the future."`
	Tenants      int      `name:"profiles.limit.tenants" default:"1000" help:"Maximum number of tenants."`
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

// Validate is called by kong.
func (f profileFlags) Validate() error {
	var errs []error
	if f.MaxNodes < 1 || f.MaxNodes > 1<<20 {
		errs = append(errs, fmt.Errorf("--profiles.max-nodes=%d must be between 1 and %d", f.MaxNodes, 1<<20))
	}
	if time.Duration(f.Every) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.self.interval=%s must be at least 1s", f.Every))
	}
	if f.BucketCache < 1<<20 || f.BucketCache > pages.CacheBytesMax {
		errs = append(errs, fmt.Errorf("--profiles.bucket-cache-size=%s must be between 1MB and 1TB", f.BucketCache))
	}
	if f.BucketIndex < 1<<20 {
		errs = append(errs, fmt.Errorf("--profiles.bucket-index-memory=%s must be at least 1MB", f.BucketIndex))
	}
	if time.Duration(f.BucketSync) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.bucket-sync-interval=%s must be at least 1s", f.BucketSync))
	}
	if keep := time.Duration(f.BucketKeep); keep != 0 &&
		(keep < 0 || f.RetentionTime == 0 || f.RetentionTime > f.BucketKeep) {
		local := f.RetentionTime.String()
		if f.RetentionTime == 0 {
			local += ", which means for ever"
		}
		errs = append(errs, fmt.Errorf("--profiles.bucket-retention=%s is shorter than --storage.profiles.retention.time=%s",
			f.BucketKeep, local))
	}
	if time.Duration(f.BucketDelay) < time.Minute {
		errs = append(errs, fmt.Errorf("--profiles.bucket-delete-delay=%s must be at least 1m", f.BucketDelay))
	}
	if f.QueriesMax < 1 {
		errs = append(errs, fmt.Errorf("--profiles.query.max-concurrency=%d must be at least 1", f.QueriesMax))
	}
	if time.Duration(f.QueryTimeout) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.query.timeout=%s must be at least 1s", f.QueryTimeout))
	}
	if f.QueryRange < 0 {
		errs = append(errs, fmt.Errorf("--profiles.query.max-range=%s must not be negative", f.QueryRange))
	}
	if f.HeadSize < 16<<20 {
		errs = append(errs, fmt.Errorf("--profiles.head-size=%s must be at least 16MB", f.HeadSize))
	}
	if f.Memory != 0 && f.Memory < f.HeadSize+64<<20 {
		errs = append(errs, fmt.Errorf("--profiles.memory=%s must be at least 64MB more than --profiles.head-size=%s",
			f.Memory, f.HeadSize))
	}
	if f.BodySize < 1 || f.BodySize > 1<<30 {
		errs = append(errs, fmt.Errorf("--profiles.max-request-size=%s must be between 1B and 1GB", f.BodySize))
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"rate", int64(f.Rate)}, {"burst", int64(f.Burst)}, {"series", int64(f.Series)}, {"profile-size", int64(f.Profile)},
		{"decompressed-size", int64(f.Decompressed)},
		{"symbols", int64(f.Symbols)}, {"samples", int64(f.Samples)}, {"depth", int64(f.Depth)}, {"nodes", int64(f.Nodes)},
		{"labels", int64(f.Labels)}, {"label-name-length", int64(f.LabelNames)},
		{"label-value-length", int64(f.LabelValues)}, {"age", int64(f.Age)}, {"future", int64(f.Future)},
		{"tenants", int64(f.Tenants)},
	} {
		if limit.value < 1 {
			errs = append(errs, fmt.Errorf("--profiles.limit.%s=%d must be above 0", limit.name, limit.value))
		}
	}
	return errors.Join(errs...)
}

func (f profileFlags) options() app.ProfilesOptions {
	retention := time.Duration(f.RetentionTime)
	if retention == 0 {
		retention = -1 // for ever
	}
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
