package main

import (
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
	Path          string   `name:"storage.profiles.path" default:"" placeholder:"DIR" help:"Parent of the directory profiles, which holds the profile blocks. Defaults to --storage.tsdb.path."`
	RetentionTime duration `name:"storage.profiles.retention.time" default:"15d" help:"How long to retain profiles. 0s means for ever."`
	RetentionSize size     `name:"storage.profiles.retention.size" default:"0" help:"Maximum bytes of a tenant's profile blocks to retain, e.g. 512MB. 0 means no limit."`

	BucketCache size     `name:"profiles.bucket-cache-size" min:"1MB" max:"1TB" default:"256MB" help:"Size of the file with pages of the profile blocks in the bucket of --objstore.config. All requests together hold at most these pages. At most 1TB; the disk must have this space."`
	BucketIndex size     `name:"profiles.bucket-index-memory" min:"1MB" default:"128MB" help:"Maximum memory of the indexes of the profile blocks in the bucket that are kept open between queries."`
	BucketSync  duration `name:"profiles.bucket-sync-interval" min:"1s" default:"2m" help:"Interval at which the profile blocks in the bucket are listed."`
	BucketKeep  duration `name:"profiles.bucket-retention" default:"0s" help:"How long to retain profile blocks in the bucket; not shorter than --storage.profiles.retention.time. 0s means for ever."`
	BucketDelay duration `name:"profiles.bucket-delete-delay" min:"1m" default:"2h" help:"How long profile blocks stay in the bucket after a compacted block has replaced them, or after their retention."`

	ConfigFile string `name:"profiles.config-file" placeholder:"FILE" help:"File with the targets to scrape /debug/pprof from, relabelling, and limits of tenants."`

	Self  bool     `name:"profiles.self" default:"true" negatable:"" help:"Profile this process: continuous CPU, heap, goroutines, mutexes, blocking."`
	Every duration `name:"profiles.self.interval" min:"1s" default:"15s" help:"Length of one CPU profile of this process, and interval of its other profiles."`

	HeadSize size `name:"profiles.head-size" min:"16MB" default:"512MB" help:"Maximum memory of the profiles in the heads of all tenants. A push that could need more than is free is rejected until heads have been written to blocks."`
	Memory   size `name:"profiles.memory" default:"0" help:"Maximum memory of heads, queries and decoded symbols together. A query that would exceed it fails. 0 means twice --profiles.head-size."`

	Multitenancy bool `name:"profiles.multitenancy" help:"Read the tenant of a request from its header X-Scope-OrgID. By default every request belongs to the tenant anonymous."`

	MaxNodes int  `name:"profiles.max-nodes" min:"1" max:"1048576" default:"8192" help:"Maximum nodes of a flame graph if the request does not set it."`
	BodySize size `name:"profiles.max-request-size" min:"1B" max:"1GB" default:"64MB" help:"Maximum bytes of a request to the profile API, both compressed and decompressed."`

	QueriesMax   int      `name:"profiles.query.max-concurrency" min:"1" default:"20" help:"Maximum number of concurrent profile queries. Further queries wait."`
	QueryTimeout duration `name:"profiles.query.timeout" min:"1s" default:"2m" help:"Maximum time of a profile query, including its wait."`
	QueryRange   duration `name:"profiles.query.max-range" default:"31d" help:"Maximum range of a profile query, from start to end. 0s means no limit."`
	QueryPartial bool     `name:"profiles.query.partial-response" default:"true" negatable:"" help:"Return a partial response with a warning if a profile block cannot be read. Otherwise the query fails."`

	DropLabels []string `name:"profiles.drop-sample-labels" placeholder:"NAME,..." help:"Sample labels to drop, for example request_id. Every distinct set of sample labels is a series of its own."`

	Rate         size     `name:"profiles.limit.rate" min:"1B" default:"32MB" help:"Maximum bytes of decompressed profiles that a tenant may push per second."`
	Burst        size     `name:"profiles.limit.burst" min:"1B" default:"64MB" help:"Maximum bytes of decompressed profiles that a tenant may push at once."`
	Series       int      `name:"profiles.limit.series" min:"1" default:"20000" help:"Maximum label sets, including labels of samples, with which a tenant has pushed profiles in the last hour."`
	Profile      size     `name:"profiles.limit.profile-size" min:"1B" default:"16MB" help:"Maximum bytes of one profile as received, compressed or not."`
	Decompressed size     `name:"profiles.limit.decompressed-size" min:"1B" default:"4MB" help:"Maximum bytes of one profile after decompression."`
	Symbols      int      `name:"profiles.limit.symbols" min:"1" default:"500000" help:"Maximum strings, functions and locations of one profile, each."`
	Samples      int      `name:"profiles.limit.samples" min:"1" default:"16000" help:"Maximum samples of one profile."`
	Depth        int      `name:"profiles.limit.depth" min:"1" default:"1000" help:"Maximum frames of one stack. A deeper stack loses the frames nearest to the leaf."`
	Nodes        int      `name:"profiles.limit.nodes" min:"1" default:"500000" help:"Maximum nodes of the tree of stacks of one profile."`
	Labels       int      `name:"profiles.limit.labels" min:"1" default:"30" help:"Maximum labels of one series."`
	LabelNames   int      `name:"profiles.limit.label-name-length" min:"1" default:"1024" help:"Maximum bytes of a label name."`
	LabelValues  int      `name:"profiles.limit.label-value-length" min:"1" default:"2048" help:"Maximum bytes of a label value."`
	Age          duration `name:"profiles.limit.age" min:"1ms" default:"1h" help:"Maximum age of the start time of a pushed profile."`
	Future       duration `name:"profiles.limit.future" min:"1ms" default:"10m" help:"Maximum time that the start of a pushed profile may be in the future."`
	Tenants      int      `name:"profiles.limit.tenants" min:"1" default:"1000" help:"Maximum number of tenants."`
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
