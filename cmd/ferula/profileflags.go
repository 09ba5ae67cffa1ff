package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/codec/pprof"
	ingest "github.com/ferula-io/ferula/internal/ingest/profile"
	query "github.com/ferula-io/ferula/internal/query/profile"
	"github.com/ferula-io/ferula/internal/role"
	store "github.com/ferula-io/ferula/internal/store/profile"
	"github.com/ferula-io/ferula/internal/wire/profileapi"
)

// profileFlags are about profiles, in serve.
type profileFlags struct {
	Path          string   `name:"storage.profiles.path" default:"" placeholder:"DIR" help:"Folder in which the folder of profiles lies. The one of --storage.tsdb.path if empty."`
	RetentionTime duration `name:"storage.profiles.retention.time" default:"15d" help:"How long to retain profiles. 0s means for ever."`
	RetentionSize size     `name:"storage.profiles.retention.size" default:"0" help:"Maximum number of bytes of a tenant's profile blocks to retain, e.g. 512MB. 0 means no limit."`

	BucketCache size     `name:"profiles.bucket-cache-size" default:"256MB" help:"Bytes of memory for profile blocks that are read from the bucket of --objstore.config: half for indexes, half for pages."`
	BucketSync  duration `name:"profiles.bucket-sync-interval" default:"2m" help:"How often the profile blocks in the bucket are listed."`

	ConfigFile string `name:"profiles.config-file" placeholder:"FILE" help:"File of targets whose /debug/pprof is fetched."`

	Self  bool     `name:"profiles.self" default:"true" negatable:"" help:"Profile this process: CPU without a gap, heap, goroutines, mutexes, blocking."`
	Every duration `name:"profiles.self.interval" default:"15s" help:"Length of a slice of own CPU, and how often the other own profiles are taken."`

	HeadSize size `name:"profiles.head-size" default:"512MB" help:"Bytes of memory for profiles that are not in a block yet, of all tenants together. Pushes that may need more are refused until heads have become blocks."`

	Multitenancy bool `name:"profiles.multitenancy" help:"Take the tenant of a request from its header X-Scope-OrgID. Without it every request is of the tenant anonymous."`

	MaxNodes int  `name:"profiles.max-nodes" default:"8192" help:"Nodes of a flame graph whose request does not say how many."`
	BodySize size `name:"profiles.max-request-size" default:"64MB" help:"Maximum bytes of one request to the profile API, compressed and not."`

	QueriesMax   int      `name:"profiles.query.max-concurrency" default:"20" help:"Profile queries that run at once. Further ones wait."`
	QueryTimeout duration `name:"profiles.query.timeout" default:"2m" help:"Maximum time of a profile query, its wait included."`
	QueryRange   duration `name:"profiles.query.max-range" default:"31d" help:"Maximum time between start and end of a profile query. 0s means no limit."`
	QueryPartial bool     `name:"profiles.query.partial-response" default:"true" negatable:"" help:"Respond without the profile blocks that cannot be read, with a warning. Otherwise such a query fails."`

	Rate        size     `name:"profiles.limit.rate" default:"32MB" help:"Bytes of inflated profiles that a tenant may push in a second."`
	Burst       size     `name:"profiles.limit.burst" default:"64MB" help:"Bytes of inflated profiles that a tenant may push at once."`
	Series      int      `name:"profiles.limit.series" default:"20000" help:"Series of a tenant that were pushed within an hour."`
	Profile     size     `name:"profiles.limit.profile-size" default:"16MB" help:"Bytes of one profile as it is sent."`
	Inflated    size     `name:"profiles.limit.inflated-size" default:"4MB" help:"Bytes of one profile once it is inflated."`
	Symbols     int      `name:"profiles.limit.symbols" default:"500000" help:"Texts, functions and locations of one profile, each."`
	Samples     int      `name:"profiles.limit.samples" default:"16000" help:"Samples of one profile."`
	Depth       int      `name:"profiles.limit.depth" default:"1000" help:"Frames of one stack. Of a deeper one the frames next to the root are retained."`
	Nodes       int      `name:"profiles.limit.nodes" default:"500000" help:"Nodes of the tree that the stacks of one profile make."`
	Labels      int      `name:"profiles.limit.labels" default:"30" help:"Labels of one series."`
	LabelNames  int      `name:"profiles.limit.label-name-length" default:"1024" help:"Bytes of a label's name."`
	LabelValues int      `name:"profiles.limit.label-value-length" default:"2048" help:"Bytes of a label's value."`
	Age         duration `name:"profiles.limit.age" default:"1h" help:"How long ago a pushed profile may have begun."`
	Future      duration `name:"profiles.limit.future" default:"10m" help:"How far ahead a pushed profile may begin."`
	Tenants     int      `name:"profiles.limit.tenants" default:"1000" help:"Tenants altogether."`
}

