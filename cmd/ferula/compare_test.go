package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCompareCommand_ExitCodes(t *testing.T) {
	page := func(value string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "eve" || password != "apple" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprintf(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"%s"]}}`, value)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	one, other := page("1"), page("2")
	file := filesIn(t, t.TempDir())
	queries := file("list", "1\n")
	config := file("http.yml", "basic_auth: {username: eve, password: apple}\n")
	for name, c := range map[string]struct {
		left, right, queries string
		code                 int
	}{
		"equal":        {one, one, queries, 0},
		"different":    {one, other, queries, exitFailure},
		"down":         {one, "http://127.0.0.1:1", queries, exitUsage},
		"no URL":       {one, "127.0.0.1:1", queries, exitUsage},
		"no queries":   {one, one, file("empty", "#\n"), exitUsage},
		"no such file": {one, one, queries + ".absent", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			saved, savedErrors := os.Stdout, os.Stderr
			out, err := os.Create(filepath.Join(t.TempDir(), "out"))
			if err != nil {
				t.Fatal(err)
			}
			os.Stdout, os.Stderr = out, out
			code := run([]string{"ferula", "compare", "--left", c.left, "--right", c.right, "--left.http-config", config, "--right.http-config", config,
				"--queries", c.queries})
			os.Stdout, os.Stderr = saved, savedErrors
			_ = out.Close()
			text, _ := os.ReadFile(out.Name())
			if code != c.code || strings.Contains(string(text), "apple") {
				t.Errorf("exit code %d, want %d: %s", code, c.code, text)
			}
		})
	}
}

func TestCompareCommand_EndIsSettledAndAligned(t *testing.T) {
	now := time.Unix(1_700_000_017, 0)
	queries := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(queries, []byte("up\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int64{"": 1_699_999_950, "--settle=0s --step=10s": 1_700_000_010, "--end=-1h": 1_699_996_410,
		"--end=1000": 990} {
		cli, err := parse(t, append(strings.Fields("compare --left=http://a --right=http://b "+args), "--queries="+queries)...)
		if err != nil {
			t.Fatal(err)
		}
		o, err := cli.Compare.options(now)
		if err != nil || o.Compare.End.Unix() != want || len(o.Compare.Queries) != 1 {
			t.Errorf("%q: end %d, want %d, %v", args, o.Compare.End.Unix(), want, err)
		}
	}
}
