package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

func TestProfiles_BlocksOnlyInTheBucketAreQueried(t *testing.T) {
	t.Parallel()
	dir, bucket := t.TempDir(), t.TempDir()
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	over := func(dir string) func(*app.ServeOptions) {
		return func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.Store.Dir = dir
			o.Ship.Shipper.Interval = 100 * time.Millisecond
			o.Profiles.Store.HeadAge, o.Profiles.Store.RemoteEvery = time.Second, 100*time.Millisecond
			o.Profiles.Store.Retention = time.Second // a shipped block is deleted from the disk
		}
	}
	s := startServe(t, over(dir))
	from := time.Now().Add(-10 * time.Second).Unix()
	if status, text := s.folded(fmt.Sprintf("name=shop&from=%d&until=now", from), "main;work;sort 3\nmain;idle 1\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	want := s.flame(cpuType, `{service_name="shop"}`)
	if !want.has("sort") || want.Flamegraph.Total != "40000000" {
		t.Fatalf("%+v", want)
	}
	glob := func(dir string) int {
		found, _ := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", "index"))
		return len(found)
	}
	eventually(t, 60*time.Second, "the block to be only in the bucket", func() bool {
		if got := s.flame(cpuType, `{service_name="shop"}`); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\nwant %+v", got, want)
		}
		return glob(bucket) > 0 && glob(dir) == 0
	})
	if got := s.flame(cpuType, `{service_name="shop"}`); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s = startServe(t, over(t.TempDir())) // with an empty data directory
	eventually(t, 60*time.Second, "the same flame graph", func() bool {
		return reflect.DeepEqual(s.flame(cpuType, `{service_name="shop"}`), want)
	})
}
