package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/reqbody"
	"github.com/ferula-io/ferula/internal/role"
)

// receiveFlags are about what is pushed to serve: samples and profiles.
type receiveFlags struct {
	RemoteWrite bool     `name:"web.enable-remote-write-receiver" default:"true" negatable:"" help:"Receive remote write at /api/v1/write. On by default, unlike in Prometheus."`
	Profiles    bool     `name:"profiles.enable-receiver" default:"true" negatable:"" help:"Receive profiles by push.v1 and at /ingest."`
	BodiesSize  size     `name:"receive.max-bytes-in-flight" default:"256MB" help:"Maximum bytes of pushed requests' bodies in memory at once, compressed. Further requests wait, and get 503 after 10s."`
	BodyTimeout duration `name:"receive.body-timeout" default:"15s" help:"How long the sender of a body may stall, or fall behind 4KiB a second, before it gets 503."`
}

// bodiesSizeMin holds one body of remote write, twice.
const bodiesSizeMin = 64 << 20

// check compares the budget with the greatest bodies that other flags allow: one that
// is greater would wait for memory that there never is.
func (f receiveFlags) check(profiles profileFlags) error {
	const overhead = 2 << 20 // what an upload has around its profiles, and the last chunk
	for _, c := range []struct {
		name  string
		bytes size
	}{{"profiles.max-request-size", profiles.BodySize}, {"profiles.limit.profile-size", 2 * profiles.Profile}} {
		if f.Profiles && f.BodiesSize < c.bytes+overhead {
			return fmt.Errorf("--receive.max-bytes-in-flight=%s is too small for one body of --%s: it must be %s at least",
				f.BodiesSize, c.name, c.bytes+overhead)
		}
	}
	return nil
}

// Validate is called by kong.
func (f receiveFlags) Validate() error {
	var errs []error
	if f.BodiesSize < bodiesSizeMin {
		errs = append(errs, fmt.Errorf("--receive.max-bytes-in-flight=%s must be 64MB at least", f.BodiesSize))
	}
	if time.Duration(f.BodyTimeout) < time.Second {
		errs = append(errs, fmt.Errorf("--receive.body-timeout=%s must be a second at least", f.BodyTimeout))
	}
	return errors.Join(errs...)
}

func (f receiveFlags) options(readTimeout time.Duration) role.ReceiveOptions {
	return role.ReceiveOptions{
		RemoteWriteOff: !f.RemoteWrite, ProfilesOff: !f.Profiles,
		Bodies: reqbody.Options{BytesMax: int64(f.BodiesSize), Grace: time.Duration(f.BodyTimeout), Total: readTimeout},
	}
}
