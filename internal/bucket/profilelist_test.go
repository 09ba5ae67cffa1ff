package bucket

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/thanos-io/objstore"
)

// stalledList is a bucket whose lists never end.
type stalledList struct{ objstore.Bucket }

func (stalledList) Iter(ctx context.Context, _ string, _ func(string) error, _ ...objstore.IterOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestProfileStore_AListWithoutProgressFails(t *testing.T) {
	p := NewProfileStore(stalledList{})
	p.stall = time.Millisecond
	if _, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), "no name was listed for 1ms") {
		t.Errorf("%v", err)
	}
}
