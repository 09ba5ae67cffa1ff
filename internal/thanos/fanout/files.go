package fanout

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/hint"
)

// Files are the sources of endpoints, read periodically.
type Files struct {
	Config     []byte   // Thanos' YAML of endpoints; nil for none
	ConfigFile string   // file with such YAML, in which $(NAME) is replaced by the environment variable; "" for none
	Discovery  []string // patterns of files in the format of Prometheus' file_sd
}

// Any reports whether any source is configured.
func (f Files) Any() bool { return len(f.Config) > 0 || f.ConfigFile != "" || len(f.Discovery) > 0 }

// Read reads all sources.
func (f Files) Read() ([]Address, error) {
	var all []Address
	text := f.Config
	if f.ConfigFile != "" {
		read, err := os.ReadFile(f.ConfigFile)
		if err != nil {
			return nil, err
		}
		expanded, err := hint.Expand(string(read))
		if err != nil {
			return nil, fmt.Errorf("endpoint configuration %s: %w", f.ConfigFile, err)
		}
		text = []byte(expanded)
	}
	if len(text) > 0 {
		found, err := parseEndpoints(text)
		if err != nil {
			return nil, fmt.Errorf("endpoint configuration %s: %w", f.ConfigFile, err)
		}
		all = append(all, found...)
	}
	for _, pattern := range f.Discovery {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		slices.Sort(names)
		for _, name := range names {
			found, err := readDiscovery(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// Watch returns a function that reports whether a file has changed since its last call. Files are
// compared by modification time and size. Symbolic links are followed.
func (f Files) Watch() (changed func() bool) {
	last := f.signature()
	return func() bool {
		now := f.signature()
		differs := now != last
		last = now
		return differs
	}
}

// signature returns a text with the name, size and modification time of each file.
func (f Files) signature() string {
	var all strings.Builder
	add := func(name string) {
		if info, err := os.Stat(name); err != nil {
			fmt.Fprintf(&all, "%s absent\n", name)
		} else {
			fmt.Fprintf(&all, "%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
		}
	}
	if f.ConfigFile != "" {
		add(f.ConfigFile)
	}
	for _, pattern := range f.Discovery {
		names, _ := filepath.Glob(pattern) // Read returns the error
		for _, name := range names {
			add(name)
		}
	}
	return all.String()
}

// clientYAML is Thanos' configuration of the connections of an endpoint.
type clientYAML struct {
	TLS struct {
		Enabled            *bool  `yaml:"enabled"`
		InsecureSkipVerify *bool  `yaml:"insecure_skip_verify"`
		Cert               string `yaml:"cert_file"`
		Key                string `yaml:"key_file"`
		CA                 string `yaml:"ca_file"`
		MinVersion         string `yaml:"min_version"`
	} `yaml:"tls_config"`
	ServerName  string `yaml:"server_name"`
	Compression string `yaml:"compression"`
}

// over returns the configuration, with unset fields taken from byDefault. A configured file or insecure_skip_verify
// enables TLS, unless enabled is set.
func (c clientYAML) over(byDefault ClientConfig) (ClientConfig, error) {
	text := func(b *bool) string {
		if b == nil {
			return ""
		}
		return strconv.FormatBool(*b)
	}
	enabled := text(c.TLS.Enabled)
	if enabled == "" && (c.TLS.Cert != "" || c.TLS.Key != "" || c.TLS.CA != "" || c.TLS.InsecureSkipVerify != nil) {
		enabled = "true"
	}
	if !slices.Contains([]string{"", "none", "snappy"}, c.Compression) {
		return ClientConfig{}, fmt.Errorf("unknown compression %q, must be none or snappy", c.Compression)
	}
	return ClientConfig{
		TLS: cmp.Or(enabled, byDefault.TLS), SkipVerify: cmp.Or(text(c.TLS.InsecureSkipVerify), byDefault.SkipVerify),
		Cert: cmp.Or(c.TLS.Cert, byDefault.Cert), Key: cmp.Or(c.TLS.Key, byDefault.Key), CA: cmp.Or(c.TLS.CA, byDefault.CA),
		ServerName: cmp.Or(c.ServerName, byDefault.ServerName), MinVersion: cmp.Or(c.TLS.MinVersion, byDefault.MinVersion),
		Compression: cmp.Or(c.Compression, byDefault.Compression),
	}, nil
}

// parseEndpoints parses Thanos' YAML of endpoints. Unknown keys are an error.
func parseEndpoints(text []byte) ([]Address, error) {
	var config struct {
		Default   clientYAML `yaml:"default_client_config"`
		Endpoints []struct {
			Address       string     `yaml:"address"`
			Strict        bool       `yaml:"strict"`
			Group         bool       `yaml:"group"`
			ServiceConfig string     `yaml:"service_config"`
			Client        clientYAML `yaml:"client_config"`
		} `yaml:"endpoints"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	byDefault, err := config.Default.over(ClientConfig{})
	if err != nil {
		return nil, fmt.Errorf("default_client_config: %w", err)
	}
	var all []Address
	for i, e := range config.Endpoints {
		if e.Address == "" {
			return nil, fmt.Errorf("endpoint %d has no address", i)
		}
		client, err := e.Client.over(byDefault)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: client_config: %w", e.Address, err)
		}
		client.ServiceConfig = e.ServiceConfig
		address, err := Address{Name: e.Address, Strict: e.Strict, Group: e.Group, Client: client}.Checked()
		if err != nil {
			return nil, err
		}
		all = append(all, address)
	}
	return all, nil
}

// readDiscovery reads YAML, which includes JSON.
func readDiscovery(name string) ([]Address, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var groups []struct {
		Targets []string `yaml:"targets"`
	}
	if err := yaml.Unmarshal(text, &groups); err != nil {
		return nil, err
	}
	var all []Address
	for _, g := range groups {
		for _, target := range g.Targets {
			all = append(all, Address{Name: target})
		}
	}
	return all, nil
}