// Validate is called by kong.
func (f profileFlags) Validate() error {
	var errs []error
	if f.MaxNodes < 1 || f.MaxNodes > 1<<20 {
		errs = append(errs, fmt.Errorf("--profiles.max-nodes=%d must be between 1 and %d", f.MaxNodes, 1<<20))
	}
	if time.Duration(f.Every) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.self.interval=%s must be a second at least", f.Every))
	}
	if f.BucketCache < 1<<20 {
		errs = append(errs, fmt.Errorf("--profiles.bucket-cache-size=%s must be 1MB at least", f.BucketCache))
	}
	if time.Duration(f.BucketSync) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.bucket-sync-interval=%s must be a second at least", f.BucketSync))
	}
	if f.QueriesMax < 1 {
		errs = append(errs, fmt.Errorf("--profiles.query.max-concurrency=%d must be 1 at least", f.QueriesMax))
	}
	if time.Duration(f.QueryTimeout) < time.Second {
		errs = append(errs, fmt.Errorf("--profiles.query.timeout=%s must be a second at least", f.QueryTimeout))
	}
	if f.QueryRange < 0 {
		errs = append(errs, fmt.Errorf("--profiles.query.max-range=%s must not be below 0s", f.QueryRange))
	}
	if f.HeadSize < 16<<20 {
		errs = append(errs, fmt.Errorf("--profiles.head-size=%s must be 16MB at least", f.HeadSize))
	}
	if f.BodySize < 1 || f.BodySize > 1<<30 {
		errs = append(errs, fmt.Errorf("--profiles.max-request-size=%s must be between 1B and 1GB", f.BodySize))
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"rate", int64(f.Rate)}, {"burst", int64(f.Burst)}, {"series", int64(f.Series)}, {"profile-size", int64(f.Profile)}, {"inflated-size", int64(f.Inflated)},
		{"symbols", int64(f.Symbols)}, {"samples", int64(f.Samples)}, {"depth", int64(f.Depth)}, {"nodes", int64(f.Nodes)}, {"labels", int64(f.Labels)}, {"label-name-length", int64(f.LabelNames)},
		{"label-value-length", int64(f.LabelValues)}, {"age", int64(f.Age)}, {"future", int64(f.Future)}, {"tenants", int64(f.Tenants)},
	} {
		if limit.value < 1 {
			errs = append(errs, fmt.Errorf("--profiles.limit.%s must be above 0", limit.name))
		}
	}
	return errors.Join(errs...)
}

func (f profileFlags) options() role.ProfilesOptions {
	retention := time.Duration(f.RetentionTime)
	if retention == 0 {
		retention = -1 // for ever
	}
	return role.ProfilesOptions{
		SingleTenant: !f.Multitenancy,
		ConfigFile:   f.ConfigFile,
		Store: store.Options{
			Dir: f.Path, Retention: retention, RetentionBytes: int64(f.RetentionSize), HeadsBytes: int64(f.HeadSize), TenantsMax: f.Tenants,
			Limits: pprof.Limits{Depth: f.Depth}, RemoteEvery: time.Duration(f.BucketSync),
		},
		BucketCacheBytes: int64(f.BucketCache),
		Limits: ingest.Limits{
			RateBytes: int(f.Rate), BurstBytes: int(f.Burst), Series: f.Series, ProfileBytes: int(f.Profile), InflatedBytes: int(f.Inflated),
			Symbols: f.Symbols, Samples: f.Samples, Depth: f.Depth, Nodes: f.Nodes, Labels: f.Labels, LabelNameBytes: f.LabelNames, LabelValueBytes: f.LabelValues,
			Age: time.Duration(f.Age), Future: time.Duration(f.Future), Tenants: f.Tenants,
		},
		Query: query.Options{ConcurrencyMax: f.QueriesMax, Timeout: time.Duration(f.QueryTimeout), RangeMax: time.Duration(f.QueryRange), FailPartial: !f.QueryPartial},
		API:   profileapi.Options{BodyMaxBytes: int(f.BodySize), NodesDefault: f.MaxNodes, QueryTimeout: max(2*time.Minute, time.Duration(f.QueryTimeout))},
		Self:  f.Self,
		Every: time.Duration(f.Every),
	}
}
