package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestRelay_ForwardsThePartsInOrder(t *testing.T) {
	downstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/query_range" || r.FormValue("start") == "" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, strings.Repeat(r.FormValue("start"), 1000))
	}))
	defer downstream.Close()
	relay := httptest.NewServer(newRelay(downstream.URL, 300, 70))
	defer relay.Close()
	get := func(parts ...string) (int, string) {
		resp, err := http.Get(relay.URL + "/relay?" + url.Values{"part": parts}.Encode())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, text := get("start=1&end=2", "start=3&end=4"); status != 200 || text != strings.Repeat("1", 1000)+strings.Repeat("3", 1000) {
		t.Errorf("status %d, %d bytes", status, len(text))
	}
	for _, parts := range [][]string{{}, {"start=1", "end=2"}} {
		if status, _ := get(parts...); status != http.StatusBadGateway {
			t.Errorf("%v: status %d", parts, status)
		}
	}
}
