package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
)

// A block whose size cannot be read concerns the queries of its tenant only.
func TestView_BlockWithoutSizesIsAWarningOfItsTenant(t *testing.T) {
	denied := errors.New("403 Forbidden")
	blocks, id := bucketOf(t), ulid.Make()
	s := idleRemotes(t, &listed{blocks: append(blocks, profiles.BucketBlock{Tenant: "u", ID: id, Unread: denied})}, nil)
	s.awaitList()
	for tenant, want := range map[string]int{"t": 0, "u": 1} {
		v, err := s.View(t.Context(), tenant, 0, timeMax)
		if err != nil || len(v.Warnings) != want || len(v.Sources) != 3*(1-want) {
			t.Fatalf("%s: %+v, %v", tenant, v, err)
		}
		for _, w := range v.Warnings {
			if !errors.Is(w, profiles.ErrUnavailable) || !errors.Is(w, denied) || !strings.Contains(w.Error(), id.String()) {
				t.Error(w)
			}
		}
		v.Close()
	}
}

func TestUnreadable_ManyBadBlocksAreCounted(t *testing.T) {
	for _, bad := range []int{badMax, badMax + 3} {
		l := &remoteList{blocks: map[ulid.ULID]*remoteBlock{}}
		for range bad {
			id := ulid.Make()
			l.blocks[id] = &remoteBlock{bad: fmt.Errorf("%w: %s", profiles.ErrCorrupt, id)}
		}
		warnings := l.unreadable(local{}, nil)
		if last := warnings[len(warnings)-1]; len(warnings) != min(bad, badMax+1) || bad > badMax && !strings.Contains(last.Error(), ": 3 more profile blocks") {
			t.Errorf("%d blocks: %d warnings, %v", bad, len(warnings), last)
		}
	}
}

// The mark may be of another process and have a reason that this one does not know.
func TestClean_BlockWhoseMarkCannotBeReadStays(t *testing.T) {
	s, far := three(t, func(o *Options) { o.RemoteRetention = 10 * time.Hour }) // blocks at 0, 1 and 2 h
	far.take(t, s.opts.Dir)
	newest := time.Unix(0, s.tenants["t"].blocks[2].Meta().MaxNS)
	far.blocks[0].MarkUnread = true
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {s.opts.RemoteDeleteDelay, 2}, {1000 * time.Hour, 1}, {1100 * time.Hour, 1}} {
		if n := s.remotes.at(t, far, newest.Add(10*time.Hour+step.after)); n != step.want {
			t.Errorf("after %s %d blocks are left, want %d", step.after, n, step.want)
		}
	}
	if _, marked := far.reasons()[far.blocks[0].ID]; marked {
		t.Error("the mark was written again")
	}
	far.blocks[0].MarkUnread = false
	if n := s.remotes.at(t, far, newest.Add(1200*time.Hour)); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// The rows of a block that cannot be read are not missing if another block has them: a compactor has merged the block, and has
// not deleted it yet.
func TestView_ReplacedBlockThatCannotBeReadIsNoWarning(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	parents := slices.Clone(far.blocks)
	merged := *far.put(t, from.merged(t, 0, 1, 2))
	unread := profiles.BucketBlock{Tenant: "t", ID: parents[1].ID, Unread: errors.New("403 Forbidden")}
	cut := parents[1]
	cut.Index = strings.NewReader(strings.Repeat("x", int(cut.IndexBytes)))
	damaged := merged
	damaged.Index = strings.NewReader("")
	for name, test := range map[string]struct {
		blocks         []profiles.BucketBlock
		rows, warnings int
	}{
		"merged":                          {[]profiles.BucketBlock{parents[0], unread, parents[2], merged}, 3, 0},
		"corrupt and merged":              {[]profiles.BucketBlock{parents[0], cut, parents[2], merged}, 3, 0},
		"not merged":                      {[]profiles.BucketBlock{parents[0], unread, parents[2]}, 2, 1},
		"merged into an unreadable block": {[]profiles.BucketBlock{parents[0], unread, parents[2], damaged}, 2, 2},
	} {
		s := idleRemotes(t, &listed{blocks: test.blocks}, nil)
		s.awaitList()
		if rows, warnings := s.rows(t); len(rows) != test.rows || len(warnings) != test.warnings {
			t.Errorf("%s: %v, %v", name, rows, warnings)
		}
	}
}
