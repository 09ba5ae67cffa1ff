// Package bucket ships blocks to object storage in Thanos' layout, so that Thanos' store
// gateway and compactor can serve and compact them, and reads profile blocks from there.
//
//	<ulid>/chunks/000001 …   a metrics block; meta.json is written last, and
//	<ulid>/index             a directory without it is an incomplete upload
//	<ulid>/meta.json
//	profiles/<tenant>/<ulid>/…   profile blocks, ignored by Thanos
//	profiles/bucket-index.json.gz   an index of the profile blocks, for readers that start
//
// Open returns a client for Thanos' YAML. A Shipper watches the directory of a database and
// uploads each new block once. In this directory it writes only its state file. A
// ProfileShipper does the same for profile blocks. A ProfileReader lists profile blocks and reads
// them through a cache of pages (internal/blocks/pages). A ProfileStore has the operations that a
// compaction of profile blocks needs. Compaction and deletion of metrics blocks are left to Thanos'
// compactor.
package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"
	"github.com/thanos-io/objstore/providers/s3"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/redact"
)

// ErrConfig is wrapped by errors of Open about the configuration.
var ErrConfig = errors.New("object storage configuration")

// Names within a block's directory.
const (
	metaFile  = "meta.json"
	indexFile = "index"
	chunksDir = "chunks"
	MarkFile  = "deletion-mark.json" // of a DeletionMark
)

// profilesDir is the directory of profile blocks. Thanos reads only directories in the bucket's root
// whose names are ULIDs.
const profilesDir = "profiles"

// ProfileBlock returns the directory of a tenant's profile block.
func ProfileBlock(tenant string, id ulid.ULID) string {
	return path.Join(profilesDir, tenant, id.String())
}

// config is Thanos' YAML of an object store.
type config struct {
	Type   string    `yaml:"type"`
	Config yaml.Node `yaml:"config"`
	Prefix string    `yaml:"prefix"`
}

// Open returns a client for Thanos' YAML: type S3, FILESYSTEM, GCS or AZURE, its config, and an optional prefix of all
// names. GCS needs the build tag clouds. component becomes part of the user agent of S3 and GCS. Open sends no request,
// except for GCS without service_account, whose credentials it may request from the machine's metadata server. The
// container of AZURE is created by the first request that finds it missing, unless storage_create_container is false.
func Open(text []byte, component string, logger *slog.Logger, reg prometheus.Registerer) (objstore.Bucket, error) {
	var c config
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	nameNulls(&c.Config)
	inner, err := yaml.Marshal(&c.Config)
	if err != nil {
		return nil, fmt.Errorf("%w: config: %w", ErrConfig, err)
	}
	if c.Config.IsZero() {
		inner = nil
	}
	var client objstore.Bucket
	switch kind := objstore.ObjProvider(strings.ToUpper(c.Type)); kind {
	case objstore.S3:
		client, err = s3.NewBucket(kitLogger{logger}, inner, component, nil)
	case objstore.FILESYSTEM:
		client, err = openDirectory(inner)
	case objstore.GCS:
		client, err = openGCS(inner, component, kitLogger{logger})
	case objstore.AZURE:
		client, err = openAzure(inner, component, kitLogger{logger})
		err = redact.Signature(err)
	case "":
		err = errors.New("type is missing: use S3, FILESYSTEM, GCS or AZURE")
	default:
		err = fmt.Errorf("type %q is not supported: use S3, FILESYSTEM, GCS or AZURE", c.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	client = objstore.NewPrefixedBucket(client, c.Prefix)
	return objstore.WrapWithMetrics(client, prometheus.WrapRegistererWithPrefix("thanos_", reg), client.Name()), nil
}

// nameNulls gives empty values the text null. Without it, Marshal would write an empty value within braces as an empty
// string.
func nameNulls(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		n.Value = "null"
	}
	for _, child := range n.Content {
		nameNulls(child)
	}
}

// openDirectory returns a client for a FILESYSTEM configuration. Unlike the provider's
// constructor, it refuses unknown keys.
func openDirectory(text []byte) (objstore.Bucket, error) {
	var known filesystem.Config
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&known); err != nil && len(text) > 0 {
		return nil, err
	}
	if known.Directory == "" {
		return nil, errors.New("config.directory is missing")
	}
	return newDirectory(known.Directory)
}

// kitLogger adapts a slog.Logger to the providers' interface. Most messages of the providers are
// errors of background work: all above the levels debug and info are logged as warnings.
type kitLogger struct{ logger *slog.Logger }

// Log implements go-kit's Logger.
func (k kitLogger) Log(keyvals ...any) error {
	level, text := slog.LevelWarn, "object storage"
	rest := make([]any, 0, len(keyvals))
	for i := 0; i+1 < len(keyvals); i += 2 {
		switch key := fmt.Sprint(keyvals[i]); key {
		case "msg":
			text = fmt.Sprint(keyvals[i+1])
		case "level":
			if name := fmt.Sprint(keyvals[i+1]); name == "debug" || name == "info" {
				level = slog.LevelDebug
			}
		default:
			rest = append(rest, key, keyvals[i+1])
		}
	}
	k.logger.Log(context.Background(), level, text, rest...)
	return nil
}
