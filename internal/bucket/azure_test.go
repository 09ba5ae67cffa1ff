package bucket

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"
)

// updated is the time of the last change of every object of a cloud.
var updated = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// cloud is a double of an object store. It responds to the requests of the providers' clients.
type cloud struct {
	*httptest.Server

	mu      sync.Mutex
	objects map[string][]byte
	blocks  map[string][]byte // of uploads that have not ended
	created bool              // the container
	count   int               // of requests
}

func newCloud(t *testing.T, serve func(c *cloud, w http.ResponseWriter, r *http.Request)) *cloud {
	t.Helper()
	c := &cloud{objects: map[string][]byte{}, blocks: map[string][]byte{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		serve(c, w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

// list returns the objects and directories below a prefix, as object stores list them.
func (c *cloud) list(prefix, delimiter string) (names, directories []string) {
	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		rest, below := strings.CutPrefix(name, prefix)
		switch i := strings.Index(rest, "/"); {
		case !below:
		case delimiter != "" && i >= 0:
			directories = append(directories, prefix+rest[:i+1])
		default:
			names = append(names, name)
		}
	}
	return names, slices.Compact(directories)
}

// azure serves the REST API of Azure's blobs, for an account a and a container c.
func (c *cloud) azure(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, code string) {
		w.Header().Set("x-ms-error-code", code)
		w.WriteHeader(status)
	}
	name, isObject := strings.CutPrefix(r.URL.Path, "/a/c/")
	w.Header().Set("Last-Modified", updated.Format(http.TimeFormat))
	q := r.URL.Query()
	body, _ := io.ReadAll(r.Body)
	c.count++
	switch {
	case !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey a:"):
		fail(http.StatusForbidden, "AuthenticationFailed")
	case !isObject && r.Method == http.MethodPut:
		c.created = true
		w.WriteHeader(http.StatusCreated)
	case !c.created:
		fail(http.StatusNotFound, "ContainerNotFound")
	case !isObject && q.Get("comp") == "list":
		type prefix struct{ Name string }
		type blob struct {
			Name         string
			LastModified string `xml:"Properties>Last-Modified"`
		}
		var all struct {
			XMLName  xml.Name `xml:"EnumerationResults"`
			Blobs    []blob   `xml:"Blobs>Blob"`
			Prefixes []prefix `xml:"Blobs>BlobPrefix"`
		}
		names, directories := c.list(q.Get("prefix"), q.Get("delimiter"))
		for _, name := range names {
			all.Blobs = append(all.Blobs, blob{name, updated.Format(http.TimeFormat)})
		}
		for _, name := range directories {
			all.Prefixes = append(all.Prefixes, prefix{name})
		}
		w.Header().Set("Content-Type", "application/xml")
		_ = xml.NewEncoder(w).Encode(all)
	case !isObject:
	case r.Method == http.MethodPut && q.Get("comp") == "block":
		c.blocks[q.Get("blockid")] = body
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut && q.Get("comp") == "blocklist":
		var ids struct{ Latest []string }
		if err := xml.Unmarshal(body, &ids); err != nil {
			fail(http.StatusBadRequest, "InvalidXmlDocument")
			return
		}
		c.objects[name] = []byte{}
		for _, id := range ids.Latest {
			c.objects[name] = append(c.objects[name], c.blocks[id]...)
		}
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut:
		c.objects[name] = body
		w.WriteHeader(http.StatusCreated)
	case c.objects[name] == nil:
		fail(http.StatusNotFound, "BlobNotFound")
	case r.Method == http.MethodDelete:
		delete(c.objects, name)
		w.WriteHeader(http.StatusAccepted)
	default:
		if of := r.Header.Get("x-ms-range"); of != "" {
			r.Header.Set("Range", of)
		}
		http.ServeContent(w, r, "", updated, bytes.NewReader(c.objects[name]))
	}
}

// azureConfig returns the configuration of a cloud's container, with further fields.
func (c *cloud) azureConfig(more string) string {
	connection := "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=" + base64.StdEncoding.EncodeToString([]byte("k")) + ";BlobEndpoint=" + c.URL + "/a;"
	return "type: AZURE\nconfig: {storage_account: a, container: c, storage_connection_string: '" + connection + "'" + more + "}\nprefix: p\n"
}

func (c *cloud) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func TestOpen_Azure(t *testing.T) {
	c := newCloud(t, (*cloud).azure)
	checkCloud(t, c.azureConfig(""), updated)
	if !c.created {
		t.Error("the container was not created")
	}
	for _, config := range []string{"{}", "{storage_account: a}", "{storage_account: a, container: c, key: x}", "{storage_account: a, container: c, client_id: x}", "{storage_account: a, container: c, storage_create_container: 2}", "[]"} {
		if _, err := Open([]byte("type: AZURE\nconfig: "+config), "test", quiet, prometheus.NewRegistry()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// A server starts, and can be stopped, while Azure does not respond.
func TestOpen_AzureSendsNoRequest(t *testing.T) {
	for _, more := range []string{"", ", storage_create_container: true", ", storage_create_container: false", ", storage_create_container: ", ", max_retries: , http_config: {insecure_skip_verify: , idle_conn_timeout: }"} {
		c := newCloud(t, (*cloud).azure)
		if mustOpen(t, c.azureConfig(more)); c.requests() != 0 {
			t.Errorf("%q: %d requests", more, c.requests())
		}
	}
}

func TestOpen_AzureContainerIsCreatedByTheFirstRequest(t *testing.T) {
	ctx := t.Context()
	for name, first := range map[string]func(b objstore.Bucket) error{
		"upload": func(b objstore.Bucket) error { return b.Upload(ctx, "x", strings.NewReader("1")) },
		"list":   func(b objstore.Bucket) error { return b.Iter(ctx, "", func(string) error { return nil }) },
		"list of times": func(b objstore.Bucket) error {
			return b.IterWithAttributes(ctx, "", func(objstore.IterObjectAttributes) error { return nil }, objstore.WithRecursiveIter())
		},
		"exists": func(b objstore.Bucket) error { _, err := b.Exists(ctx, "x"); return err },
		"get": func(b objstore.Bucket) error {
			if _, err := b.Get(ctx, "x"); !b.IsObjNotFoundErr(err) {
				return fmt.Errorf("get: %w", err)
			}
			return nil
		},
		"get range": func(b objstore.Bucket) error {
			if _, err := b.GetRange(ctx, "x", 0, 1); !b.IsObjNotFoundErr(err) {
				return fmt.Errorf("get range: %w", err)
			}
			return nil
		},
		"attributes": func(b objstore.Bucket) error {
			if _, err := b.Attributes(ctx, "x"); !b.IsObjNotFoundErr(err) {
				return fmt.Errorf("attributes: %w", err)
			}
			return nil
		},
	} {
		c := newCloud(t, (*cloud).azure)
		if err := first(mustOpen(t, c.azureConfig(""))); err != nil || !c.created {
			t.Errorf("%s: %v, created: %v", name, err, c.created)
		}
		c = newCloud(t, (*cloud).azure)
		if err := first(mustOpen(t, c.azureConfig(", storage_create_container: false"))); err == nil || c.created {
			t.Errorf("%s without creation: %v, created: %v", name, err, c.created)
		}
	}
}

// checkCloud checks what shippers and stores do with a bucket. Its objects are modified at the given time; zero: now.
func checkCloud(t *testing.T, config string, modified time.Time) {
	t.Helper()
	b, ctx := mustOpen(t, config), t.Context()
	big := bytes.Repeat([]byte("0123456789"), 700_000) // several of Azure's blocks
	for name, data := range map[string][]byte{"x/meta.json": []byte("{}"), "x/index": big, "y": []byte("1")} {
		if err := b.Upload(ctx, name, bytes.NewReader(data)); err != nil {
			t.Fatal(name, err)
		}
	}
	var flat, all []string
	list := func(to *[]string) func(string) error {
		return func(name string) error { *to = append(*to, name); return nil }
	}
	if err := errors.Join(b.Iter(ctx, "", list(&flat)), b.Iter(ctx, "", list(&all), objstore.WithRecursiveIter())); err != nil {
		t.Fatal(err)
	}
	slices.Sort(flat)
	slices.Sort(all)
	if !slices.Equal(flat, []string{"x/", "y"}) || !slices.Equal(all, []string{"x/index", "x/meta.json", "y"}) {
		t.Errorf("%q %q", flat, all)
	}
	r, err := b.GetRange(ctx, "x/index", 1_000_003, 5)
	if err != nil {
		t.Fatal(err)
	}
	if part, err := io.ReadAll(r); err != nil || string(part) != "34567" {
		t.Errorf("%q %v", part, err)
	}
	_ = r.Close()
	if about, err := b.Attributes(ctx, "x/index"); err != nil || about.Size != int64(len(big)) || !wasModified(about.LastModified, modified) {
		t.Errorf("%+v %v", about, err)
	}
	if _, err := b.Get(ctx, "x/nothing"); err == nil || !b.IsObjNotFoundErr(err) {
		t.Errorf("a missing object: %v", err)
	}
	if there, err := b.Exists(ctx, "y"); err != nil || !there {
		t.Errorf("%v %v", there, err)
	}
	if err := b.Delete(ctx, "y"); err != nil {
		t.Error(err)
	}
	if there, err := b.Exists(ctx, "y"); err != nil || there {
		t.Errorf("after the deletion: %v %v", there, err)
	}
	broken := errors.New("the disk is gone")
	if err := b.Upload(context.WithoutCancel(ctx), "z", io.MultiReader(bytes.NewReader(big), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if there, err := b.Exists(ctx, "z"); err != nil || there {
		t.Errorf("a failed upload: %v %v", there, err)
	}
}

func mustOpen(t *testing.T, config string) objstore.Bucket {
	t.Helper()
	b, err := Open([]byte(config), "test", quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// wasModified reports whether an object was modified at the given time; zero: within the last hour.
func wasModified(got, want time.Time) bool {
	return got.Equal(want) || want.IsZero() && time.Since(got).Abs() < time.Hour
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The provider creates the container without a context: a server could not be stopped while Azure did not respond.
func TestAzure_ARequestThatCreatesTheContainerCanBeCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("comp") == "list" {
			w.Header().Set("x-ms-error-code", "ContainerNotFound")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		cancel()
		<-r.Context().Done() // the client has disconnected
	}))
	defer server.Close()
	b := mustOpen(t, (&cloud{Server: server}).azureConfig(""))
	ended := make(chan error, 1)
	go func() { ended <- b.Iter(ctx, "", func(string) error { return nil }) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(time.Minute):
		server.CloseClientConnections()
		t.Error("the request is still running")
	}
}
