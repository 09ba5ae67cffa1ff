package ingest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/units"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// TenantLimits are the limits of a tenant that differ from the flags. Zero values take the
// limits of the flags.
type TenantLimits struct {
	Rate             units.Base2Bytes `yaml:"rate"`  // decompressed bytes per second
	Burst            units.Base2Bytes `yaml:"burst"` // decompressed bytes at once
	Series           int              `yaml:"series"`
	ProfileSize      units.Base2Bytes `yaml:"profile_size"`
	DecompressedSize units.Base2Bytes `yaml:"decompressed_size"`
	Symbols          int              `yaml:"symbols"`
	Samples          int              `yaml:"samples"`
	Nodes            int              `yaml:"nodes"`
	Labels           int              `yaml:"labels"`
}

// over returns base with the limits that are set in t.
func (t *TenantLimits) over(base Limits, tenant string) Limits {
	flags := hint.Flags{}
	maps.Copy(flags, base.Flags)
	set := func(option, key string, to *int, v int) {
		if v != 0 {
			*to, flags[option] = v, fmt.Sprintf("%s of tenant %s in --profiles.config-file", key, tenant)
		}
	}
	set("RateBytes", "rate", &base.RateBytes, int(t.Rate))
	if t.Rate != 0 && t.Burst == 0 {
		base.BurstBytes = max(base.BurstBytes, 2*base.RateBytes)
	}
	set("BurstBytes", "burst", &base.BurstBytes, int(t.Burst))
	set("Series", "series", &base.Series, t.Series)
	set("ProfileBytes", "profile_size", &base.ProfileBytes, int(t.ProfileSize))
	set("DecompressedBytes", "decompressed_size", &base.DecompressedBytes, int(t.DecompressedSize))
	set("Symbols", "symbols", &base.Symbols, t.Symbols)
	set("Samples", "samples", &base.Samples, t.Samples)
	set("Nodes", "nodes", &base.Nodes, t.Nodes)
	set("Labels", "labels", &base.Labels, t.Labels)
	base.BurstBytes = max(base.BurstBytes, base.DecompressedBytes)
	base.Flags = flags
	return base
}

// settings are the settings of a configuration file. They are immutable.
type settings struct {
	relabel []*relabel.Config
	limits  map[string]*Limits // by tenant
}

// Configure sets the relabelling and the limits of a configuration that LoadConfig has checked.
// nil restores the settings without a configuration file. Pushes that have begun use the old
// settings to their end.
func (in *Ingester) Configure(cfg *Config) {
	s := &settings{limits: map[string]*Limits{}}
	if cfg != nil {
		s.relabel = cfg.Relabel
		for name, own := range cfg.Limits {
			limits := own.over(in.limits, name)
			s.limits[name] = &limits
		}
	}
	in.settings.Store(s)
}

func (in *Ingester) limitsOf(tenant string) *Limits {
	if own := in.settings.Load().limits[tenant]; own != nil {
		return own
	}
	return &in.limits
}

func (c *Config) checkSettings() error {
	errs := []error{checkRules(c.Relabel, model.LegacyValidation)}
	for _, name := range slices.Sorted(maps.Keys(c.Limits)) {
		own := c.Limits[name]
		err := profiles.CheckTenant(name)
		if err == nil && own == nil {
			err = errors.New("it is empty")
		}
		if err == nil {
			err = own.over(Limits{}.withDefaults(), name).Validate()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("limits of tenant %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func checkRules(rules []*relabel.Config, scheme model.ValidationScheme) error {
	for i, rule := range rules {
		if rule == nil {
			return fmt.Errorf("relabel_configs[%d]: empty or null rule", i)
		}
		rule.NameValidationScheme = scheme
		if err := rule.Validate(scheme); err != nil {
			return fmt.Errorf("relabel_configs[%d]: %w", i, err)
		}
	}
	return nil
}

// temporaryLabel is the prefix of labels that rules make for other rules.
const temporaryLabel = "__tmp"

// relabelled applies rules to a set without duplicates and returns a sorted one. keep is false
// if they drop the profile.
func relabelled(set []profilepb.RawLabel, rules []*relabel.Config) (_ []profilepb.RawLabel, keep bool) {
	builder := labels.NewBuilder(labels.EmptyLabels())
	for _, l := range set {
		builder.Set(l.Name, l.Value)
	}
	if !relabel.ProcessBuilder(builder, rules...) {
		return nil, false
	}
	set = set[:0]
	builder.Labels().Range(func(l labels.Label) { // sorted
		if !strings.HasPrefix(l.Name, temporaryLabel) {
			set = append(set, profilepb.RawLabel{Name: l.Name, Value: l.Value})
		}
	})
	return set, true
}
