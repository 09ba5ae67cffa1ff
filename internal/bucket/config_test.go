package bucket

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
)

func TestOpen_ReadsThanosConfigurations(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{
		"type: FILESYSTEM\nconfig:\n  directory: " + dir + "\nprefix: a/b\n",
		"type: filesystem\nconfig: {directory: '" + dir + "'}\n",
		`{"type": "S3", "config": {"bucket": "b", "endpoint": "127.0.0.1:1", "region": "us-east-1", "access_key": "k", "secret_key": "s", "insecure": true, "bucket_lookup_type": "path", "part_size": 6291456, "http_config": {"idle_conn_timeout": "90s"}}}`,
	} {
		b, err := Open([]byte(text), "test", quiet, prometheus.NewRegistry())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		_ = b.Close()
	}
}

func TestOpen_PrefixesEveryName(t *testing.T) {
	dir := t.TempDir()
	prefixed, err := Open([]byte("type: FILESYSTEM\nconfig: {directory: "+dir+"}\nprefix: a/b\n"), "test", quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Open([]byte("type: FILESYSTEM\nconfig: {directory: "+dir+"}\n"), "test", quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := prefixed.Upload(context.Background(), "x/y", strings.NewReader("z")); err != nil {
		t.Fatal(err)
	}
	if got := names(objects(t, plain)); got != "a/b/x/y" {
		t.Error(got)
	}
}

func TestOpen_RefusesUnknownKeysAndTypes(t *testing.T) {
	for _, text := range []string{
		"", "type: S3", "type: COS\nconfig: {bucket: b}\n", "type: FILESYSTEM\nconfig: {}\n", "type: FILESYSTEM\n",
		"type: FILESYSTEM\nconfig: {directory: /tmp, dir: x}\n", "type: FILESYSTEM\nconfig: {directory: /tmp}\nkind: x\n",
		"type: S3\nconfig: {bucket: b, endpoint: e, secret: s}\n", "[", "config: {directory: /tmp}",
	} {
		if _, err := Open([]byte(text), "test", quiet, prometheus.NewRegistry()); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestProfileBlock_IsIgnoredByThanos(t *testing.T) {
	id := ulid.Make()
	name := ProfileBlock("anonymous", id)
	if name != "profiles/anonymous/"+id.String() {
		t.Error(name)
	}
	if _, err := ulid.ParseStrict(strings.Split(name, "/")[0]); err == nil {
		t.Error("the directory at the root was taken for a block")
	}
}

func FuzzMeta(f *testing.F) {
	f.Add([]byte(`{"ulid":"01HF0000000000000000000000","version":1,"minTime":1,"maxTime":2,"thanos":{"labels":{"a":"b"},"files":[{"rel_path":"index","size_bytes":3}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMeta(text)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		text, err = m.encode(external, "sidecar", []blockFile{{"index", 1, ""}}, m.ID.Timestamp())
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseMeta(text)
		if err != nil || again.ID != m.ID || again.MinMS != m.MinMS || again.MaxMS != m.MaxMS || len(again.files) != 2 {
			t.Fatalf("%v: %+v, was %+v", err, again, m)
		}
	})
}
