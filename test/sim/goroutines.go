package sim

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// goroutinesMore is how many more goroutines a server may have before it stops than when
// it became ready. Reading a folder or compacting it takes some.
const goroutinesMore = 50

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

// countGoroutines returns go_goroutines of a process.
func countGoroutines(e *environment, base string) (int, error) {
	page, _, err := api(e.ctx, e.client, base+"/metrics", nil, nil)
	if err != nil {
		return 0, err
	}
	found := goroutinesLine.FindSubmatch(page)
	if found == nil {
		return 0, fmt.Errorf("%s/metrics has no go_goroutines", base)
	}
	return strconv.Atoi(string(found[1]))
}

// checkGoroutines waits until goroutines of requests have ended, and returns an error if
// they do not.
func (s *server) checkGoroutines() error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		n, err := countGoroutines(s.env, s.base())
		if err != nil || n <= s.goroutines+goroutinesMore {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has %d goroutines, %d when it started", s.base(), n, s.goroutines)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
